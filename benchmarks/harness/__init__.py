"""How the benchmarks measure.

eager_memory  what a piece of eager PyTorch allocates at once
machine       what a measurement must be read with: the machine, the versions, the date
measure       the measurements of an item, each in a fresh process
neighbour     a process that keeps one core busy, for rounds that are measured beside it
peers         the same work done by eager PyTorch, torch.compile and gflow
report        measurements as a table on the terminal
"""
