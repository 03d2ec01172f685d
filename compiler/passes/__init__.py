"""The passes of the `gflow` dialect, in folders by subject: a pass a file, beside the parts that it is made of.

base            the definition of a pass: a name, a function over one `func.func`, and its options as a dataclass
amp/            mixed precision: the pass, and its rules of what runs in halves and where values are rounded
attention/      recognition of attention that a program writes as matrix products and softmax
collectives/    collectives of one rank's program: normalization, bucketing, overlap with computation
distribution/   SPMD partitioning: from a program of whole values to the program of each rank
engines/        which parts of a program another engine runs
freezing/       frozen parameters: values that depend only on them are computed once
fusion/         which ops share a kernel: the passes that decide it, and their parts
layout/         passes that choose memory layouts of tensors, and move ops that only change layouts
memory/         memory planning: copies, places, scratch, and the verification of the plan
recomputation/  recomputation: of marked modules, and under a memory budget
schedule/       the order of ops: dependences, and orders for speed or for memory
simplify/       algebra that keeps results exact: the sweep over a function, and its rules by subject
zero/           ZeRO: ranks share the optimizer's state, the gradients and the parameters
"""
