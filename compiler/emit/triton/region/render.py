"""The complete kernel of a region: grid, passes and parameters."""

from __future__ import annotations

from collections.abc import Callable

from gflow.dialects.program import Place
from gflow.dialects.records import record

from ..language.device_functions import source
from ..program_builder import Source
from .reductions import write_reductions
from .row_runs import write_runs
from .writer import Scope, Writer


@record
class Written:
    """A source, and the arguments of its launch."""

    source: Source
    args: tuple[int | float | Place, ...]


def render(w: Writer, stem: str, comment: Callable[[], str] | None) -> Written:
    """The kernel of the writer's region.

    w: the writer. stem: the start of the kernel's name. comment: gives the op's text, for readers of the source.
    """
    w.scopes = [Scope(frozenset(), "    ")]
    grid = [w.setup()]
    if w.t.runs:
        write_runs(w)
    elif any(n.op == "reduce" for n in w.k.nodes):
        write_reductions(w)
    else:
        w.write(range(len(w.k.stores)))
    if w.chunk:
        axis = w.t.axis
        grid.append(f"cdiv({w.product(w.axis(axis))}, chunk)")
    blocks = [b for b in ("ROWS", "COLS") if b in w.configs[0].constants]
    names = [*w.parameters, *(f"{b}: tl.constexpr" for b in blocks)]
    head = f"def KERNEL({', '.join(names)}):\n"
    if len(head) > 100:
        head = "def KERNEL(\n" + "".join(f"    {n},\n" for n in names) + "):\n"
    body = "\n".join(w.scopes[0].lines)
    text = source(f"{head}{body}\n", w.used)
    built = Source(
        stem,
        text,
        dict(w.parameters),
        tuple(w.configs),
        tuple(grid),
        {},
        w.hints(),
        comment,
    )
    return Written(built, tuple(w.values[p] for p in w.parameters))
