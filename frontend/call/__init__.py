"""A call of a graph: its signature, the plan that it runs, and what a call changes as a whole or not at all.

first_step    what a graph's first call changes before its program has run: optimizers get their state, and
              where that is made from gradients alone, a first step is made op by op
gradients     `graph.grad()`: gradients that can be read after a step, for those that asked for it before
graph_state   what a graph knows: its optimizers, programs, modules, and the call that is under way
modes         PyTorch's modes of the thread, put back after an interrupt in a first call
programs      the program of a call: found, or made
result_views  results that lie in the memory of an argument, a parameter or another result, as they do in eager
sharing       programs and graphs that share memory
signature     from a call as it is spelled to a `BoundCall`: what a compiled program is chosen by
tracebacks    tracebacks of errors that a call raises: the author's frames, and one of gflow's
transaction   one call of a graph: all of it takes place, or nothing
watchers      who watches a build: the record of module calls, debug output, the progress bar
zero_state    what lies in pieces on the ranks (ZeRO): whole for who saves or reads it, with memory while it is traced
conditions/   what must hold before a plan may run again
dynamic/      sizes and numbers that may differ from call to call, and calls split along a size
plans/        plans: how one is made and run, and the cache of all
"""
