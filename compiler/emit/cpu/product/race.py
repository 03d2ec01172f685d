"""Programs of one step each for a timed comparison of two products: gflow's own kernel and the BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gflow.compiler.kernel.blocks import Blocks, Problem
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.cpu.sharing import of_product, shared_from
from gflow.dialects.program import Argument, KernelStep, Place, Program, Result, Step
from gflow.dialects.program.form import seal
from gflow.dialects.types import TensorType

from ..declarations import declarations
from . import gemm, own


class _Steps:
    """A list of steps that is not part of a program's builder."""

    def __init__(self) -> None:
        self.kernels: dict[str, str] = {}
        self.externals: set[str] = set()
        self.declared: dict[str, str] = {}
        self.steps: list[Step] = []


_PLACES = [Place("arg", 0, 0), Place("arg", 1, 0), Place("result", 0, 0)]


def programs(contest: Contest, blocks: Blocks, threads: int) -> dict[str, Program]:
    """The programs by kind of kernel, "panels" and "blas". Their inputs are A and B."""
    p, places = contest.product, _PLACES
    types, strides = _operands(contest)
    arguments = [
        Argument("input", name, ty, s) for name, ty, s in zip("ab", types[:2], strides[:2])
    ]
    found = {}
    for kind in ("panels", "blas"):
        b, scratch = _Steps(), 0
        if kind == "panels":
            scratch = blocks.scratch(threads)
            _own(b, p, blocks, places, strides)
        else:
            name = gemm.add_function(b, "f32")
            for words, parallel in gemm.words(places, types, strides):
                b.steps.append(KernelStep(name, words, parallel, kind))
        sizes_of = [ty.nbytes for ty in types] + ([scratch] if scratch else [])
        b.steps = [_reaching(s, sizes_of) for s in b.steps if isinstance(s, KernelStep)]
        made = Program(
            f"product_by_{kind}", "", arguments, [Result("c", types[2], None)], b.steps, b.kernels,
            declarations(b.externals, b.declared), scratch, max_threads=threads, first_write=len(b.steps),
        )  # fmt: skip
        made.seal = seal(made)
        found[kind] = made
    return found


def functions(contest: Contest, blocks: Blocks) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the functions of gflow's own kernel, and the declarations of what they call, by name."""
    b = _Steps()
    _own(b, contest.product, blocks, _PLACES, _operands(contest)[1])
    return b.kernels, declarations(b.externals, b.declared)


def _operands(contest: Contest) -> tuple[list[TensorType], list[tuple[int, ...]]]:
    """The types and the strides of A, B and the result."""
    p = contest.product
    batch = (p.batch,) if p.batch > 1 else ()
    types = [
        TensorType((*batch, *shape), "f32")
        for shape in ((p.rows, p.k), (p.k, p.columns), (p.rows, p.columns))
    ]
    transposed = (contest.a == "lanes", contest.b == "k", False)
    return types, [_strides(ty, turned) for ty, turned in zip(types, transposed)]


def _own(
    b: _Steps,
    p: Problem,
    blocks: Blocks,
    places: Sequence[Place],
    strides: Sequence[tuple[int, ...]],
) -> None:
    """Add the step of gflow's own kernel."""
    x, y, z = (
        own.Operand(place, s[-2], s[-1], s[0] if p.batch > 1 else 0)
        for place, s in zip(places, strides)
    )
    sizes = (p.rows, p.columns, p.k)
    shared = shared_from(of_product(p.batch, *sizes))
    scratch = Place("arena", 0, 0)
    own.product(b, blocks, (x, y, z), sizes, scratch, "panels", shared, batch=p.batch)


def _strides(ty: TensorType, transposed: bool) -> tuple[int, ...]:
    *batch, rows, columns = ty.shape
    inner = (1, rows) if transposed else (columns, 1)
    return (*(rows * columns for _ in batch), *inner)


def _reaching(step: KernelStep, sizes: list[int]) -> KernelStep:
    return replace(step, reach=tuple(sizes))
