"""The passes of the `gflow` dialect, in folders by subject: one pass a file, with the parts that it uses.

base            the definition of a pass: a name, a function over one `func.func`, and its options as a dataclass
amp/            mixed precision: the pass, and its rules for which ops run in half precision
attention/      recognition of attention that a program writes as matrix products and softmax
collectives/    collectives of one rank's program: normalization, bucketing, overlap with computation
distribution/   SPMD partitioning: a program over global values becomes the program of each rank
engines/        partitioning of a program between gflow and another engine
freezing/       frozen parameters: values that depend only on them are computed once
fusion/         which ops share a kernel: the passes that decide it, and their parts
joining/        kernels that become part of another that has their values
layout/         passes that choose memory layouts of tensors, and move ops that only change layouts
memory/         memory planning: copies, places, scratch, and the verification of the plan
recomputation/  recomputation: of marked modules, and under a memory budget
schedule/       the order of ops: dependences, and orders for speed or for memory
simplify/       algebraic simplification with exact results: the rewriter, and its rules by subject
zero/           ZeRO: optimizer state, gradients and parameters are sharded over the ranks
"""
