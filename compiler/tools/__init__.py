"""The command lines: the parts of `gflow-opt`, and `gflow-reduce`.

args         the command line of `gflow-opt`: options, and passes as flags in the order they are given
docs         writes `docs/passes.md` from the passes: `python -m gflow.compiler.tools.docs --write | --check`
dumps        what gflow-opt prints between passes and after them: IR, and the time each took
emit         what `gflow-opt --emit=FORM` prints: an emitter for each form, by name
emit_triton  `gflow-opt --emit=triton`: the sources of a program's Triton kernels, and its launches
expected     `--verify-diagnostics`: `expected-error@+1 {{text}}` comments against what was emitted
help         what `gflow-opt --help` and `--list-passes` print
imports      what `gflow-opt --import=FORM` reads: programs of other compilers
opt          `gflow-opt`: reads MLIR text, runs passes, prints MLIR text
reduce       `gflow-reduce`: makes a module that fails smaller, as long as it fails
results      what gflow-opt gives besides IR: other forms of the program, reports, drawings
shrink       how `gflow-reduce` makes a module smaller: reductions, each of many parts that may go
"""
