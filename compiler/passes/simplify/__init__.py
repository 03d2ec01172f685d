"""Algebra that keeps results exact: the sweep over a function, and its rules by subject.

arithmetic       arithmetic on elementwise ops
choices          bits, comparisons, extremes and selections
constants        constants, and values that are the same along whole dimensions: computed once, on fewer
                 elements
conversions      conversions between element types
fold_batch_norm  fold scaling and shifting each channel of a convolution's result into its weight: batch norm in
                 inference
folding          evaluating elementwise ops on constants, as the code generators would
padding          zeros around the input of a convolution, which it can add itself
reductions       reductions and contractions over nothing, over constants, over what a broadcast repeats
rewriter         the sweep under `gflow-simplify`: rules over ops in program order, each op visited once
rules            a table of rules: which ops each is for, and which operands it is worth trying on
shapes           reshapes, transposes and broadcasts that cancel, merge, or do nothing
simplify         fold constants, apply algebra that keeps results exact, cancel shape ops, erase dead ops
slices           slices, pads, concatenations and reversals that cancel, merge, or do nothing
"""
