"""The `gflow` dialect: ops as data, verifiers, builders. Imports nothing else of gflow.

amp         mixed precision: which ops gain from halves, and which need float32
attributes  attributes between MLIR and plain Python data, by the kind that an `Attr` declares
builder     building ops: result types come from the shape rule, attributes from plain Python data
constants   the elements of constants: as attributes, and as bytes
dialect     the `gflow` dialect, made from the op table over the bindings' `ext` module (IRDL)
docs        writes `docs/dialect.md` from the op table: `python -m gflow.dialects.docs --write | --check`
extents     sizes that vary from call to call: extents
gflow       where the bindings look for the ops of the `gflow` namespace
limits      limits on MLIR text, checked before it is parsed
marks       the attributes of functions, their arguments and results, that passes and code generators read
mesh        meshes and shardings, and what holds for all collectives of a program
mlir        the one import of the MLIR Python bindings
opdef       how an op of the dialect is declared: once, as data
processor   which instructions code for this processor may use: what it has, or what `GFLOW_CPU_ISA` limits it to
sharding    sharding rules: which dimensions of an op's operands and results are split together
types       tensor types as plain data, and their way to and from MLIR types
verify      the verifier of every op: operand count, attributes, then the shape rule's result types
ops/        the table of all ops of the dialect
assembly/   the form of the dialect that people read, and its way back to the generic one
aten/       ATen overloads: calls as text, and which of them are collectives
program/    what the compiler hands to the runtime, as plain data, and its JSON
"""
