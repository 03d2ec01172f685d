"""The command lines: the parts of `gflow-opt`, and `gflow-reduce`."""
