"""Plans: the compiled forms of a graph's calls, from how one is made to the cache of all.

cache         the plans of one graph, by signature: a cache that drops what was not used for longest
call_record   what a plan keeps of the call that it was compiled for, so that it can be saved
compilations  `graph.explain_recompiles()`: each compilation of a graph, and what made it necessary
expected      what a graph's programs take, and what a call gave instead
new_plan      from a call to its plan: trace it, make a first step where one is needed, compile
pipeline      a step in pipeline stages: the parts of this rank, and the actions that it makes of them
same_step     before the first run of a training step, its ranks compare hyperparameters, and ops that they share
plan          a plan: one compiled trace with the real tensors and numbers it reads and updates
"""
