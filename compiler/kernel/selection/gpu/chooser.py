"""The choice for each op on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gflow.compiler.targets import Target
from gflow.compiler.targets.devices import MMA_TF32
from gflow.dialects.marks import launch_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import SHARD, START
from gflow.dialects.ops.structure import CHECK
from gflow.dialects.types import NO_KERNELS

from ....ir.errors import CannotLower
from ....ir.ssa import Body, Op
from ....ir.views import Layout, row_of
from ...description import describe, with_rows
from ..choice import Choice, way_of
from .attention import choose_attention
from .other_blocks import gather_configs, pool_configs, put_configs, take_configs
from .other_ops import Chooser, always, aten, index_add, index_copy, movement, one_kernel, position
from .product.contraction import ZERO, Contraction, Used, contraction_of, total_configs
from .product.convolution import (
    choose_convolution,
    choose_depthwise,
    convolution_of,
    kind_of_convolution,
)
from .product.matmul import choose_matmul, kind_of_matmul
from .product.shared import TF32_OF, choose_shared, member_of, shares
from .region.launches import choose_region


def tf32_allowed(function: func.FuncOp, what: str, target: Target) -> bool:
    """Whether float32 products of a kind ("matmul", "convolution") may use TF32.

    They may if the function lists the kind in `gflow.tf32` (PyTorch's switches at tracing), and the target has TF32.
    """
    attributes = function.attributes
    if "gflow.tf32" not in attributes or not target.has(MMA_TF32):
        return False
    return what in [ir.StringAttr(a).value for a in ir.ArrayAttr(attributes["gflow.tf32"])]


def chooser(
    function: func.FuncOp, body: Body, at: Sequence[Layout], target: Target
) -> Callable[[Op], Choice]:
    """A function that selects the kernel of each op, to be called in program order.

    It prefers kernels that it selected for earlier ops, so that fewer kernels are compiled.

    Raises (the function that is returned):
        CannotLower: the op has no GPU kernel.
    """
    used = Used()
    tf32 = {what: tf32_allowed(function, what, target) for what in ("matmul", "convolution")}
    shared = _shared(body, at, tf32, target)

    def choose(o: Op) -> Choice:
        c = contraction_of(o, body, at)
        if c is not None:
            together = shared.get(o.index)
            if together is not None and together.kind == "depthwise":
                return together
            if together is not None:
                return _precise(together, c, tf32[TF32_OF[c.name]])
            return _contraction(c, tf32, target, used)
        if o.name == "fused":
            return _region(o, body, at, target)
        if o.name in ("attention", "attention_grad"):
            return choose_attention(o, body, target, tf32["matmul"])
        if o.name not in _OTHERS:
            raise CannotLower(f"gflow.{o.name} has no CUDA code; run gflow-fuse first")
        return _OTHERS[o.name](o, body, at, target)

    return choose


def _shared(
    body: Body, at: Sequence[Layout], tf32: Mapping[str, bool], target: Target
) -> dict[int, Choice]:
    """The choices for products that `gflow.launch` puts into one launch, by the op's number."""
    launches: dict[int, list[Op]] = {}
    for o in body.ops:
        number = launch_of(o.op)
        if number is not None and shares(o):
            launches.setdefault(number, []).append(o)
    found: dict[int, Choice] = {}
    for ops in launches.values():
        contractions = [contraction_of(o, body, at) for o in ops]
        members = [c and member_of(c, tf32, target) for c in contractions]
        choice = choose_shared([m for m in members if m], target) if all(members) else None
        if choice is not None:
            found |= {o.index: choice for o in ops}
    return found


def _contraction(c: Contraction, tf32: Mapping[str, bool], target: Target, used: Used) -> Choice:
    if c.name in ("matmul", "scaled_matmul"):
        kind = kind_of_matmul(c)
        if kind == "product":
            return _precise(choose_matmul(c, tf32["matmul"], target, used), c, tf32["matmul"])
    else:
        g = convolution_of(c)
        kind = kind_of_convolution(c, g)
        if kind == "depthwise":
            return choose_depthwise(c, g, target)
        if kind == "product":
            found = choose_convolution(c, g, tf32["convolution"], target, used)
            return _precise(found, c, tf32["convolution"])
    # the result of an ATen call is in scratch until the epilogue has run
    waits = kind == "pytorch" and c.op.parent is not None and c.op.parent.name == "gflow.fused"
    if waits:
        after = way_of(total_configs(c.result)[0])
        return Choice(kind, -(-c.result.nbytes // 64) * 64).with_ways([after])
    return Choice(kind).with_ways([way_of(ZERO[0])]) if kind == "zero" else Choice(kind)


def _precise(choice: Choice, c: Contraction, tf32: bool) -> Choice:
    """The choice with `precision` set to TF32, if that is allowed and the operands are float32."""
    return replace(choice, precision="tf32") if tf32 and c.types[0].dtype == "f32" else choice


def _region(o: Op, body: Body, at: Sequence[Layout], target: Target) -> Choice:
    k = describe(o.op, [at[v].strides for v in o.operands], [at[v].strides for v in o.results])
    k = with_rows(k, *([row_of(body, at, v) for v in vs] for vs in (o.operands, o.results)))
    if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
        raise CannotLower(
            f"there are no kernels on complex numbers or float8: {o.name} {o.op.location}"
        )
    return choose_region(k, len(o.operands), len(o.results), target.device)


_OTHERS: Mapping[str, Chooser] = {
    **dict.fromkeys(("iota", "pad", "concatenate", "reverse"), movement),
    **dict.fromkeys(
        ("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"),
        one_kernel(lambda o, body, target: pool_configs(o, body, target.device)),
    ),
    **dict.fromkeys((CHECK, START, SHARD), always),
    "gather": one_kernel(lambda o, body, target: gather_configs(o, body)),
    "take": one_kernel(lambda o, body, target: take_configs(o, body)),
    "put": one_kernel(lambda o, body, target: put_configs(o, body)),
    "aten": aten, "index_add": index_add, "index_copy": index_copy, "reduce": position,
}  # fmt: skip
