"""Matrix products and convolutions in Triton: tiles, main loop, split-K, epilogue."""
