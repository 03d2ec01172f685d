"""Output of a graph while it is built, and when it is printed.

debug      `graph.debug(…)` and `module.to(GraphModule).debug(…)`: lines on standard output while a graph is
           built, by level
operators  OPERATOR lines: an op with its operands, results and location, for `print(graph)` and
           `debug()`
printing   `print(graph)`: configuration, modules, parameters and buffers
progress   a progress bar on the terminal while a graph is built, if that takes more than a second
"""
