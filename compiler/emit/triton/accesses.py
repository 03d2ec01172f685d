"""The memory that each step of a GPU program reads and writes, from its IR."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op, aliases
from gflow.compiler.memory.in_place import OVERWRITES, adds_in_place, reads_where_it_writes
from gflow.compiler.memory.results import owners
from gflow.dialects.mlir import ir
from gflow.dialects.program import LaunchStep, Place, Program, Step
from gflow.dialects.program.accesses import Access, Accesses, Unit

from .build import built_again
from .program_builder import Builder


def accesses(program: Program) -> Accesses:
    """The accesses of a program. The program is generated again from its IR to find them.

    Raises:
        ValueError: the generated steps differ from those of the program.
    """
    with built_again(program) as (_, b, again):
        if [_plain(s) for s in again.steps] != [_plain(s) for s in program.steps]:
            raise ValueError(f"the IR of {program.name} comes to other steps than the program has")
        units = tuple(_unit(b, *unit) for unit in b.units)
        found = [(v, p.index) for v, p in b.places.items() if p.space == "constant"]
        target = aliases(b.function, b.body)
        returned = [
            (v, Place("result", n, 0) if alias is None else Place("arg", alias, 0))
            for n, (v, alias) in enumerate(zip(owners(b.body, b.at, target), target))
        ]
        return Accesses(
            units,
            tuple(b.body.arguments),
            tuple(v for v, _ in sorted(found, key=lambda entry: entry[1])),
            tuple(returned),
        )


def _plain(step: Step) -> Step | tuple[object, ...]:
    """A step without the parameters that autotuning chooses, for comparison."""
    return (step.kernel, step.args, step.label) if isinstance(step, LaunchStep) else step


def _unit(b: Builder, ops: tuple[Op, ...], begin: int, end: int) -> Unit:
    reads: list[Access] = []
    writes: list[Access] = []
    scratch: list[tuple[int, int]] = [(b.arena, b.arena + b.scratch_bytes)]
    in_place: set[tuple[int, int]] = set()
    for o in ops:
        first = len(reads)
        reads += [Access(b.at[v].base, b.ref(v)) for v in o.operands]
        for n, r in enumerate(o.results):
            if o.name in OVERWRITES or adds_in_place(o.op):
                in_place |= {
                    (first + i, len(writes))
                    for i in range(len(o.operands))
                    if reads_where_it_writes(o.op, i, n)
                }
            writes.append(Access(b.at[r].base, b.ref(r)))
        if "gflow.scratch" in o.op.attributes:
            offset, size = ir.DenseI64ArrayAttr(o.op.attributes["gflow.scratch"])
            scratch.append((offset, offset + size))
    return Unit(begin, end, tuple(reads), tuple(writes), tuple(scratch), frozenset(in_place))
