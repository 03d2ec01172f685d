"""Passes that give values their memory: copies, places, scratch, and the check of the plan.

materialize     insert the copies that memory needs, as kernels of their own
merge_launches  let pointwise kernels of a GPU that stand next to each other, and don't meet in memory, share launches
pad_rows        give values with long rows of an odd length rows that begin at multiples of a vector
plan_memory     give every value a place: the arena, a result's buffer, or the argument that it updates
repeat_copies   make a copy again where it is needed next, rather than keep it, where memory is short
search          the best of several strategies, and a local search from each of their results
select_kernels  choose the kernel that each op runs as, and how it runs
strategies      ways to find offsets for buffers in an arena
verify_memory   check the memory plan: no two live values overlap, all lie where they must and as their readers
                expect
write_in_place  write what a concatenation or a copy reads right into its result, so that nothing is moved
"""
