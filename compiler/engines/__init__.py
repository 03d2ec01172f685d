"""Translation of programs for other engines, in two formats ("forms"): StableHLO and ONNX.

docs             writes `docs/engine_ops.md` from the tables of the formats
expand           legalizes a function for a format: inlines regions, applies decompositions
form             the description of a format: a table of ops, and how each is written
forms            the formats and the engines that read them, by name
sizes            dynamic dimensions in the formats
decompositions/  decompositions of ops that engines lack, shared by all formats
onnx/            ONNX, for ONNX Runtime, OpenVINO and TensorRT
stablehlo/       StableHLO, for XLA, and as JAX exports it
"""
