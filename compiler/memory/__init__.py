"""The parts of the memory passes: who may write where, and how an arena is laid out."""
