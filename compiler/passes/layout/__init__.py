"""Passes that choose how tensors lie in memory, and move the ops that only change that."""
