"""The parts of the passes that compute values again: which, from what, and how their ops are copied."""
