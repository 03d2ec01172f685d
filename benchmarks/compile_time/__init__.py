"""How long compiling takes, and how it grows.

passes    each pass against the number of ops
planning  how long a rank of many plans a step, without the others
scaling   the first call against the depth of a decoder
"""
