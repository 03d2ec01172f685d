"""From Triton sources to machine code: worker processes, the cache of machine code, autotuning."""
