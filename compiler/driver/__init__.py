"""Runs pipelines: from a module in the dialect to a program, with reproducers where a pass fails.

compile          from a module in the dialect to a program that the runtime can run
inputs           reads files, and parses MLIR text into a module or diagnostics
internal         turns unexpected exceptions into diagnostics: the failing part, the op, and what to do
options          options of a compilation, and the programs that it gives
pass_manager     runs textual pass pipelines that mix upstream passes and ours
pipeline_text    the textual form of pass pipelines: `builtin.module(func.func(cse,gflow-fuse{max-ops=64}))`
pipelines        the default pass pipelines by target, and the switches that change them
attention_races  timed comparison of gflow's own CPU attention with ATen's
group_races      timed comparison of a GPU's contractions with their epilogues in one kernel, and apart
races            timed comparison of gflow's own CPU products with the BLAS
reproducer       reproducers: a module and the pipeline that fails on it, in one file, in MLIR's own form
stack            runs a function on a thread with a large stack, since MLIR handles nested constructs recursively
stages           the IR of a program between two passes, by name: `graph.ir("fused")`
unfused          the kernels of a GPU program that can be split, and programs of one of them, split
upstream_passes  names of upstream passes, for `gflow-opt --list-passes` and for "did you mean"
"""
