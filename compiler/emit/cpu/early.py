"""Kernels that code generation will emit whatever later passes do, so that threads compile them while passes run.

The text of attention and of products depends on the processor and on a form, not on sizes, addresses or epilogues. It
is known of a function once its ops have their types: about two thirds of the text that a transformer's step needs. A
kernel that is not used after all (a timed comparison prefers the library) has cost a thread some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.cpu.attention import NEEDED, blocks_of, contest_of
from gflow.compiler.kernel.selection.cpu.blocking import cut
from gflow.compiler.kernel.selection.cpu.contraction import Contraction
from gflow.compiler.kernel.selection.cpu.products import Products
from gflow.compiler.targets.processors import PROCESSORS
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, row_major_strides, type_of

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
    made = []
    ops = [*_read(function)]
    contests = dict.fromkeys(contest_of(o, types) for o, types in ops if o.name in NEEDED)
    for contest in contests:
        if contest is not None:
            types = contest.types()
            blocks = blocks_of(processor, types["q"], types["k"], threads, contest.grad)
            made.append(attention.functions(contest, blocks))
    forms = {}
    for asked, own in _products(ops, Products(threads, blas, processor)):
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


def _read(function: func.FuncOp) -> Iterator[tuple[Op, list[TensorType]]]:
    """The products and the attention of a function, each with the types of its operands and results, which it counts.

    To read all ops with their layouts takes 20 to 40 ms more.
    """
    for index, view in enumerate(function.regions[0].blocks[0].operations):
        op = view.operation
        name = op.name.removeprefix("gflow.")
        if name == "matmul" or name in NEEDED:
            given = len(op.operands)
            types = [type_of(v) for v in (*op.operands, *op.results)]
            yield Op(index, op, name, [*range(given)], [*range(given, len(types))]), types


def _products(
    ops: Sequence[tuple[Op, list[TensorType]]], products: Products
) -> Iterator[tuple[Contest, bool]]:
    """The float32 products that gflow's own kernel and the BLAS can both compute, and whether the own one is taken."""
    for o, types in ops:
        if o.name == "matmul" and all(ty.dtype == "f32" for ty in types):
            values = (*o.op.operands, *o.op.results)
            strides = [_strides(v, ty) for v, ty in zip(values, types)]
            products.asked.clear()
            with suppress(CannotLower):  # it says so when the op's kernel is selected
                products.choose(Contraction(o.op, o.operands, types, strides))
            yield from products.asked


def _strides(value: ir.Value, ty: TensorType) -> tuple[int, ...]:
    """The strides that a matrix will have: a transpose is read in place."""
    op, strides = value.owner, row_major_strides(ty.shape)
    if isinstance(op, ir.Block) or op.name != "gflow.transpose":
        return strides
    order, outer = tuple(ir.DenseI64ArrayAttr(op.attributes["permutation"])), len(ty.shape) - 2
    if order != (*range(outer), outer + 1, outer):
        return strides
    return (*strides[:outer], 1, ty.shape[outer])
