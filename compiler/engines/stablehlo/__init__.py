"""StableHLO: what XLA compiles, and what JAX exports.

collectives  collectives: one program that every rank runs
read         a StableHLO module as functions of the dialect
read_rows    how each op of StableHLO is read into the dialect
rows         how each op of the dialect is written in StableHLO
write        a function of the dialect as a StableHLO module
writer       builds StableHLO ops at the current insertion point: what all rows of the table do alike
"""
