"""Partitioning of a program between gflow and another engine.

partition_engines  moves parts of the program into `gflow.engine` regions
"""
