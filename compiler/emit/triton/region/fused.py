"""Kernels of fused regions: one launch, or a few where programs share a reduction."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.description import Kernel, describe
from gflow.dialects.mlir import ir
from gflow.dialects.program import Place
from gflow.dialects.types import COMPLEX

from ..program_builder import Builder
from .block_sizes import configs_of
from .render import render
from .row_runs import partial_stores, run_of
from .split_reductions import Scratch, pieces_of, stages
from .tiling import Tiling, tiling_of
from .writer import Writer

#: ops that say nothing about what a kernel is for
_UNTOLD = frozenset({"load", "const", "index", "convert", "select", "compare", "reduce"})


def fused(b: Builder, o: Op) -> None:
    """The launches of a `gflow.fused` without a contraction."""
    k = describe(o.op, [b.strides(v) for v in o.operands], [b.strides(v) for v in o.results])
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    launch(b, k, loads, stores, b.label(o), lambda: readable(o.op))


#: attributes that say where things are, not what they are
_PLACES = re.compile(
    r"(?:gflow\.buffers|gflow\.scratch|kind|operandSegmentSizes|resultSegmentSizes) = "
    r"(?:array<[^>]*>|\[[^\]]*\]|\"(?:pointwise|row|column)\")(?:, )?"
)


def readable(op: ir.Operation) -> str:
    """An op's text without what only the bindings need."""
    text = _PLACES.sub("", op.get_asm(assume_verified=True, use_local_scope=True))
    names = iter(f"%x{n}" for n in range(len(op.operands)))
    text = re.sub("<<UNKNOWN SSA VALUE>>", lambda _: next(names), text)  # they stand elsewhere
    return re.sub(r",? ?(?<!\()\{\}(?!\))| ?\{, *\}", "", text)


def launch(
    b: Builder,
    k: Kernel,
    loads: Sequence[Place],
    stores: Sequence[Place],
    label: str,
    comment: Callable[[], str] | None = None,
    space: Scratch | None = None,
) -> None:
    """Add the launches of kernel `k`; places by operand and result number.

    comment: the IR that it comes from, for whoever reads the source.
    space: the op's scratch, if some of it is taken.
    """
    reducing = any(n.op == "reduce" for n in k.nodes)
    if k.numel == 0 and not reducing:
        return
    if any(access.dtype in COMPLEX for access in (*k.loads, *k.stores)):
        raise CannotLower(f"there are no kernels on complex numbers: {label}")
    t = tiling_of(k)
    if t.runs:
        _one(b, k, t, loads, stores, label, comment, partial_stores(k), run_of(k))
        return
    count = pieces_of(k, t, b.target.device) if reducing else 1
    if count <= 1:
        _one(b, k, t, loads, stores, label, comment)
        return
    space = space or Scratch(b)
    for s in stages(space, k, t, count, tuple(loads), tuple(stores)):
        if s.shared:
            _one(b, s.k, s.shared, s.loads, s.stores, label, comment, s.pieces, s.chunk)
        else:
            launch(b, s.k, s.loads, s.stores, label, comment, space)


def _one(
    b: Builder,
    k: Kernel,
    t: Tiling,
    loads: Sequence[Place],
    stores: Sequence[Place],
    label: str,
    comment: Callable[[], str] | None,
    pieces: frozenset[int] = frozenset(),
    chunk: int = 0,
) -> None:
    writer = Writer(k, t, configs_of(k, t, b.target.device), loads, stores, pieces, chunk)
    written = render(writer, _stem(k), comment)
    b.launch(written.source, written.args, label)


def _stem(k: Kernel) -> str:
    """A readable start for a kernel's name: how it walks, and its last telling ops."""
    reduces = [n.attrs["kind"] for n in k.nodes if n.op == "reduce"]
    names = [n.op for n in reversed(k.nodes) if n.op not in _UNTOLD]
    telling = list(dict.fromkeys([*reduces, *names]))[:3]
    mode = "pointwise" if not reduces else "reduce"
    return "_".join([mode, *reversed(telling)])
