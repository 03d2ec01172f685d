"""Kernels as data, before any language: index space, loads, expression DAG, reductions, stores."""
