"""Programs of many ranks: meshes, and how values lie on them.

mesh      meshes and shardings, and what holds for all collectives of a program
sharding  sharding rules: which dimensions of an op's operands and results are split together
"""
