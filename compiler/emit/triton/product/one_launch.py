"""Grouped GEMM: the kernel of products that share a launch (`gflow-group-products`).

Each program computes one tile of one product, which it selects by its program id:

    program 0 … 71 → the tiles of product 0; 72 … 143 → those of product 1; …
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from gflow.compiler.emit.steps import state_reach
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import Choice, choice_of
from gflow.compiler.kernel.selection.gpu.product.shared import is_shared

from ..language import one_of_many
from ..language.one_of_many import Passed, add_varying, passed
from ..program_builder import Builder, Held, Source

#: the line with which a kernel computes its tile
_PROGRAM = "    program = tl.program_id(0)\n"


def launch(b: Builder, ops: Sequence[Op], add: Callable[[Builder, Op], None]) -> None:
    """Add the launch that ops share. Ops whose choices or sources differ get a launch each.

    add: adds the launch of one op.

    Raises:
        CannotLower: a choice does not suit a shared launch (split-K, persistent programs, copies).
    """
    held: list[tuple[Choice, Op, Held]] = []
    for o in ops:
        choice = choice_of(o.op)
        choice.check(
            is_shared(choice), "is of a product that shares a launch, and not for a whole tile"
        )
        b.assign(o)
        with b.chosen(o), b.holding() as found:
            add(b, o)
        held.append((choice, o, found[0]))
    for _, same in groupby(held, key=lambda entry: (entry[0], *_kernel(entry[2].source))):
        members, begin = [*same], len(b.steps)
        first = members[0][1]
        with b.unit([o for _, o, _ in members]), b.chosen(first):
            b.way(precise=True)  # the tile
            _launch(b, first, [m for _, _, m in members])
        state_reach(b, [o for _, o, _ in members], begin)


def _kernel(source: Source) -> tuple[object, ...]:
    return (
        source.text,
        tuple(source.parameters.items()),
        source.configs,
        source.grid,
        tuple(source.constants.items()),
    )


def _launch(b: Builder, o: Op, group: Sequence[Held]) -> None:
    source = group[0].source
    if len(group) == 1:
        b.launch(source, group[0].args, b.label(o))
        return
    to = passed(group)
    for number, m in enumerate(group):
        add_varying(to, number, m)
    b.choice.check(
        to.bytes <= b.target.device.parameters,
        "is of more products than a launch has room for the parameters of",
    )
    counts = [_of(source.grid[0], source, to, number) for number in range(len(group))]
    hints = source.hints
    if hints is not None:
        hints = frozenset(
            n for n in to.parameters if n in hints or _stem(n) in hints & {*to.varying}
        )
    b.launch(
        replace(
            source, stem=f"grouped_{source.stem}", text=_text(source, to, counts), parameters=to.parameters,
            grid=(" + ".join(counts),), hints=hints,
        ),
        to.args, b.label(o),
    )  # fmt: skip


def _stem(name: str) -> str:
    return name.rpartition("_")[0]


def _of(text: str, source: Source, to: Passed, number: int) -> str:
    """An expression over the parameters of launch `number`."""
    given = dict(zip(source.parameters, to.given))

    def named(found: re.Match[str]) -> str:
        name = given.get(found[0], found[0])
        return f"{name}_{number}" if name in to.varying else name

    return re.sub(r"\b[a-zA-Z_]\w*", named, text)


def _text(source: Source, to: Passed, counts: Sequence[str]) -> str:
    """The source: the kernel of one product as a device function, and a kernel that selects the product."""
    names = list(source.parameters)
    constants = [*source.configs[0].constants, *source.constants]
    head, _, body = source.text.partition("@triton.jit\ndef KERNEL(")
    lines = body.split("):\n", 1)[1].rstrip("\n").replace(_PROGRAM, "", 1)
    known = [f"{n}: tl.constexpr" for n in constants]
    begins = []
    for number, count in enumerate(counts[:-1]):
        before = f"begin_{number} + " if number else ""
        begins.append(f"    begin_{number + 1} = {before}{count.replace('cdiv', 'tl.cdiv')}")
    return "\n".join(
        [
            head.rstrip("\n"), "", "",
            f"@triton.jit\ndef one({', '.join(['program', *names, *known])}):",
            lines, "", "",
            f"@triton.jit\ndef KERNEL({', '.join([*to.parameters, *known])}):",
            _PROGRAM.rstrip("\n"), *begins, *one_of_many.choice(to.varying, 0, len(counts)),
            f"    one({', '.join(['program - begin', *to.given, *constants])})", "",
        ]
    )  # fmt: skip
