"""A call of a graph: its signature, the plan that it runs, and the atomic update of state.

branching     calls of programs that are made for the truths of conditions on values
first_step    initial state of optimizers before a graph's first program runs; if the state
              depends on gradients, a first step is made op by op
gradients     `graph.grad()`: gradients that can be read after a step, for parameters that were named before
graph_state   the state of a graph: its optimizers, programs, modules, and the current call
modes         PyTorch's modes of the thread, restored after an interrupt in a first call
programs      the program of a call: found, or compiled
result_views  results that are views of an argument, a parameter or another result, as in eager
sharing       programs and graphs that share memory
signature     converts the arguments of a call to a `BoundCall`, whose key selects a program
tracebacks    tracebacks of errors of a call: the author's frames, and one of gflow's
transaction   one call of a graph is atomic: it has its full effect or none
watchers      observers of a build: the record of module calls, debug output, the progress bar
zero_state    sharded tensors of ZeRO: gathered when they are read or saved, with memory while they are traced
conditions/   conditions under which a plan may run again
dynamic/      sizes and numbers that may differ from call to call, and calls split along a size
plans/        plans: how one is made and run, and the cache of plans
"""
