"""Runs pipelines: from a module in the dialect to a program, with reproducers where a pass fails.

compile          from a module in the dialect to a program that the runtime can run
inputs           reading files, and MLIR text of any kind into a module or diagnostics
internal         unexpected exceptions as diagnostics: what broke, at which op, and what to do
pass_manager     runs textual pass pipelines that mix upstream passes and ours
pipeline_text    the textual form of pass pipelines: `builtin.module(func.func(cse,gflow-fuse{max-ops=64}))`
pipelines        the pass pipelines that the compile path runs, by target, and the switches that shape them
attention_races  attention on a processor, by a race: our own kernel beside PyTorch's
races            products on a processor, by a race: our own kernel beside the library's
reproducer       reproducers: a module and the pipeline that fails on it, in one file, in MLIR's own form
stack            runs work on a thread with a large stack, as MLIR handles nested constructs recursively
stages           the IR of a program between two passes, by name: `graph.ir("fused")`
upstream_passes  names of upstream passes, for `gflow-opt --list-passes` and for "did you mean"
"""
