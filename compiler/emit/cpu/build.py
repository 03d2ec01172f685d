"""Code generation for a CPU: a planned function becomes a `Program`.

Each op becomes one or a few steps: a generated kernel, a BLAS call, or an ATen call for ops without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import groupby

from gflow.compiler.ir.fused import root_of
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import CPU_FIELDS, check_target, choice_of
from gflow.compiler.kernel.selection.cpu.chooser import OTHERS
from gflow.compiler.kernel.selection.cpu.loops import runs
from gflow.compiler.kernel.selection.cpu.other_ops import MOVEMENT
from gflow.compiler.targets import Target
from gflow.dialects.marks import KERNEL, launch_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import SHARD, START
from gflow.dialects.ops.structure import CHECK, ENGINE
from gflow.dialects.program import KernelGroup, KernelStep, OnKernels, Program

from .. import aten_ops, aten_pooling, collectives, engine_regions, steps
from ..collectives import axis_sizes
from ..placement import arguments, results
from . import checks, indexing, movement, pooling
from .declarations import declarations
from .product import halves, quantized
from .product.convolutions import convolution
from .product.epilogue import Epilogue, split
from .product.packed import steps as packed
from .program_builder import Builder


def build_program(
    function: func.FuncOp, *, threads: int, blas: bool,
    on_kernels: OnKernels | None = None, begun: Collection[str] = (),
) -> Program:  # fmt: skip
    """Generate code for a planned function.

    Args:
        function: the function, after `gflow-plan-memory`.
        threads: the most threads that kernels run on.
        blas: whether the runtime found BLAS functions that generated code can call.
        on_kernels: called with kernels and the declarations of what they call, by name, as soon as there are many.
        begun: the names of those that it has been called with before.

    Raises:
        CannotLower: an op has no address or no CPU kernel, since the pipeline lacks a pass.
    """
    check_target(function, Target("cpu"))
    b = Builder(function, threads, blas, begun)
    for launch, ops in groupby(b.body.ops, key=lambda o: launch_of(o.op)):
        first = len(b.steps)
        for o in ops:
            add_op(b, o)
            if on_kernels is not None and (made := b.new_kernels()):
                on_kernels(made, declarations(b.externals, b.declared))
        if launch is not None:
            _merge(b, first)
    return Program(
        name=ir.StringAttr(function.attributes["sym_name"]).value,
        ir="",
        arguments=arguments(b),
        results=results(b),
        steps=b.steps,
        kernels=b.kernels,
        declarations=declarations(b.externals, b.declared),
        arena_bytes=b.arena + b.scratch_bytes,
        constants=b.constants,
        checks=b.checks,
        max_threads=threads,
        mesh=axis_sizes(function),
        first_write=len(b.steps) if b.first_write is None else b.first_write,
    )


#: the kinds of choices of ops that gflow's own kernel and an ATen call both support
_BOTH: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("attention", "attention_grad"), ("attention", "attention_rows")),
    **dict.fromkeys(("take", "max_pool", "max_pool_grad"), ("pytorch",)),
}

# -- ops


def _merge(b: Builder, first: int) -> None:
    """Merge the steps from number `first` on into one `KernelGroup`, if all of them are kernels."""
    members = [s for s in b.steps[first:] if isinstance(s, KernelStep)]
    if len(members) > 1 and len(members) == len(b.steps) - first:
        label = f"{len(members)} kernels, first {members[0].label}"
        b.steps[first:] = [KernelGroup(tuple(members), label)]
        if b.first_write is not None:
            b.first_write = min(b.first_write, first)


def add_op(b: Builder, o: Op) -> None:
    """Add the steps of an op."""
    if KERNEL in o.op.attributes:
        b.choice = choice_of(o.op)
        b.choice.check_fields(CPU_FIELDS)
        kind = OTHERS.get(o.name)
        b.choice.check(
            kind in (None, b.choice.kind) or b.choice.kind in ("none", *_BOTH.get(o.name, ())),
            f"is not for an op that runs as '{kind}'",
        )
    steps.add_op(b, o, _STEPS, "CPU")


def _fused(b: Builder, o: Op) -> None:
    root = root_of(o.op)
    if root is not None:
        op, epilogue = split(b, o, root)
        _CONTRACTIONS[op.name](b, op, epilogue)
        return
    k = b.describe(o, [b.strides(v) for v in o.operands], [b.strides(v) for v in o.results])
    b.choice.check(b.choice.kind == "loops" or not runs(k), "is not for a fused region")
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    b.launch(k, loads, stores, b.label(o), way=b.choice)


def _convolution(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    if b.choice.kind == "direct":
        gradient = o.name == "convolution_weight_grad"
        (packed.weight_gradient if gradient else packed.convolution)(b, o, epilogue)
        return
    if b.choice.kind == "winograd":
        # start-up time: most programs have none
        from .product.winograd import steps as winograd

        gradient = o.name == "convolution_weight_grad"
        (winograd.weight_gradient if gradient else winograd.convolution)(b, o, epilogue)
        return
    if b.choice.kind != "pytorch":
        convolution.native(b, o, epilogue)
        return
    if epilogue is None:
        aten_ops.convolution(b, o)
        return
    (r,) = o.results
    scratch = b.scratch(b.body.types[r].nbytes, epilogue.place is None)
    b.places[r] = epilogue.target(0, scratch)
    aten_ops.convolution(b, o)
    epilogue.run(0, epilogue.rows, b.places[r])


_Contraction = Callable[[Builder, Op, Epilogue | None], None]


def _without_epilogue(add: _Contraction) -> Callable[[Builder, Op], None]:
    return lambda b, o: add(b, o, None)


def _attention(call: Callable[[Builder, Op], None]) -> Callable[[Builder, Op], None]:
    """The function that adds attention steps: gflow's own kernel if it is chosen, otherwise `call`."""
    called = halves.widening_call(call)

    def add(b: Builder, o: Op) -> None:
        if b.choice.kind == "pytorch":
            called(b, o)
            return
        # start-up time: most programs have no attention
        from .attention import steps as own

        steps = own.attention if o.name == "attention" else own.attention_grad
        halves.widening_call(steps)(b, o)

    return add


_CONTRACTIONS: Mapping[str, _Contraction] = {
    "matmul": halves.matmul_in_pieces,
    "packed_product": packed.product,
    "convolution": halves.widening(_convolution),
    "convolution_input_grad": halves.widening(_convolution),
    "convolution_weight_grad": halves.widening(_convolution),
}

_STEPS: Mapping[str, Callable[[Builder, Op], None]] = {
    "fused": _fused,
    **{name: _without_epilogue(add) for name, add in _CONTRACTIONS.items()},
    **dict.fromkeys(MOVEMENT, movement.move),
    CHECK: checks.check,
    START: collectives.start,
    SHARD: collectives.shard,
    ENGINE: engine_regions.region,
    "aten": halves.widening_call(aten_ops.call),
    "attention": _attention(aten_ops.attention),
    "attention_grad": _attention(aten_ops.attention_grad),
    **dict.fromkeys(("max_pool", "max_pool_grad"), pooling.pool),
    **dict.fromkeys(("avg_pool", "avg_pool_grad"), aten_pooling.pool),
    "reduce": aten_ops.position,
    "gather": aten_ops.gather,
    "take": indexing.take,
    "quantized_matmul": quantized.product,
    "index_add": aten_ops.index_add,
    "index_copy": indexing.index_copy,
}
