"""The passes of the `gflow` dialect, in folders by subject: a pass a file, beside the parts that it is made of.

base            what a pass is: a name, a function over one `func.func`, and its options as a dataclass
amp/            mixed precision: the pass, and its rules of what runs in halves and where values are rounded
attention/      attention that a program writes out: what it looks like, and the pass that makes one op of it
collectives/    collectives of one rank's program: in one form, few large ones, and work beside them
distribution/   SPMD partitioning: from a program of whole values to the program of each rank
engines/        which parts of a program another engine runs
freezing/       parameters that don't change between calls: what follows from them alone is computed once
fusion/         which ops share a kernel: the passes that decide it, and their parts
layout/         passes that choose how tensors lie in memory, and move the ops that only change that
memory/         passes that give values their memory: copies, places, scratch, and the check of the plan
recomputation/  values that are recomputed rather than kept: marked modules, and what a memory budget asks
                for
schedule/       the order in which ops run: what must come before what, and orders for one aim each
simplify/       algebra that keeps results exact: the sweep over a function, and its rules by subject
zero/           ZeRO: ranks share the optimizer's state, the gradients and the parameters
"""
