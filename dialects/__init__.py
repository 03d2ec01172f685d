"""The `gflow` dialect: ops as data, verifiers, builders. Imports nothing else of gflow.

accesses      what the steps of a program read and write, as its IR says: plain data to check a run against
amp           mixed precision: which ops gain from halves, and which need float32
aten          how `gflow.aten` holds a call of any ATen overload as text: encoder and decoder
attributes    attributes between MLIR and plain Python data, by the kind that an `Attr` declares
builder       building ops: result types come from the shape rule, attributes from plain Python data
collectives   which ATen overloads are collectives: calls in which all ranks of a process group take part
constants     the elements of constants: as attributes, and as bytes
dialect       the `gflow` dialect, made from the op table over the bindings' `ext` module (IRDL)
docs          writes `docs/dialect.md` from the op table: `python -m gflow.dialects.docs --write | --check`
extents       sizes that vary from call to call: extents
gflow         where the bindings look for the ops of the `gflow` namespace
limits        limits on MLIR text, checked before it is parsed
marks         the attributes of functions, their arguments and results, that passes and code generators read
mlir          the one import of the MLIR Python bindings
opdef         how an op of the dialect is declared: once, as data
program       what the compiler hands to the runtime, as plain data
program_form  a `Program` as JSON and back, without pickle
types         tensor types as plain data, and their way to and from MLIR types
verify        the verifier of every op: operand count, attributes, then the shape rule's result types
ops/          the table of all ops of the dialect
"""
