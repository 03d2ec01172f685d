"""Values that are recomputed rather than kept: marked modules, and what a memory budget asks for.

checkpoint     recompute the values of marked module calls in the backward
choose         which values not to keep, so that a program stays under a number of live bytes at the least cost
problem        a scheduled function as numbers, for deciding what to compute again: who makes and reads what,
               bytes, and what a second run of an op would read and cost
rematerialize  recompute values where they are needed, until memory fits a budget
replay         what a program does if some values are not kept: which ops run again and when, and the bytes live
               at each op
rewrite        writing a choice into the IR: second runs of ops, and readers that read what these make
scopes         the marks that `gflow-checkpoint` reads: which call of which module an op belongs to, and when it
               runs
"""
