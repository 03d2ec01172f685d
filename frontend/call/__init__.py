"""A call of a graph: its signature, the plan that it runs, and what a call changes as a whole or not at all.

automatic      dimensions that become dynamic by themselves, once a second size of them has come
automatic_numbers  Python floats among a call's arguments that become inputs, once a second value of them has come
call_record    what a plan keeps of the call that it was compiled for, so that it can be saved
compilations   `graph.explain_recompiles()`: each compilation of a graph, and what made it necessary
dynamic_dim    `gflow.dynamic_dim(x, 0, min=1, max=64)`: dimensions of inputs whose size may differ from call to
               call
expected       what a graph's programs take, and what a call gave instead
first_step     what a graph's first call changes before its program has run: optimizers get their state, and
               where that is made from gradients alone, a first step is made op by op
gradients      `graph.grad()`: gradients that can be read after a step, for those that asked for it before
layout_guard   whether tensors still have the shapes, strides, dtypes, devices and signs that a program was
               compiled for
memory_check   inputs of a call that lie in the memory of what the program updates
micro_batches  gradient accumulation: one call of a training graph in several micro-batches
new_plan       from a call to its plan: trace it, make a first step where one is needed, compile
pipeline       a step in pipeline stages: the parts of this rank, and the actions that it makes of them
plan           a plan: one compiled trace with the real tensors and numbers it reads and updates
plans          the plans of one graph, by signature: a cache that drops what was not used for longest
python_state   what a plan depends on in the Python of its optimizers, and the checks of it before each call
result_views   results that lie in the memory of an argument, a parameter or another result, as they do in eager
sharing        programs and graphs that share memory
signature      from a call as it is spelled to a `BoundCall`: what a compiled program is chosen by
tracebacks     tracebacks of errors that a call raises: the author's frames, and one of gflow's
transaction    one call of a graph: all of it takes place, or nothing
watchers       who watches a build: the record of module calls, debug output, the progress bar
zero_state     what lies in pieces on the ranks (ZeRO): whole for who saves or reads it, with memory while it is traced
"""
