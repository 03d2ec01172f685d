"""Products, and depthwise weight gradients, that share a launch (grouped GEMM): conditions, predicted time, choice.

    72 tiles of 3072 × 768, 72 of 768 × 3072, 54 of 2304 × 768, 18 of 768 × 768 on 132 multiprocessors

Each product alone uses split-K with a second launch for the sums, and still leaves multiprocessors idle. Together they
are 216 whole tiles, and three such groups are 4.9 waves of all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import gcd

from gflow.compiler.ir.fused import root_of
from gflow.compiler.ir.ssa import Op
from gflow.compiler.targets import Target
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ....description import Kernel
from ....sizes import WIDE, cdiv, extent
from ...choice import Choice
from .contraction import Contraction, seconds_alone, with_following
from .convolution import (
    TAPS,
    Convolution,
    choose_depthwise,
    convolution_of,
    direct_product,
    kind_of_convolution,
)
from .epilogue import Following
from .matmul import Product, copied_operands, kind_of_matmul, product_of_matmul
from .operands import stride_class
from .tiles import Problem, together

#: bytes of a pointer, and of a number, as a kernel argument
_POINTER, _NUMBER = 8, 4
#: the divisors of a size or stride that the source may depend on
_FACTORS = (16, 8, 4)
#: the greatest block of K
_LONGEST_STEP = 128


@record
class Member:
    """A product of a shared launch.

    Attributes:
        text: a key of its kernel's source; products of a launch have equal ones.
        problem: its sizes, with the resources of its epilogue; None for a depthwise weight gradient.
        alone: the predicted time of its own launches, in seconds.
        parameters: an upper bound of the bytes of its kernel arguments.
        choice: the choice for a depthwise weight gradient, which a shared launch does not change; otherwise None.
        programs, each: of a depthwise weight gradient, its programs, and the predicted seconds of one.
    """

    text: Hashable
    problem: Problem | None
    alone: float
    parameters: int
    choice: Choice | None = None
    programs: int = 0
    each: float = 0.0


#: the contractions that can share a launch, each with the kind of op whose switch allows TF32 in it
TF32_OF = {"matmul": "matmul", "convolution_weight_grad": "convolution"}


def shares(o: Op) -> bool:
    """Whether an op is a candidate: a fused op with a matmul or a convolution's weight gradient, which no library call
    computes."""
    root = root_of(o.op) if o.name == "fused" else None
    return root is not None and root.name.removeprefix("gflow.") in TF32_OF


def member_of(c: Contraction, allowed: Mapping[str, bool], target: Target) -> Member | None:
    """A contraction as a product of a shared launch.

    None if it isn't a single matrix product, or if its operands are copied first. None for a depthwise weight gradient
    whose positions several programs share.

    allowed: whether float32 products may use TF32, of matmuls and of convolutions.
    """
    tf32 = c.name in TF32_OF and allowed[TF32_OF[c.name]]
    g = convolution_of(c) if c.name == "convolution_weight_grad" else None
    if g is not None and kind_of_convolution(c, g) == "depthwise":
        return _depthwise(c, g, target)
    p = _product(c, tf32, target)
    if p is None or p.dims or p.problem.kind != "cores" or copied_operands(p, target):
        return None
    posed = p.posed(target)
    own = replace(posed, descriptors="DESCRIPTORS" if posed.descriptors else "")
    return Member(
        (*_text(p, c), posed.descriptors, tf32),
        with_following(own, c.following, 1),
        seconds_alone(posed, c.following, c.result, c.types[0].dtype, target),
        _parameters(c),
    )


def _product(c: Contraction, tf32: bool, target: Target) -> Product | None:
    """The matrix product of a contraction; None if its kernel is another one."""
    if c.name == "matmul":
        return product_of_matmul(c, tf32, target) if kind_of_matmul(c) == "product" else None
    if c.name not in TF32_OF:
        return None
    g = convolution_of(c)
    plain = g.direct and kind_of_convolution(c, g) == "product"
    return direct_product(g, tf32, target) if plain else None


def _depthwise(c: Contraction, g: Convolution, target: Target) -> Member | None:
    """A depthwise weight gradient whose positions one program sums, as a member of a shared launch."""
    choice, device = choose_depthwise(c, g, target), target.device
    if choice.pieces > 1 or choice.then:
        return None
    item = TensorType((), g.x.dtype).itemsize
    height, width = choice.block
    programs = cdiv(g.c, width) * cdiv(g.taps, min(g.taps, TAPS))
    each = cdiv(g.positions, height) * height * width * item * (1 + g.taps) / device.l2_bandwidth
    alone = device.launch + device.latency + cdiv(programs, device.multiprocessors) * each
    walks = g.x.strides, g.y.strides, g.stride, g.padding, g.dilation
    text = (
        "depthwise", choice.text(), g.kernel, *(t.dtype for t in c.types), *map(stride_class, walks),
        tuple(map(_factor, (*g.x.strides, *g.y.strides, g.c))), *_source(c.following),
    )  # fmt: skip
    return Member(text, None, alone, _parameters(c), choice, programs, each)


def _text(p: Product, c: Contraction) -> tuple[Hashable, ...]:
    x, y = p.x, p.y
    walks = [(x.rows, x.cols), (y.rows, y.cols)]
    numbers = p.m, p.n, *walks[0], *walks[1]
    after = () if c.sums is None else (p.summed, *_source(c.sums.following))
    return (
        c.name, x.dtype, y.dtype, c.result.dtype, *map(stride_class, walks), p.wide, x.width > 0, y.width > 0,
        tuple(map(_factor, numbers)), gcd(p.k, _LONGEST_STEP), *_source(c.following), after,
    )  # fmt: skip


def _source(following: Following) -> tuple[Hashable, ...]:
    """What the source of an epilogue depends on."""
    return following.structure(), tuple(map(_positions, following.kernels))


def _positions(k: Kernel) -> Hashable:
    """What the source of an epilogue's address computations depends on, besides its structure."""
    walks = [*(a.strides for a in (*k.loads, *k.stores)), *k.indices]
    return tuple((tuple(map(_factor, w)), extent(k.sizes, w) >= WIDE) for w in walks)


def _factor(number: int) -> int:
    """The greatest of `_FACTORS` that divides a number; 1 if none does."""
    return next((f for f in _FACTORS if number % f == 0), 1)


def _parameters(c: Contraction) -> int:
    """An upper bound of the bytes of a product's kernel arguments: pointers, strides, sizes, constants."""
    kernels = [*c.following.kernels, *(c.sums.following.kernels if c.sums else ())]
    accesses = [a for k in kernels for a in (*k.loads, *k.stores)]
    # an operand has one pointer, however often it is read; strides of 0 and 1 are literals
    pointers = len({a.operand for k in kernels for a in k.loads}) + sum(
        len(k.stores) for k in kernels
    )
    walks = [*(a.strides for a in accesses), *(w for k in kernels for w in k.indices)]
    numbers = sum(s not in (0, 1) for w in walks for s in w) + 2 * len(kernels) + 7
    constants = sum(n.op not in OPS and n.op != "load" for k in kernels for n in k.nodes)
    return _POINTER * (2 + pointers + constants) + _NUMBER * (numbers + 1)


def seconds_of(members: Sequence[Member], target: Target) -> float | None:
    """The predicted time of a shared launch of members with equal `text`, in seconds; None if they cannot share one."""
    if sum(m.parameters for m in members) > target.device.parameters:
        return None
    device = target.device
    if members[0].problem is None:
        longest, work = max(m.each for m in members), sum(m.programs * m.each for m in members)
        return device.launch + device.latency + max(longest, work / device.multiprocessors)
    found = together([m.problem for m in members if m.problem], target)
    return None if found is None else device.launch + found[0]


def choose_shared(members: Sequence[Member], target: Target) -> Choice | None:
    """The choice for products that share a launch; None if their sources differ or no tile suits all."""
    if len({m.text for m in members}) > 1:
        return None
    if members[0].choice is not None:
        return members[0].choice
    found = together([m.problem for m in members if m.problem], target)
    if found is None:
        return None
    t = found[1]
    return Choice(
        "product", tile=(t.m, t.n, t.k), warps=t.warps, stages=t.stages, parts=t.parts,
        loads="descriptors" if t.descriptors else "pointers",
    )  # fmt: skip


def is_shared(choice: Choice) -> bool:
    """Whether a choice suits a shared launch: one whole tile for each program, without split-K or copies."""
    plain = choice.split_k == 1 and not choice.persistent and not choice.copies
    whole = choice.kind == "product" or (choice.kind == "depthwise" and choice.pieces == 1)
    return whole and plain and not choice.then
