"""Distributed programs: meshes, and placements of values on them.

mesh      meshes and shardings as attributes, and the verifier of a program's collectives
sharding  sharding rules: which dimensions of an op's operands and results are sharded together
"""
