"""StableHLO, which XLA compiles and JAX exports.

collectives   collectives over mesh axes
dynamic       dynamic dimensions: shapes with `?`, and ops that take sizes as operands
read          reads a StableHLO module as functions of the dialect
read_rows     the table of StableHLO's ops in the dialect
read_windows  reduce_window in the dialect: pooling, or slices
refine        makes a module with dynamic dimensions static, for one set of shapes
rows          the table of the dialect's ops in StableHLO
write         writes a function as a StableHLO module
writer        the builder of StableHLO ops, which the rows use
"""
