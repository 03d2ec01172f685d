"""Horizontal fusion: the kernel of pointwise ops that share a launch (`gflow-merge-launches`).

The pointers and sizes of all ops are parameters. A program selects one set by its program id, by a tree of comparisons:

    program 0 … 11 → weight, gradient, momentum of parameter 0; 12 … 13 → those of parameter 1; …
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gflow.compiler.emit.steps import state_reach
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.description import Kernel, describe
from gflow.compiler.kernel.selection.choice import GPU_FIELDS, Choice, choice_of
from gflow.compiler.kernel.selection.gpu.region.merged import is_flat
from gflow.compiler.kernel.selection.gpu.region.tiling import tiling_of
from gflow.compiler.kernel.sizes import cdiv
from gflow.dialects.program import TritonConfig
from gflow.dialects.records import record

from ..language import one_of_many
from ..language.one_of_many import Passed, add_varying, passed
from ..program_builder import Builder, Held, Source
from . import fused
from .render import render
from .writer import Writer

#: a block size that divides no size, so that the last tile is always masked
_RAGGED = TritonConfig({"COLS": (1 << 30) - 1}, 4, 1)

_PROGRAM = "tl.program_id(0)"


@record
class _Member:
    """An op of a launch, and its kernel."""

    o: Op
    k: Kernel
    held: Held


def launch(b: Builder, ops: Sequence[Op]) -> None:
    """Add the launch that ops share.

    Raises:
        CannotLower: their kernels differ in more than arguments, there are too many arguments, or their choices differ.
    """
    for o in ops:
        b.assign(o)
    choice, begin = choice_of(ops[0].op), len(b.steps)
    choice.check_fields(GPU_FIELDS)
    members = [_member(b, o, choice) for o in ops]
    first = members[0].held.source
    for m in members:
        same = (m.held.source.text, m.held.source.parameters) == (first.text, first.parameters)
        choice.check(same, "is of ops whose kernels differ in more than addresses and sizes")
    with b.unit(ops):
        _launch(b, members, choice)
    state_reach(b, ops, begin)


def _member(b: Builder, o: Op, choice: Choice) -> _Member:
    """The op's kernel over one flat dimension."""
    own = choice_of(o.op)
    own.check(own == choice, f"differs from that of another op of its launch ({choice.text()})")
    k = describe(o.op, [b.strides(v) for v in o.operands], [b.strides(v) for v in o.results])
    own.check(is_flat(k), "is for elementwise kernels over one dimension")
    sizes = len(k.sizes)
    own.check(len(own.block) == sizes, f"needs a block of {sizes} sizes")
    configs = (_config(own), _RAGGED) if sizes else (_config(own),)
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    written = render(Writer(k, tiling_of(k), configs, loads, stores), "merged", None)
    return _Member(o, k, Held(written.source, tuple(written.args)))


def _config(choice: Choice) -> TritonConfig:
    return TritonConfig(dict(zip(("COLS",), choice.block)), choice.warps, 1)


def _launch(b: Builder, group: Sequence[_Member], choice: Choice) -> None:
    to, begin = passed([m.held for m in group]), 0
    for number, m in enumerate(group):
        if number:
            to.add(f"begin_{number}", "i32", begin)
        add_varying(to, number, m.held)
        begin += cdiv(m.k.numel, choice.block[0]) if choice.block else 1
    to.add("programs", "i32", begin)
    choice.check(
        to.bytes <= b.target.device.parameters,
        "is of more ops than a launch has room for the parameters of",
    )
    text = _text(group[0].held.source, to, len(group))
    stem = f"merged_{fused._stem(group[0].k)}"
    source = Source(stem, text, to.parameters, (_config(choice),), ("programs",), {})
    b.launch(source, to.args, b.label(group[0].o))


def _text(source: Source, to: Passed, count: int) -> str:
    """The source: the kernel of one op as a device function, and a kernel that selects the op. to: its parameters."""
    names = list(source.parameters)
    head, _, body = source.text.partition("@triton.jit\ndef KERNEL(")
    lines = body.split("):\n", 1)[1].rstrip("\n").replace(_PROGRAM, "program")
    flat = "COLS" in source.configs[0].constants
    signature = ", ".join(["program", *names, *(["COLS: tl.constexpr"] if flat else [])])
    one = f"@triton.jit\ndef one({signature}):\n{lines}\n"
    masked = flat and "cols_in = i0 < n0" in lines
    call = ", ".join([*to.given, *(["COLS"] if flat else [])])
    out = [head.rstrip("\n"), "", "", one]
    if masked:
        whole = re.sub(r", mask=cols_in(?:, other=[^,)]+)?", "", lines).replace(
            "def one", "def whole"
        )
        whole = "\n".join(line for line in whole.split("\n") if "cols_in =" not in line)
        out += ["", f"@triton.jit\ndef whole({signature}):\n{whole}\n"]
    tail = ", COLS: tl.constexpr" if flat else ""
    out += ["", f"@triton.jit\ndef KERNEL({', '.join(to.parameters)}{tail}):"]
    out += ["    program = tl.program_id(0)", *one_of_many.choice(to.varying, 0, count)]
    out.append("    program -= begin")
    if masked:
        out += [
            f"    if program * COLS + COLS <= {to.given[names.index('n0')]}:",
            f"        whole(program, {call})",
            "    else:",
        ]
        out.append(f"        one(program, {call})")
    else:
        out.append(f"    one(program, {call})")
    return "\n".join(out) + "\n"
