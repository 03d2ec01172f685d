"""Programs in the forms that other engines read: StableHLO and ONNX.

expand           brings a function into the ops that a form has: regions inlined, decompositions put in
docs             writes `docs/engine_ops.md` from the rows of the forms
form             what a form for engines is: for each op that it has, how it is written
forms            the forms that programs are written in, and the engines that read them, by name
sizes            sizes that vary from call to call, in the forms
decompositions/  what engines have no op for, in ops of the dialect that they have: one table for all of them
onnx/            what ONNX Runtime, OpenVINO and TensorRT read
stablehlo/       what XLA compiles, and what JAX exports
"""
