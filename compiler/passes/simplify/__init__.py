"""The parts of `gflow-simplify`: the sweep, and its rules by subject."""
