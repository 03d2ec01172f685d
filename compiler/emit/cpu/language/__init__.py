"""Writing MLIR text: SSA names, loops, loads and stores, elementwise ops, random numbers."""
