"""Memory planning: copies, places, scratch, and the verification of the plan.

materialize     inserts the copies that the memory layout requires, as separate kernels
merge_launches  lets adjacent GPU kernels without memory dependences share launches
pad_rows        pads long rows of odd length, so they begin at multiples of a vector
plan_memory     assigns a place to every value: the arena, a result's buffer, or the argument that it updates
repeat_copies   repeats a copy before its next reader, instead of keeping it, at the memory peak
search          the best of several strategies, and a local search from each of their results
select_kernels  chooses the kernel of each op and the parameters of its launches
strategies      ways to find offsets for buffers in an arena
verify_memory   checks the memory plan: no two live values overlap, and each has the place and strides that its readers
                expect
write_in_place  lets producers write directly into the result of a concatenation or a copy, so no data is moved
"""
