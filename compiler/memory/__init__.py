"""The parts of the memory passes: who may write where, and how an arena is laid out.

analyses    what is known of a function between two passes, so that each analysis is made once
in_place    when a kernel may write a result over one of its own operands
layouts     in which layouts ops can read their operands and write their results
liveness    which bytes are live when: the buffers of a function, and from which op to which each is needed
places      places as the IR has them, in `gflow.buffers`: `arena:64`, `result:0`, `arg:2`, `arg:2[1, 8]`
plan_check  whether the plan that a function carries is sound, read from its IR alone
planned     a planned function as plain data: steps in order, and the buffers of the arena with their lives
results     whose memory is a result of the function
spans       which bytes values lie in, and whether two ops meet there
"""
