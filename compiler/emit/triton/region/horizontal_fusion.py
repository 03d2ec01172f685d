"""Pointwise kernels that stand next to each other and don't meet in memory become one launch.

So the updates of all parameters, which `gflow-merge-updates` moves together, take a few launches. Each program
finds its tensor by its number: the pointers and sizes of all of them are parameters, from which a tree of
comparisons takes one set.

    program 0 … 11 → weight, gradient, momentum of parameter 0; 12 … 13 → those of parameter 1; …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gflow.compiler.emit.steps import state_reach
from gflow.compiler.ir.contractions import root_of
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Op, fused_kind
from gflow.compiler.ir.views import IN_PLACE
from gflow.compiler.kernel.description import Kernel, describe
from gflow.compiler.kernel.selection.choice import choice_of
from gflow.compiler.kernel.selection.gpu.block_sizes import busy
from gflow.compiler.kernel.selection.gpu.region import ways_of_kernel
from gflow.compiler.kernel.selection.gpu.tiling import Tiling, tiling_of
from gflow.compiler.kernel.sizes import cdiv, extent
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.types import COMPLEX, TensorType

from ..program_builder import Builder, Source
from . import fused
from .render import render
from .writer import Writer

#: elements of a program, at least and at most; threads of one
_BLOCK, _MOST_BLOCK, _THREADS = 1024, 4096, 128
#: bytes that a thread should have on their way: the parameters of all tensors take registers, and leave fewer threads
_ON_WAY = 128
#: has no size that is a multiple of it: there may always be a last tile that is not full
_RAGGED = TritonConfig({"COLS": (1 << 30) - 1}, 4, 1)
#: bytes of parameters of a launch; drivers before CUDA 12.1 take 4,096, and a tree over more spills its pointers
_PARAMETER_BYTES = 4_000
#: an op of more elements gains nothing by sharing a launch, and has a kernel made for its size
_MOST = 1 << 26

#: fewer don't pay for a kernel of their own, which has to be compiled
_LEAST = 4

_PROGRAM = "tl.program_id(0)"


@dataclass(frozen=True)
class _Member:
    """An op of a launch: its kernel, and what it would pass if it were alone."""

    o: Op
    k: Kernel
    source: Source
    args: tuple[int | float | Place, ...]

    def programs(self, block: int) -> int:
        """Those that take so many elements each."""
        return cdiv(self.k.numel, block)


def candidate(b: Builder, o: Op) -> bool:
    """Whether an op may share a launch: a fused one without a contraction."""
    attributes = o.op.attributes
    planned = "gflow.buffers" in attributes and IN_PLACE not in attributes
    return o.name == "fused" and planned and root_of(o.op) is None


class Window:
    """Neighbouring ops that don't meet: none writes what another one reads or writes."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.members: list[_Member] = []
        self.reads: list[_Range] = []
        self.writes: list[_Range] = []

    def take(self, o: Op) -> bool:
        """Add an op whose results have their places; False if it can't run side by side with the others."""
        reads = [_range(self.b, v) for v in o.operands]
        writes = [_range(self.b, v) for v in o.results]
        if any(_meet(w, x) for w in writes for x in (*self.reads, *self.writes)):
            return False
        if any(_meet(r, w) for r in reads for w in self.writes):
            return False
        member = _member(self.b, o)
        if member is None:
            return False
        self.members.append(member)
        self.reads += reads
        self.writes += writes
        return True

    def flush(self) -> None:
        """Add the launches of the ops so far."""
        groups: dict[tuple[str, str], list[_Member]] = {}
        for m in self.members:
            groups.setdefault((m.source.text, str(m.source.parameters)), []).append(m)
        begin, ops = len(self.b.steps), [m.o for m in self.members]
        with self.b.unit(ops):
            for group in groups.values():
                parts = _parts(group) if len(group) >= _LEAST else [[m] for m in group]
                for part in parts:
                    _launch(self.b, part)
        state_reach(self.b, ops, begin)
        self.members, self.reads, self.writes = [], [], []


#: space, index, first byte, byte after the last
_Range = tuple[str, int, int, int]


def _range(b: Builder, value: int) -> _Range:
    place, ty = b.place(value), b.body.types[value]
    size = extent(ty.shape, b.strides(value)) * ty.itemsize
    return place.space, place.index, place.offset, place.offset + size


def _meet(a: _Range, b: _Range) -> bool:
    return a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3]


def _member(b: Builder, o: Op) -> _Member | None:
    """The op's kernel over one flat dimension; None if it has another."""
    if fused_kind(o.op) in ("row", "column"):
        return None
    try:
        k = describe(o.op, [b.strides(v) for v in o.operands], [b.strides(v) for v in o.results])
    except CannotLower:
        return None
    if len(k.sizes) > 1 or k.numel > _MOST or any(n.op == "reduce" for n in k.nodes):
        return None
    if any(access.dtype in COMPLEX for access in (*k.loads, *k.stores)):
        return None
    if list(choice_of(o.op).ways) != ways_of_kernel(
        k, len(o.operands), len(o.results), b.target.device
    ):
        return None  # it has been edited, and runs as it says
    t = tiling_of(k)
    if t not in (Tiling((), 0, ()), Tiling((), -1, ())):
        return None
    flat = t.cols >= 0
    configs = (TritonConfig({"COLS": _BLOCK}, 4, 1), _RAGGED) if flat else (TritonConfig({}, 1, 1),)
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    written = render(Writer(k, t, configs, loads, stores), "merged", None)
    if len(written.source.grid) != 1:
        return None
    return _Member(o, k, written.source, written.args)


def _block(b: Builder, group: Sequence[_Member]) -> int:
    """Elements of a program: enough loads for a thread, if there are elements enough."""
    moved = sum(TensorType((), a.dtype).itemsize for a in group[0].k.loads if any(a.strides))
    total = sum(m.k.numel for m in group)
    block = _BLOCK
    while (
        block < _MOST_BLOCK
        and 2 * block * moved <= _ON_WAY * _THREADS
        and total >= 2 * block * busy(b.target.device)
    ):
        block *= 2
    return block


def _parts(group: Sequence[_Member]) -> Iterator[list[_Member]]:
    """Runs whose parameters fit a launch, of one length but for the last."""
    names = list(group[0].source.parameters)
    bytes_each = 4 + 8 * len(_varying(group))
    most = max(1, (_PARAMETER_BYTES - 8 * (len(names) + 2)) // bytes_each)
    launches = cdiv(len(group), most)
    length = cdiv(len(group), launches)
    for start in range(0, len(group), length):
        yield list(group[start : start + length])


def _varying(group: Sequence[_Member]) -> list[int]:
    """The parameters, by number, that differ between members, and are not always the same as an earlier one."""
    first, same = group[0], _same(group)
    return [
        i
        for i in range(len(first.args))
        if same[i] == i and any(m.args[i] != first.args[i] for m in group)
    ]


def _same(group: Sequence[_Member]) -> list[int]:
    """For each parameter the first one that has its value in every member: what is updated is read, too."""
    kinds = list(group[0].source.parameters.values())
    columns = [tuple(m.args[i] for m in group) for i in range(len(kinds))]
    return [
        next(j for j in range(i + 1) if columns[j] == columns[i] and kinds[j] == kinds[i])
        for i in range(len(kinds))
    ]


def _launch(b: Builder, group: list[_Member]) -> None:
    if len(group) == 1:
        with b.chosen(group[0].o):
            fused.fused(b, group[0].o)
        return
    first = group[0].source
    names = list(first.parameters)
    varying, same = _varying(group), _same(group)
    common = [i for i in range(len(names)) if same[i] == i and i not in varying]
    parameters = {names[i]: first.parameters[names[i]] for i in common}
    args: list[int | float | Place] = [group[0].args[i] for i in common]
    begin, block = 0, _block(b, group)
    for number, m in enumerate(group):
        if number:
            parameters[f"begin_{number}"] = "i32"
            args.append(begin)
        for i in varying:
            parameters[f"{names[i]}_{number}"] = first.parameters[names[i]]
            args.append(m.args[i])
        begin += m.programs(block)
    parameters["programs"] = "i32"
    args.append(begin)
    given = [names[i] for i in same]
    text = _text(first, given, [names[i] for i in varying], len(group), list(parameters))
    config = first.configs[0]
    if config.constants:
        config = replace(config, constants={"COLS": block})
    stem = f"merged_{fused._stem(group[0].k)}"
    source = Source(stem, text, parameters, (config,), ("programs",), {})
    b.launch(source, args, b.label(group[0].o))


def _text(
    source: Source, given: list[str], varying: list[str], count: int, parameters: list[str]
) -> str:
    """The kernel of one tensor as a function, and a kernel that chooses the tensor.

    given: what is passed for each parameter of the first one.
    """
    names = list(source.parameters)
    head, _, body = source.text.partition("@triton.jit\ndef KERNEL(")
    lines = body.split("):\n", 1)[1].rstrip("\n").replace(_PROGRAM, "program")
    flat = "COLS" in source.configs[0].constants
    signature = ", ".join(["program", *names, *(["COLS: tl.constexpr"] if flat else [])])
    one = f"@triton.jit\ndef one({signature}):\n{lines}\n"
    masked = flat and "cols_in = i0 < n0" in lines
    call = ", ".join([*given, *(["COLS"] if flat else [])])
    out = [head.rstrip("\n"), "", "", one]
    if masked:
        whole = re.sub(r", mask=cols_in(?:, other=[^,)]+)?", "", lines).replace(
            "def one", "def whole"
        )
        whole = "\n".join(line for line in whole.split("\n") if "cols_in =" not in line)
        out += ["", f"@triton.jit\ndef whole({signature}):\n{whole}\n"]
    tail = ", COLS: tl.constexpr" if flat else ""
    out += ["", f"@triton.jit\ndef KERNEL({', '.join(parameters)}{tail}):"]
    out += ["    program = tl.program_id(0)", *_choice(varying, 0, count, 1)]
    out.append("    program -= begin")
    if masked:
        out += [
            f"    if program * COLS + COLS <= {given[names.index('n0')]}:",
            f"        whole(program, {call})",
            "    else:",
        ]
        out.append(f"        one(program, {call})")
    else:
        out.append(f"    one(program, {call})")
    return "\n".join(out) + "\n"


def _choice(varying: list[str], low: int, high: int, depth: int) -> list[str]:
    """Lines that choose among tensors low … high by the program's number."""
    indent = "    " * depth
    if high - low == 1:
        begin = f"begin_{low}" if low else "program * 0"
        return [f"{indent}begin = {begin}", *(f"{indent}{n} = {n}_{low}" for n in varying)]
    middle = (low + high) // 2
    return [
        f"{indent}if program < begin_{middle}:",
        *_choice(varying, low, middle, depth + 1),
        f"{indent}else:",
        *_choice(varying, middle, high, depth + 1),
    ]
