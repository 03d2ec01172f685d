"""The `gflow` dialect: ops as data, verifiers, builders. Imports nothing else of gflow.

amp         mixed precision: which ops run in half precision, and which need float32
attributes  attributes between MLIR and plain Python data, by the kind that an `Attr` declares
builder     building ops: result types come from the shape rule, attributes from plain Python data
constants   the elements of constants: as attributes, and as bytes
dialect     the `gflow` dialect in the bindings: IRDL written from the op table, verifiers, traits
docs        writes `docs/dialect.md` from the op table: `python -m gflow.dialects.docs --write | --check`
extents     dynamic dimensions in shapes, strides and offsets
gflow       the module in which the bindings look for classes of ops of the `gflow` namespace
limits      limits on MLIR text, checked before it is parsed
marks       the attributes of functions, their arguments and results, that passes and code generators read
mlir        the one import of the MLIR Python bindings
opdef       how an op of the dialect is declared: once, as data
records     frozen dataclasses with a fast constructor
types       tensor types as plain data, and their way to and from MLIR types
verify      the verifier of every op: operand count, attributes, then the shape rule's result types
ops/        the table of all ops of the dialect
assembly/   the readable assembly format of the dialect: printer and parser
aten/       ATen overloads: calls as text, and which of them are collectives
distribution/  distributed programs: meshes, and placements of values on them
program/    compiled programs as plain data and as JSON: the interface between compiler and runtime
"""
