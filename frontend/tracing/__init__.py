"""Tracing: `build()`, backward and optimizer updates as one list of functional ATen ops.

request      what is to be traced: `TraceRequest`
tracer       `trace_graph`: from `build()` and example arguments to a `Trace`
traced_inputs  a trace under way: its inputs, and the traced tensors that stand for them
traced_steps  the steps of optimizers in a trace: gradients, their reduction and scaling, micro-batches
trace_results  what a trace returns and updates
trace_checks  what a trace is refused for, and warned of
context/     what is known while a graph is traced: the thread, who watches, module scopes, source locations,
             ranks
data/        a trace as plain data: ops, values, numbers, places, sizes
dispatch/    what PyTorch calls while a graph is traced: function and dispatch modes, fake tensors, shape rules
optimizers/  optimizers in a trace: their step, state, schedules, hooks, loss scaling
program/     what a traced program consists of besides its ops: modules, shared memory, collectives, seeds
reads/       the Python state that code reads, and whether it is still the same
"""
