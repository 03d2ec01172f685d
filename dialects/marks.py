"""The attributes of functions, their arguments and results, that passes and code generators read.

Ops of the dialect verify their own attributes. The attributes here are on ops of other dialects, whose verifiers do not
check them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .attributes import KIND_NAMES, from_mlir
from .extents import PAIRS, STAND_INS
from .mlir import ir
from .opdef import Attr, VerifyError

#: on an op: the kernel selected for it. On a function: the target that kernels were selected for
KERNEL, TARGET = "gflow.kernel", "gflow.target"

#: on an op: the number of the launch that it shares with adjacent ops
LAUNCH = "gflow.launch"

#: on a kernel of a contraction and its epilogue, and on both parts of one that was split: the name of the group of
#: equal kernels that are split together
GROUP = "gflow.group"

#: in a program partitioned for an engine, on an op that the engine does not run: the reason
STAYS = "gflow.stays"

#: on a function: the modules that engines run, as `<engine>:<dotted name>`
ENGINES = "gflow.engines"

#: the required fields of `gflow.kernel`, by kind
KERNEL_KINDS: dict[str, tuple[str, ...]] = {
    "none": (),  # no kernel: the result has no elements
    "region": ("warps",),
    "merged": ("warps",),  # a region that shares its launch with other regions
    "product": ("tile", "warps", "stages"),
    "depthwise": (),
    "zero": (),  # a sum over no elements
    "argmax": ("block", "warps"),
    "kernel": (),  # the only kernel of the op
    "loops": ("lanes",),  # a fused region on a CPU
    "pytorch": (),  # a call of PyTorch
    "blas": (),
    "panels": ("tile", "block"),  # a product on a CPU, of packed panels
    "rows": ("tile", "block"),  # a product of few rows, whose operands are read without packing
    "packed": ("tile", "block"),  # a product whose weight is packed once, before the first call
    "direct": ("tile", "block"),  # a convolution on a CPU that reads windows in place
    "winograd": ("tile", "block"),  # a 3×3 convolution on a CPU by Winograd's algorithm
    "patches": (),
    "attention": ("tile", "block"),  # on a CPU, in blocks of keys
    "attention_rows": ("tile", "block"),  # on a CPU, of few rows, without packing
}

#: kinds of CPU kernels, whose tiles may have any size
ON_PROCESSORS = (
    "loops",
    "panels",
    "rows",
    "packed",
    "direct",
    "winograd",
    "patches",
    "attention",
    "attention_rows",
)

#: the fields of `gflow.kernel`
KERNEL_FIELDS: dict[str, Attr] = {
    "kind": Attr("str", "the kind of kernel", choices=tuple(KERNEL_KINDS)),
    "scratch": Attr("i64", "bytes of memory that the kernel needs while it runs"),
    "tile": Attr(
        "i64[]",
        "GPU products: M, N and K of the tile of one program; CPU products, those of quantized weights too: the "
        "register tile; CPU attention: rows and columns of the register tile, and keys in a block",
    ),
    "block": Attr(
        "i64[]",
        "other GPU kernels: rows and columns of one program, or one of them; CPU products: rows that a thread packs, "
        "columns that all threads pack, and columns of a task; where windows are read in place, rows and columns of a "
        "task, and, if the weight isn't packed yet, columns that all threads pack, or for the gradient of a weight "
        "output channels of a task; CPU attention: rows of a task",
    ),
    "batch": Attr(
        "str",
        "how CPU threads share a batch of products: all threads on one product after the other, or one product each",
        choices=("together", "apart"),
    ),
    "rows": Attr(
        "i64",
        "CPU contractions: rows of the result (of a convolution by patches: output positions) that are made at a "
        "time, and followed by the epilogue; 0: all",
    ),
    "into": Attr(
        "i64",
        "CPU contractions: the number of the op's result to whose buffer the contraction is written before the "
        "epilogue overwrites it; without it, the contraction is returned, or written to scratch",
    ),
    "widened": Attr(
        "i64[]",
        "CPU: the operands and, numbered after them, the results in half precision that are converted to and from "
        "float32 in scratch; of a fused op those of its contraction",
    ),
    "patches": Attr(
        "str",
        "CPU convolutions by patches: whether patches (im2col) are stored in scratch, or the product gathers them from "
        "the input as it packs; without it, the kernel is 1x1 and the input is the matrix",
        choices=("stored", "gathered"),
    ),
    "walk": Attr(
        "str",
        "CPU convolutions that read windows in place: the order of positions in tiles: image by image, or the same "
        "position of all images side by side, whose windows leave the input at the same elements of the kernel",
        choices=("images", "positions"),
    ),
    "order": Attr(
        "i64[]",
        "CPU regions: the dimensions of the index space, outermost loop first: kept ones, then reduced ones, then the "
        "one that vectors run along",
    ),
    "lanes": Attr("i64", "CPU regions: elements of a vector, 8 or 16"),
    "unroll": Attr(
        "i64",
        "CPU regions whose vectors run along a kept dimension: vectors that are summed side by side",
    ),
    "share": Attr(
        "str",
        "CPU regions: what threads share: the outer loops, or the reduced dimensions (without such the vectors)",
        choices=("outer", "inner"),
    ),
    "kept": Attr(
        "i64", "CPU regions: values of a row that a thread keeps in scratch between passes over it"
    ),
    "threads": Attr(
        "str", "CPU: whether all threads run the kernel, or one", choices=("one", "all")
    ),
    "from_size": Attr(
        "i64",
        "CPU: of a dynamic size n = step * k + rest, the k from which on all threads run the kernel",
    ),
    "warps": Attr("i64", "warps of a program, of 32 threads each, whatever the device"),
    "stages": Attr("i64", "pipeline stages: tiles of the inner loop that are loaded ahead"),
    "parts": Attr("i64", "pieces of the tile in which the epilogue is computed"),
    "loads": Attr(
        "str",
        "how operands are loaded: by pointers, or by descriptors (TMA)",
        choices=("pointers", "descriptors"),
    ),
    "persistent": Attr(
        "i64", "persistent programs, which loop over all tiles; 0: one program for each tile"
    ),
    "split_k": Attr("i64", "split-K: parts of K, which a second launch adds up"),
    "pieces": Attr(
        "i64", "programs that share a reduction; a second launch combines their results"
    ),
    "copies": Attr(
        "str[]", "operands that are copied first, to an alignment that allows vector loads"
    ),
    "then": Attr(
        "any",
        "the op's other launches, in order. GPU: block, warps, stages, pieces and precision of copies of operands, "
        "then of launches after the kernel; CPU: order, lanes, unroll, share, kept, threads and from_size of copies, "
        "of conversions of `widened`, of zeros or of stored patches (threads and from_size alone), and of an epilogue "
        "that runs on rows",
    ),
    "precision": Attr(
        "str",
        "how float32 products are computed: in tf32 (10 bits of mantissa), or from three tf32 products (GPU) or six "
        "bfloat16 products (CPU) with the accuracy of float32; without it in float32. On a CPU, bf16: products of "
        "bfloat16 values, in the memory of the operands or, with `widened`, as float32",
        choices=("tf32", "tf32x3", "bf16x6", "bf16"),
    ),
    "library": Attr("str", "the library whose attention kernel PyTorch calls"),
    "tuned": Attr(
        "str",
        "the device on which the choice, or an equal one, was measured; it is not measured again",
    ),
}

#: fields of the loops of a generated CPU kernel
LOOP_FIELDS = ("order", "lanes", "unroll", "share", "kept", "threads", "from_size")

#: fields of one launch, also those of the entries of `then`
WAY_FIELDS = ("block", "warps", "stages", "pieces", "precision", *LOOP_FIELDS)

#: attributes by the place where they are allowed: name to kind (`attributes.KIND_NAMES`)
_KINDS = {
    "function": {
        "gflow.tf32": "str[]", TARGET: "str", "gflow.given": "i64[]", "gflow.prologue_of": "str", ENGINES: "str[]",
    },
    "argument": {
        "gflow.role": "str", "gflow.name": "str", "gflow.min": "i64", "gflow.max": "i64",
        "gflow.stand_in": "i64", "gflow.forms": "i64[]", "gflow.frozen": "bool",
    },
    "result": {"gflow.name": "str", "gflow.role": "str"},
    "op": {LAUNCH: "i64", GROUP: "str", STAYS: "str", "gflow.gradient": "str", "gflow.padded": "i64[]"},
}  # fmt: skip
_SIZE = ("gflow.min", "gflow.max")


def engines_of(function: ir.Operation) -> dict[str, str]:
    """By the dotted name of a module, the engine that runs its forward and backward."""
    if ENGINES not in function.attributes:
        return {}
    listed = (ir.StringAttr(text).value for text in ir.ArrayAttr(function.attributes[ENGINES]))
    return {name: engine for engine, _, name in (text.partition(":") for text in listed)}


def engine_at(engines: Mapping[str, str], phase: str, module: str) -> str:
    """The engine of the innermost module, of those that have one, that an op of a phase and module is part of; "" of
    none. Updates of parameters are part of no module."""
    while engines and phase != "optimizer":
        if module in engines:
            return engines[module]
        module, dot, _ = module.rpartition(".")
        if not dot:
            break
    return ""


def launch_of(op: ir.Operation) -> int | None:
    """The number of the launch that an op shares with adjacent ops; None if it has its own."""
    return ir.IntegerAttr(op.attributes[LAUNCH]).value if LAUNCH in op.attributes else None


def kind_of(op: ir.Operation) -> str:
    """The kind of the kernel selected for an op; "" before selection."""
    given = op.attributes.get(KERNEL, None)
    return given["kind"].value if isinstance(given, ir.DictAttr) and "kind" in given else ""


def widened(op: ir.Operation) -> tuple[int, ...]:
    """The field `widened` of the kernel selected for an op; () without one."""
    given = op.attributes.get(KERNEL, None)
    there = isinstance(given, ir.DictAttr) and "widened" in given
    return tuple(ir.DenseI64ArrayAttr(given["widened"])) if there else ()


def precision(op: ir.Operation) -> str:
    """The field `precision` of the kernel selected for an op; "" without one."""
    given = op.attributes.get(KERNEL, None)
    there = isinstance(given, ir.DictAttr) and "precision" in given
    return ir.StringAttr(given["precision"]).value if there else ""


def result_written_first(op: ir.Operation) -> int | None:
    """The field `into` of the kernel selected for an op; None without one."""
    given = op.attributes.get(KERNEL, None)
    return given["into"].value if isinstance(given, ir.DictAttr) and "into" in given else None


def modules_and_functions(root: ir.Operation) -> Iterator[ir.Operation]:
    """The modules and functions in an op, itself included, in program order."""
    waiting = [root]
    while waiting:
        op = waiting.pop()
        if op.name in ("builtin.module", "func.func"):
            yield op
        if op.name == "builtin.module":
            waiting += [
                o.operation
                for region in reversed(list(op.regions))
                for block in reversed(list(region))
                for o in reversed(list(block.operations))
            ]


def problems(root: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    """The errors in these attributes of a module or function, each with its op."""
    for op in modules_and_functions(root):
        if op.name == "func.func":
            yield from _of_function(op)


def _of_function(root: ir.Operation) -> Iterator[tuple[str, ir.Operation]]:
    for what in _of(root.attributes, "function"):
        yield what, root
    for kind, listed in (("argument", "arg_attrs"), ("result", "res_attrs")):
        if listed in root.attributes:
            for n, given in enumerate(ir.ArrayAttr(root.attributes[listed])):
                attrs = ir.DictAttr(given)
                found = [*_of(attrs, kind), *(_of_size(attrs) if kind == "argument" else ())]
                for what in found:
                    yield f"{kind} {n}: {what}", root
    for region in root.regions:
        for block in region.blocks:
            for op in block.operations:
                for what in _of(op.operation.attributes, "op"):
                    yield what, op.operation
                if KERNEL in op.operation.attributes:
                    for what in _of_kernel(op.operation.attributes[KERNEL]):
                        yield f"'{KERNEL}' {what}", op.operation


def _of(attributes: Any, place: str) -> Iterator[str]:
    for name, kind in _KINDS[place].items():
        if name in attributes:
            try:
                from_mlir(Attr(kind), attributes[name])
            except (VerifyError, TypeError):
                yield f"'{name}' must be {KIND_NAMES[kind]}, found {attributes[name]}"


def _of_kernel(attribute: ir.Attribute) -> Iterator[str]:
    """Check that a `gflow.kernel` has the fields of its kind, with the declared types and supported sizes."""
    yield from _of_fields(attribute, tuple(KERNEL_FIELDS))
    if not isinstance(attribute, ir.DictAttr):
        return
    given = {entry.name: entry.attr for entry in attribute}
    kind, then = given.get("kind"), given.get("then")
    needed = KERNEL_KINDS.get(kind.value, ()) if isinstance(kind, ir.StringAttr) else ()
    for name in ("kind", *needed):
        if name not in given:
            yield f"needs {name}"
    if then is None:
        return
    if not isinstance(then, ir.ArrayAttr):
        yield f"then must be an array of dictionaries, found {then}"
        return
    for entry in then:
        for what in _of_fields(entry, WAY_FIELDS):
            yield f"then {what}"


def _of_fields(attribute: ir.Attribute, names: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(attribute, ir.DictAttr):
        yield f"must be a dictionary, found {attribute}"
        return
    values: dict[str, Any] = {}
    for entry in attribute:
        spec = KERNEL_FIELDS.get(entry.name)
        if spec is None or entry.name not in names:
            yield f"has no field '{entry.name}'; there are {', '.join(names)}"
            continue
        try:
            values[entry.name] = from_mlir(spec, entry.attr)
        except (VerifyError, TypeError):
            yield f"{entry.name} must be {KIND_NAMES[spec.kind]}, found {entry.attr}"
            continue
        if spec.choices and values[entry.name] not in spec.choices:
            yield f"{entry.name} must be one of {', '.join(spec.choices)}, found {entry.attr}"
    powers = values.get("kind") not in ON_PROCESSORS
    for name, value in values.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(n, int) and not 0 <= n < 1 << 62 for n in numbers):
            yield f"{name} must not be negative, found {attribute[name]}"
        sized = name in ("tile", "block", "warps", "parts")
        if name == "tile" and values.get("persistent"):
            numbers = (numbers[0], *numbers[2:])
        if name == "parts" and values.get("persistent"):
            continue
        if sized and any(n < 1 or (powers and n & (n - 1)) for n in numbers):
            what = "powers of two" if powers else "positive"
            yield f"{name} must be {what}, found {attribute[name]}"
    yield from _uneven(values, attribute)
    if len(values.get("tile", (0, 0, 0))) != 3:
        yield f"tile must be M, N and K, found {attribute['tile']}"
    if not 1 <= values.get("warps", 1) <= 32:
        yield f"warps must be 1 to 32, found {attribute['warps']}"


def _uneven(values: Mapping[str, Any], attribute: Any) -> Iterator[str]:
    """Check the columns of a tile, and the pieces of its epilogue, of persistent programs.

    Columns may be the sum of two powers of two; those of a piece divide the smaller one.
    """
    tile = values.get("tile")
    if not values.get("persistent") or tile is None or len(tile) != 3:
        return
    columns, parts = tile[1], values.get("parts", 1)
    unit = columns & -columns
    if columns < 1 or (columns - unit) & (columns - unit - 1):
        yield f"tile must have columns that are the sum of at most two powers of two, found {attribute['tile']}"
    elif parts < 1 or columns % parts or unit % (columns // parts):
        yield f"parts must divide a tile of {columns} columns into pieces whose columns divide {unit}, found {parts}"


def _of_size(attrs: Any) -> Iterator[str]:
    """Check that an argument of role `size` has a range and one of the primes that represent dynamic dimensions."""
    if "gflow.stand_in" not in attrs:
        return
    missing = next((name for name in _SIZE if name not in attrs), None)
    if missing is not None:
        yield f"a size ('gflow.stand_in') needs '{missing}' too"
        return
    try:
        least, most, stand_in = (
            from_mlir(Attr("i64"), attrs[name]) for name in (*_SIZE, "gflow.stand_in")
        )
    except (VerifyError, TypeError):
        return  # already reported
    if stand_in not in (*STAND_INS, *(p for pair in PAIRS for p in pair)):
        known = " or ".join(map(str, STAND_INS))
        yield f"'gflow.stand_in' must be {known}, found {stand_in}"
    if not 0 <= least <= most < STAND_INS[0] // 2:
        yield f"a size has a range from 0 up, found {least} to {most}"
