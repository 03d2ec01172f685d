"""Plans: the compiled forms of a graph's calls, and their cache.

cache         the plans of one graph, by signature: the least recently used one is dropped
call_record   what a plan keeps of the call for which it was compiled, so that it can be saved
compilations  `graph.explain_recompiles()`: each compilation of a graph, and its reason
expected      compares a call with those that a graph's programs accept, for errors
new_plan      from a call to its plan: trace it, make a first step if one is needed, compile
pipeline      a step in pipeline stages: the programs of this rank, and its schedule
same_step     before the first run of a training step, its ranks compare hyperparameters and shared ops
plan          a plan: one compiled trace with the real tensors and numbers that it reads and updates
"""
