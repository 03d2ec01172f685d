"""`gflow.compile` of modules and functions, with and without gradients."""
