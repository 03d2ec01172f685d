"""Optimizers in a trace: their step, state, schedules, hooks, loss scaling.

gradients    gradients that outlive a step: sums over micro-batches, and those that `graph.grad()` reads
copies       an optimizer's step on copies: ops work on them, wherever the code finds the tensors that they are
             of
exchange     what an optimizer sees while its step is traced: its hyperparameters and state as traced numbers and
             tensors
host_calls   calls by which an optimizer's step would depend on more than its state: random numbers and the time
             of Python
mirror       containers that stand for an optimizer's own while its step is traced, and remember what was read
optimizer    one `optimizer.step()` as part of the trace
rates        `lr_scale`: a factor of a parameter group's learning rate, as OneFlow's graphs take it
pipeline_recomputation  what the backward of a stage computes again, rather than keep it
pipeline_stages  a step in pipeline stages: a forward and a backward for each, and the updates of each rank
pipeline_updates  the updates of each rank of a pipeline, and the numbers that they exchange
scaler       loss scaling as part of the trace
sparse       optimizers of embeddings whose gradients are sparse: a step changes only the rows that were looked
             up, and the state that belongs to them
state        initial optimizer state, without a training step
step_hooks   hooks of `optimizer.step()`: Python around a step, which runs at each call, outside of the program
unread_keys  keys of parameter groups that an optimizer carries along and does not read
"""
