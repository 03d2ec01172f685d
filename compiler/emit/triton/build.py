"""Code generation for a GPU: a planned function becomes a `Program` of launches of Triton kernels.

Ops without a Triton kernel are ATen calls, which `graph.explain()` reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby

from gflow.compiler.ir.fused import CONTRACTIONS, root_of
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import check_target
from gflow.compiler.kernel.selection.gpu.product.contraction import contraction_of
from gflow.compiler.targets import Target, parse_target
from gflow.dialects.dialect import make_context
from gflow.dialects.marks import kind_of, launch_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import SHARD, START
from gflow.dialects.ops.structure import CHECK
from gflow.dialects.program import Program

from .. import collectives, steps
from ..collectives import axis_sizes
from ..placement import arguments, results
from .ops import argmax, attention, checks, indexing, movement, pooling, scan_sort
from .product import one_launch
from .product.convolution import convolution
from .product.epilogue import follow
from .product.matmul import matmul
from .program_builder import Builder
from .region import fused, horizontal_fusion


def build_program(function: func.FuncOp, target: Target) -> Program:
    """Generate code for a planned function.

    Raises:
        CannotLower: an op has no address, or no kernel is selected for it, since the pipeline lacks a pass.
    """
    return build_with(Builder(function, target))


def build_with(b: Builder) -> Program:
    """The program of a builder's function. Afterwards, `b.units` has the steps of each op."""
    function = b.function
    check_target(function, b.target)
    for (launch, kind), ops in groupby(b.body.ops, key=_shared):
        if launch is not None:
            if kind == "merged":
                horizontal_fusion.launch(b, [*ops])
            else:
                one_launch.launch(b, [*ops], _contraction)
            continue
        for o in ops:
            with b.unit([o]):
                add_op(b, o)
    return Program(
        name=ir.StringAttr(function.attributes["sym_name"]).value,
        ir="",
        arguments=arguments(b),
        results=results(b),
        steps=b.steps,
        kernels={},
        declarations={},
        arena_bytes=b.arena + b.scratch_bytes,
        constants=b.constants,
        checks=b.checks,
        target=str(b.target),
        mesh=axis_sizes(function),
        first_write=len(b.steps) if b.first_write is None else b.first_write,
        triton=b.triton,
    )


@contextmanager
def built_again(program: Program) -> Iterator[tuple[ir.Module, Builder, Program]]:
    """Generate a program again from its IR.

    Yields the module (valid inside the context), the builder, and the generated program.
    """
    with make_context():
        module = ir.Module.parse(program.ir)
        b = Builder(entry_function(module), parse_target(program.target))
        yield module, b, build_with(b)


def _shared(o: Op) -> tuple[int | None, str]:
    """The number of the launch that an op shares with its neighbours (None: none), and the kind of their kernel."""
    kind = kind_of(o.op)
    shares = kind in ("merged", "product", "depthwise")
    return (launch_of(o.op), kind) if shares else (None, "")


def add_op(b: Builder, o: Op) -> None:
    """Add the steps of an op."""
    steps.add_op(b, o, _BY_CHOICE, "CUDA")


def _fused(b: Builder, o: Op) -> None:
    if root_of(o.op) is None:
        fused.fused(b, o)
    else:
        _contraction(b, o)


def _contraction(b: Builder, o: Op) -> None:
    c = contraction_of(o, b.body, b.at)
    assert c is not None
    op, after = follow(b, o, c)
    add = matmul if c.name in ("matmul", "scaled_matmul") else convolution
    add(b, op, c, after, b.choice)


_Add = Callable[[Builder, Op], None]

_STEPS: Mapping[str, _Add] = {
    "fused": _fused,
    **dict.fromkeys(CONTRACTIONS, _contraction),
    **dict.fromkeys(("iota", "pad", "concatenate", "reverse"), movement.move),
    CHECK: checks.check,
    START: collectives.start,
    SHARD: collectives.shard,
    "aten": scan_sort.call,
    "attention": attention.attention,
    "attention_grad": attention.attention_grad,
    **dict.fromkeys(("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"), pooling.pool),
    "reduce": argmax.position,
    "gather": indexing.gather,
    "take": indexing.take,
    "index_add": indexing.index_add,
    "index_copy": indexing.index_copy,
    "put": indexing.put,
}


def _as_chosen(add: _Add) -> _Add:
    def added(b: Builder, o: Op) -> None:
        with b.chosen(o):
            own = o.name in ("attention", "attention_grad") or not b.choice.library
            b.choice.check(own, "names a library of attention's")
            add(b, o)

    return added


_BY_CHOICE = {name: _as_chosen(add) for name, add in _STEPS.items()}
