"""Optimizers in a trace: their step, state, schedules, hooks, loss scaling.

gradients    gradients that outlive a step: sums over micro-batches, and those that `graph.grad()` reads
copies       an optimizer's step on copies: ops read and write copies of the tensors that the code refers to
exchange     what an optimizer's code sees while its step is traced: hyperparameters and state as traced numbers and
             tensors
host_calls   calls by which an optimizer's step would depend on more than its state: random numbers and the time
             of Python
mirror       containers that replace an optimizer's own while its step is traced, and record reads
optimizer    one `optimizer.step()` as part of the trace
rates        `lr_scale`: a factor of a parameter group's learning rate, as in OneFlow's graphs
pipeline_recomputation  which values the backward of a stage recomputes
pipeline_stages  a step in pipeline stages: a forward and a backward for each, and the updates of each rank
pipeline_updates  the updates of each rank of a pipeline, and the numbers that ranks exchange for them
scaler       loss scaling as part of the trace
sparse       optimizers of embeddings with sparse gradients: a step changes only the rows that were looked
             up, and their state
state        initial optimizer state, without a training step
step_hooks   hooks of `optimizer.step()`: Python code around a step, which runs at each call outside of the program
unread_keys  keys of parameter groups that an optimizer keeps and does not read
"""
