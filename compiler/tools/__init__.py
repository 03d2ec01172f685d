"""The command lines: the parts of `gflow-opt`, and `gflow-reduce`.

args         the command line of `gflow-opt`: options, and passes as flags in the order they are given
docs         writes `docs/passes.md` from the passes: `python -m gflow.compiler.tools.docs --write | --check`
dumps        IR between passes, and the time of each pass
emit         `gflow-opt --emit=FORM`: an emitter for each form, by name
emit_triton  `gflow-opt --emit=triton`: the sources of a program's Triton kernels, and its launches
expected     `--verify-diagnostics`: compares `expected-error@+1 {{text}}` comments with the diagnostics
help         the texts of `gflow-opt --help` and `--list-passes`
imports      `gflow-opt --import=FORM`: reads programs of other compilers
opt          `gflow-opt`: reads MLIR text, runs passes, prints MLIR text
reduce       `gflow-reduce`: shrinks a module that fails, as long as it still fails
results      outputs of gflow-opt besides IR: other forms of the program, reports, drawings
shrink       the reductions of `gflow-reduce`
"""
