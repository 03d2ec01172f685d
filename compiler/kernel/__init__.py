"""Kernels as data, before any language: index space, loads, expression DAG, reductions, stores.

constants    which constants stand in the text of a GPU's kernel, and which a launch passes
convolution  the geometry of a convolution and of its gradients
description  what a kernel does, as data: index space, loads, an expression DAG, reductions, stores
dimensions   dimensions of an index space that are walked as one
movement     ops that only move or make elements, as copies between places, and as kernels
registers    what values are in registers: halves are float32 there
sizes        arithmetic on sizes that choices and code share
selection/   which kernels ops run as: kinds, tiles, split-K, copies of operands, scratch
"""
