"""Kernels that code generation will emit whatever later passes do, so that threads compile them while passes run.

The text of attention and of products depends on the processor and on a form, not on sizes, addresses or epilogues. It
is known of a function once its ops have their types: about two thirds of the text that a transformer's step needs. A
kernel that is not used after all (a timed comparison prefers the library) has cost a thread some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Body
from gflow.compiler.ir.views import Layout
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.cpu.attention import NEEDED, blocks_of, contest_of
from gflow.compiler.kernel.selection.cpu.blocking import cut
from gflow.compiler.kernel.selection.cpu.contraction import Contraction
from gflow.compiler.kernel.selection.cpu.products import Products
from gflow.compiler.memory.liveness import layouts_at_entry
from gflow.compiler.targets.processors import PROCESSORS
from gflow.dialects.mlir import func

from .attention import race as attention
from .product import race as product

#: characters of the least text that a thread begins with: a module takes LLVM 10 ms by itself
_LEAST = 50_000


def early_kernels(
    function: func.FuncOp, threads: int, blas: bool, isa: str
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the kernels of a function's float32 products and attention, and the declarations of what they call,
    by name; none where these are too few.

    Args:
        function: the function, which no later pass changes the element types of.
        threads, blas, isa: as for the selection of kernels.
    """
    processor = PROCESSORS.get(isa)
    if processor is None:
        return {}, {}
    body, at = layouts_at_entry(function)
    made = []
    contests = dict.fromkeys(contest_of(o, body.types) for o in body.ops if o.name in NEEDED)
    for contest in contests:
        if contest is not None:
            types = contest.types()
            blocks = blocks_of(processor, types["q"], types["k"], threads, contest.grad)
            made.append(attention.functions(contest, blocks))
    forms = {}
    for asked, own in _products(body, at, Products(threads, blas, processor)):
        if own:
            found = cut(processor, asked, threads)
            forms[asked.a, asked.b, found.tile, found.packed, found.apart] = asked, found
    made += [product.functions(*form) for form in forms.values()]
    kernels: dict[str, str] = {}
    declared: dict[str, str] = {}
    for texts, names in made:
        kernels |= texts
        declared |= names
    return (kernels, declared) if sum(map(len, kernels.values())) >= _LEAST else ({}, {})


def _products(
    body: Body, at: Sequence[Layout], products: Products
) -> Iterator[tuple[Contest, bool]]:
    """The float32 products that gflow's own kernel and the BLAS can both compute, and whether the own one is taken."""
    for o in body.ops:
        types = [body.types[v] for v in (*o.operands, *o.results)]
        if o.name == "matmul" and all(ty.dtype == "f32" for ty in types):
            strides = [at[v].strides for v in (*o.operands, *o.results)]
            products.asked.clear()
            with suppress(CannotLower):  # it says so when the op's kernel is selected
                products.choose(Contraction(o.op, o.operands, types, strides))
            yield from products.asked
