"""The launches of a fused region: one, or several where programs share a reduction."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gflow.compiler.emit.steps import nothing
from gflow.compiler.ir.ssa import Op
from gflow.compiler.ir.views import row_of
from gflow.compiler.kernel.description import Kernel, describe, with_rows
from gflow.compiler.kernel.selection.gpu.region.launches import launches
from gflow.compiler.kernel.selection.gpu.region.split_reductions import Scratch
from gflow.dialects.mlir import ir
from gflow.dialects.program import Place

from ..program_builder import Builder
from .render import render
from .writer import Writer

#: ops that are left out of kernels' names
_UNTOLD = frozenset({"load", "const", "index", "convert", "select", "compare", "reduce"})


def fused(b: Builder, o: Op) -> None:
    """Add the launches of a `gflow.fused` without a contraction."""
    if nothing(b, o):
        return
    k = describe(o.op, [b.strides(v) for v in o.operands], [b.strides(v) for v in o.results])
    k = with_rows(k, *([row_of(b.body, b.at, v) for v in vs] for vs in (o.operands, o.results)))
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    b.choice.check(b.choice.kind == "region", "is not for a region")
    launch(b, k, loads, stores, b.label(o), lambda: readable(o.op))


#: attributes that are left out of comments: places and kernel choices
_PLACES = re.compile(
    r"gflow\.kernel = \{(?:[^{}]|\{[^{}]*\})*\}(?:, )?|"
    r"gflow\.group = \"[^\"]*\"(?:, )?|"
    r"(?:gflow\.buffers|gflow\.scratch|kind|operandSegmentSizes|resultSegmentSizes) = "
    r"(?:array<[^>]*>|\[[^\]]*\]|\"(?:pointwise|row|column)\")(?:, )?"
)


def readable(op: ir.Operation) -> str:
    """An op's text for a comment, without attributes of places and kernel choices."""
    text = _PLACES.sub("", op.get_asm(assume_verified=True, use_local_scope=True))
    names = iter(f"%x{n}" for n in range(len(op.operands)))
    text = re.sub(
        "<<UNKNOWN SSA VALUE>>", lambda _: next(names), text
    )  # values that are defined outside of the op
    return re.sub(r",? ?(?<!\()\{\}(?!\))| ?\{, *\}", "", text)


def launch(
    b: Builder,
    k: Kernel,
    loads: Sequence[Place],
    stores: Sequence[Place],
    label: str,
    comment: Callable[[], str] | None = None,
) -> None:
    """Add the launches of kernel `k`.

    loads, stores: addresses by number of operand and result. comment: gives the IR that it comes from.
    """
    space = Scratch(b.scratch(0, wanted=False))
    for m in launches(k, loads, stores, b.target.device, space, b.way):
        writer = Writer(m.k, m.tiling, m.configs, m.loads, m.stores, m.pieces, m.chunk, m.stages)
        written = render(writer, _stem(m.k), comment)
        b.launch(written.source, written.args, label)
    b.scratch(space.used, space.used > 0)


def _stem(k: Kernel) -> str:
    """The start of a kernel's name: its loop structure and its last characteristic ops."""
    reduces = [n.attrs["kind"] for n in k.nodes if n.op == "reduce"]
    names = [n.op for n in reversed(k.nodes) if n.op not in _UNTOLD]
    telling = list(dict.fromkeys([*reduces, *names]))[:3]
    mode = "pointwise" if not reduces else "reduce"
    return "_".join([mode, *reversed(telling)])
