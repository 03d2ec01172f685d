"""StableHLO: what XLA compiles, and what JAX exports.

collectives  collectives: one program that every rank runs
dynamic      dimensions that vary: shapes with `?`, and ops that take sizes as operands
read         a StableHLO module as functions of the dialect
read_rows    how each op of StableHLO is read into the dialect
refine       a module with dynamic dimensions for one set of shapes
rows         how each op of the dialect is written in StableHLO
write        a function of the dialect as a StableHLO module
writer       builds StableHLO ops at the current insertion point: what all rows of the table do alike
"""
