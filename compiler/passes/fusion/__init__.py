"""The parts of `gflow-fuse`: which ops share a kernel, and how the fused ops are built."""
