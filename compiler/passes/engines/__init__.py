"""Which parts of a program another engine runs.

partition_engines  gives parts of the program to another engine, as `gflow.engine` regions
"""
