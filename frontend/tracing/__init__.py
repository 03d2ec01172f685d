"""Tracing: `build()`, backward and optimizer updates as one list of functional ATen ops.

request        the input of tracing: `TraceRequest`
tracer         `trace_graph`: from `build()` and example arguments to a `Trace`
traced_inputs  the inputs of a trace in progress, and the traced tensors that represent them
traced_steps   optimizer steps in a trace: gradients, their reduction and scaling, micro-batches
trace_results  the results and updates of a trace
trace_tail     the division of a trace into the program and the ops that run after it
trace_checks   checks that refuse a trace, and its warnings
context/       the context of tracing: thread, watchers, module scopes, source locations, ranks
data/          a trace as plain data: ops, values, numbers, places, sizes
dispatch/      PyTorch's hooks while a graph is traced: function and dispatch modes, fake tensors, shape rules
optimizers/    optimizers in a trace: their step, state, schedules, hooks, loss scaling
program/       what a traced program has besides its ops: modules, shared memory, collectives, seeds
reads/         the Python state that code reads, and checks that it is unchanged
"""
