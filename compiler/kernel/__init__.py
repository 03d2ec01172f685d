"""Kernels as data, before any language: index space, loads, expression DAG, reductions, stores.

description  what a kernel does, as data: index space, loads, an expression DAG, reductions, stores
dimensions   dimensions of an index space that are walked as one
registers    what values are in registers: halves are float32 there
sizes        arithmetic on sizes that choices and code share
selection/   which kernels ops run as: kinds, tiles, split-K, copies of operands, scratch
"""
