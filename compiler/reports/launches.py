"""Bytes and operations of each launch of a CUDA program, from its IR: `gflow-opt --emit=launches`.

The report lists, for each op of a planned function:

- its launches;
- the bytes that it reads and writes. Each byte of an operand counts once, also where a stride of 0 repeats it;
- scratch that is written and read again: partial sums, and operands copied for vectorized access;
- its operations;
- a lower bound of its time on the target's device: a roofline (`cost`) of bytes and operations, and launch overhead.

The lower bound is not a prediction. It leaves out repeated reads from the L2 cache, waits, and idle multiprocessors in
the last wave. `programs` and `waves` show how well a launch fills the device: the programs of its largest launch, and
that number divided by the programs that all multiprocessors hold at once, by their limits of blocks and warps.
Registers and shared memory may lower it further.

A sum over kinds of op shows how many bytes are only moved. The lower bound of the whole function reads each argument
once, writes each result once, and computes the matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import LaunchStep, Step
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..emit.triton.build import build_with
from ..emit.triton.program_builder import Builder
from ..ir.cost import Cost, cost_of, rate
from ..ir.cost import seconds as least_seconds
from ..ir.fused import root_of
from ..ir.locations import Source, source_of
from ..ir.ssa import Op, aliases
from ..ir.tables import count_text, ratio, table, time_text
from ..ir.views import VIEW_OPS, Layout
from ..memory.planned import label
from ..targets import Device, Target
from .visual.page import byte_text

#: kinds of op that compute nothing
COPIES = frozenset({"copy", "cast"})

_KINDS = {
    "matmul": "matmul",
    "scaled_matmul": "matmul",
    "convolution": "convolution",
    "convolution_input_grad": "convolution",
    "convolution_weight_grad": "convolution",
    "attention": "attention",
    "attention_grad": "attention",
    "concatenate": "copy",
    "pad": "copy",
    "reverse": "copy",
    "iota": "copy",
    "gather": "index",
    "take": "index",
    "index_add": "index",
    "index_copy": "index",
    "put": "index",
    "reduce": "ATen",
    "aten": "ATen",
}


@record
class Launch:
    """The cost of one op of the program.

    launches: its own, 0 if it shares the launch of another op. read, written: bytes, both with scratch.
    seconds: lower bound of its time on the device, with launch overhead. programs: those of its largest launch.
    waves: `programs` divided by the programs that the device holds at once.
    """

    kind: str
    label: str
    type: str
    launches: int
    read: int
    written: int
    flops: int
    seconds: float
    programs: int
    waves: float
    source: Source

    @property
    def moved(self) -> int:
        """The bytes that the op reads and writes."""
        return self.read + self.written


@record
class LaunchReport:
    """The launches of a program on a device. `str()` gives the text for people.

    bound: the least bytes and operations of any program for this function. bound_seconds: a lower bound of its time.
    """

    name: str
    device: Device
    launches: tuple[Launch, ...]
    arena: int
    bound: Cost
    bound_seconds: float

    @property
    def count(self) -> int:
        """The number of launches."""
        return sum(entry.launches for entry in self.launches)

    @property
    def moved(self) -> int:
        """Bytes that all launches read and write."""
        return sum(entry.moved for entry in self.launches)

    @property
    def copied(self) -> int:
        """The bytes moved by ops that only move data."""
        return sum(entry.moved for entry in self.launches if entry.kind in COPIES)

    @property
    def flops(self) -> int:
        """Floating point operations of all launches."""
        return sum(entry.flops for entry in self.launches)

    @property
    def seconds(self) -> float:
        """The predicted time of all launches, one after the other, in seconds."""
        return sum(entry.seconds for entry in self.launches)

    def __str__(self) -> str:
        head = f"@{self.name} on {self.device.name}: arena {byte_text(self.arena)}\n\n"
        return head + self._kinds() + "\n\n" + self._ops() + "\n"

    def _kinds(self) -> str:
        kinds: dict[str, list[Launch]] = {}
        for entry in self.launches:
            kinds.setdefault(entry.kind, []).append(entry)
        rows: list[tuple[str, ...]] = [
            ("kind", "launches", "read", "written", "operations", "floor", "share")
        ]
        total = self.seconds
        for kind, found in sorted(kinds.items(), key=lambda k: -sum(e.seconds for e in k[1])):
            rows.append((kind, *_sums(found, total)))
        rows.append(("total", *_sums(list(self.launches), total)))
        share = ratio(self.bound_seconds, total)
        rows.append(
            (
                "lower bound", "", byte_text(self.bound.bytes), "", count_text(self.bound.flops),
                time_text(self.bound_seconds), share,
            )
        )  # fmt: skip
        return table(rows, "<>>>>>>")

    def _ops(self) -> str:
        """One row for all ops of equal kind, text and type; slowest rows first."""
        groups: dict[tuple[str, str, str, int], list[Launch]] = {}
        for entry in self.launches:
            groups.setdefault((entry.kind, entry.label, entry.type, entry.moved), []).append(entry)
        head = (
            "ops",
            "launches",
            "read",
            "written",
            "operations",
            "floor",
            "share",
            "programs",
            "waves",
            "op",
            "",
        )
        rows: list[tuple[str, ...]] = [(*head, "first of")]
        total = self.seconds
        for found in sorted(groups.values(), key=lambda g: -sum(e.seconds for e in g)):
            first = found[0]
            what = first.label, first.type, str(first.source)
            fills = (f"{first.programs:,}", f"{first.waves:.1f}") if first.programs else ("", "")
            rows.append((str(len(found)), *_sums(found, total), *fills, *what))
        return table(rows, ">>>>>>>>><<<")


def _sums(found: list[Launch], total: float) -> tuple[str, ...]:
    seconds = sum(e.seconds for e in found)
    return (
        f"{sum(e.launches for e in found):,}",
        byte_text(sum(e.read for e in found)),
        byte_text(sum(e.written for e in found)),
        count_text(sum(e.flops for e in found)),
        time_text(seconds),
        ratio(seconds, total),
    )


def launch_report(function: func.FuncOp, target: Target) -> LaunchReport:
    """The cost of each launch of a planned function.

    Raises:
        CannotLower: the function is not planned, or an op cannot be generated.
    """
    b, device = Builder(function, target), target.device
    program = build_with(b)
    found = []
    for ops, begin, end in b.units:
        for n, o in enumerate(ops):
            own = end - begin if len(ops) == 1 else int(n < end - begin)
            found.append(_launch(b, o, own, device, b.steps[begin:end]))
    bound, seconds = _bound(b, device)
    return LaunchReport(program.name, device, tuple(found), program.arena_bytes, bound, seconds)


def _launch(b: Builder, o: Op, launches: int, device: Device, steps: Sequence[Step]) -> Launch:
    scratch = 0
    if "gflow.scratch" in o.op.attributes:
        scratch = list(ir.DenseI64ArrayAttr(o.op.attributes["gflow.scratch"]))[1]
    loaded, written = _read(b, o) + scratch, _written(b, o) + scratch
    cost = _with_tf32(b.function, o, replace(cost_of(o.op), bytes=loaded + written))
    seconds = least_seconds(cost, device) + (launches - 1) * device.launch
    types = ", ".join(dict.fromkeys(_short(b.body.types[r]) for r in o.results))
    programs, waves = max(
        (_fills(b, s) for s in steps if isinstance(s, LaunchStep)), default=(0, 0.0)
    )
    return Launch(
        kind_of_op(o), label(o), types, launches, loaded, written, cost.flops, seconds, programs, waves,
        source_of(o.op),
    )  # fmt: skip


def _fills(b: Builder, step: LaunchStep) -> tuple[int, float]:
    """The programs of a launch, and that number divided by the programs that the device holds at once."""
    device, config = b.target.device, b.triton[step.kernel].configs[step.config]
    at_once = device.multiprocessors * max(1, min(device.blocks, device.warps // config.num_warps))
    programs = prod(step.grid)
    return programs, programs / at_once


def kind_of_op(o: Op) -> str:
    """The kind of an op: "matmul", "convolution", "attention", "reduction", "pointwise", "index",
    "copy" (moves elements), "cast" (moves and converts them), "ATen"."""
    if o.name != "fused":
        return _KINDS.get(o.name, o.name)
    root = root_of(o.op)
    if root is not None:
        return _KINDS[root.name.removeprefix("gflow.")]
    inner = {op.operation.name.removeprefix("gflow.") for op in o.op.regions[0].blocks[0]}
    inner -= VIEW_OPS | {"yield", "constant", "iota"}
    if "reduce" in inner:
        return "reduction"
    return "pointwise" if inner - {"convert"} else "cast" if inner else "copy"


def _read(b: Builder, o: Op) -> int:
    """The bytes that an op reads. A value that is read through several views counts at most once."""
    if o.name in ("take", "gather"):  # as much as they give, and the indices
        return sum(_unique(b, v) for v in (*o.results, *o.operands[1:]))
    if o.name == "put" and _in_place(b, o):
        return sum(_unique(b, v) for v in o.operands[1:])
    if _adds_in_place(b, o):
        return _written(b, o) + sum(_unique(b, v) for v in o.operands[1:])
    parts: dict[int, dict[tuple[Layout, tuple[int, ...]], int]] = {}
    for n, v in enumerate(o.operands):
        base = b.at[v].base
        key = b.at[v], b.body.types[v].shape
        parts.setdefault(base, {})[key] = min(_unique(b, v), _taken(o, n))
    return sum(min(sum(sizes.values()), b.body.types[base].nbytes) for base, sizes in parts.items())


def _written(b: Builder, o: Op) -> int:
    """The bytes that an op writes. A sum by index in place writes at most as many rows as it adds."""
    if o.name == "put" and _in_place(b, o):
        return _unique(b, o.operands[2])
    if _adds_in_place(b, o):
        return min(_unique(b, o.results[0]), _unique(b, o.operands[2]))
    return sum(_unique(b, r) for r in o.results)


def _adds_in_place(b: Builder, o: Op) -> bool:
    return o.name == "index_add" and _in_place(b, o)


def _in_place(b: Builder, o: Op) -> bool:
    return b.place(o.results[0]) == b.place(o.operands[0])


def _unique(b: Builder, value: int) -> int:
    """The bytes of a value in memory. Elements that a stride of 0 repeats count once."""
    ty = b.body.types[value]
    sizes = zip(ty.shape, b.strides(value))
    return prod(size for size, stride in sizes if stride or not size) * ty.itemsize


def _taken(o: Op, operand: int) -> int:
    """The most bytes of an operand that a kernel can read. If it reads only slices, their sum."""
    if o.name != "fused":
        return 1 << 62
    argument = o.op.regions[0].blocks[0].arguments[operand]
    users = {use.owner.operation for use in argument.uses}
    if any(user.name != "gflow.slice" for user in users):
        return 1 << 62
    return sum(builder.type_of(user.results[0]).nbytes for user in users)


def _with_tf32(function: func.FuncOp, o: Op, cost: Cost) -> Cost:
    """The cost of a float32 product, at the TF32 rate if the function allows TF32."""
    if not cost.contraction or cost.dtype != "f32":
        return cost
    allowed = function.operation.attributes.get("gflow.tf32", None)
    kinds = [] if allowed is None else [ir.StringAttr(kind).value for kind in ir.ArrayAttr(allowed)]
    return replace(cost, dtype="tf32") if kind_of_op(o) in kinds else cost


def _bound(b: Builder, device: Device) -> tuple[Cost, float]:
    """The lower bound: each argument read once, each result written once, each product at the rate of its dtype."""
    body = b.body
    used = {b.at[v].base for o in body.ops for v in o.operands if o.name not in VIEW_OPS}
    moved = sum(_unique(b, v) for v in body.arguments if v in used)
    moved += sum(
        body.types[v].nbytes
        for v, alias in zip(body.returned, aliases(b.function, body))
        if alias is None or v != body.arguments[alias]
    )
    flops, seconds = 0, 0.0
    for o in body.ops:
        if kind_of_op(o) in ("matmul", "convolution", "attention"):
            products = _products(o)
            cost = _with_tf32(b.function, o, products)
            flops += cost.flops
            seconds += cost.flops / rate(cost, device)
    return Cost(moved, flops), max(moved / device.bandwidth, seconds)


def _products(o: Op) -> Cost:
    """The cost of an op's contraction without its epilogue."""
    root = root_of(o.op) if o.name == "fused" else None
    return cost_of(o.op if root is None else root)


def _short(ty: TensorType) -> str:
    return "x".join([*map(str, ty.shape), ty.dtype])
