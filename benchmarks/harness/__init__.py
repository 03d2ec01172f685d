"""How the benchmarks measure.

eager_memory  what a piece of eager PyTorch allocates at once
machine       what a measurement must be read with: the machine, the versions, the date
measure       the measurements of an item, each in a fresh process
peers         the same work done by eager PyTorch, torch.compile and gflow
report        measurements as a table on the terminal
"""
