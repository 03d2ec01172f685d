"""Programs for the CPU: kernels by LLVM's JIT, and the table of steps that runs them."""
