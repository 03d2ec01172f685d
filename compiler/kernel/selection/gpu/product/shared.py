"""Products that share a launch: which may, how long they take together, and the choice for them.

    72 tiles of 3072 × 768, 72 of 768 × 3072, 54 of 2304 × 768, 18 of 768 × 768 on 132 multiprocessors

alone each splits K, adds up partial sums in a second launch, and still leaves multiprocessors idle;
together they are 216 whole tiles, and three times as many are 4.9 rounds of all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import gcd

from gflow.compiler.ir.contractions import root_of
from gflow.compiler.ir.ssa import Op
from gflow.compiler.targets import Target
from gflow.dialects.ops import OPS
from gflow.dialects.records import record

from ....description import Kernel
from ....sizes import WIDE, extent
from ...choice import Choice
from .contraction import Contraction, followed_by, with_following
from .matmul import Product, copied_operands, kind_of_matmul, product_of_matmul
from .operands import stride_class
from .tiles import Problem, best_splits, fastest_tile, seconds, together

#: bytes of a pointer, and of a number, among a launch's parameters
_POINTER, _NUMBER = 8, 4
#: what Triton is told that a number is a multiple of, and what its text may say
_FACTORS = (16, 8, 4)
#: of K, the most that one step of the loop takes
_LONGEST_STEP = 128


@record
class Member:
    """A product of a launch.

    text: what its kernel's text follows from; products of one launch have the same. problem: with what follows.
    alone: seconds of a launch, or of two, of its own. parameters: bytes of them, at most.
    """

    text: Hashable
    problem: Problem
    alone: float
    parameters: int


def shares(o: Op) -> bool:
    """Whether an op may share a launch as a product: a product of matrices with what follows it, which no
    library computes."""
    root = root_of(o.op) if o.name == "fused" else None
    return root is not None and root.name == "gflow.matmul"


def member_of(c: Contraction, tf32: bool, target: Target) -> Member | None:
    """A contraction as one of a launch's; None if it is no product of two matrices on tensor cores."""
    if c.name != "matmul" or kind_of_matmul(c) != "product":
        return None
    p = product_of_matmul(c, tf32, target)
    if p.dims or p.problem.kind != "cores" or copied_operands(p, target):
        return None
    posed = p.posed(target)
    own = replace(posed, descriptors="DESCRIPTORS" if posed.descriptors else "")
    return Member(
        (*_text(p, c), posed.descriptors, tf32),
        with_following(own, c.following, 1),
        _alone(posed, c, target),
        _parameters(c),
    )


def _text(p: Product, c: Contraction) -> tuple[Hashable, ...]:
    x, y = p.x, p.y
    walks = [(x.rows, x.cols), (y.rows, y.cols)]
    numbers = p.m, p.n, *walks[0], *walks[1]
    return (
        x.dtype, y.dtype, c.result.dtype, *map(stride_class, walks), p.wide, x.width > 0, y.width > 0,
        tuple(map(_factor, numbers)), gcd(p.k, _LONGEST_STEP), c.following.structure(),
        tuple(map(_positions, c.following.kernels)),
    )  # fmt: skip


def _positions(k: Kernel) -> Hashable:
    """What the text of an epilogue's addresses follows from, besides its structure."""
    walks = [*(a.strides for a in (*k.loads, *k.stores)), *k.indices]
    return tuple((tuple(map(_factor, w)), extent(k.sizes, w) >= WIDE) for w in walks)


def _factor(number: int) -> int:
    """The factor of a number that a kernel's text has, or that Triton is told."""
    return next((f for f in _FACTORS if number % f == 0), 1)


def _alone(p: Problem, c: Contraction, target: Target) -> float:
    splits = best_splits(p, target)
    following = followed_by(splits, c.following, c.result, c.types[0].dtype)
    model = with_following(p, following, splits)
    return target.device.launch + seconds(
        model, fastest_tile(model, splits, target), splits, target
    )


def _parameters(c: Contraction) -> int:
    """Pointers and strides of operands and of what follows, and sizes."""
    accesses = sum(len(k.loads) + len(k.stores) for k in c.following.kernels)
    numbers = 2 * (accesses + len(c.following.kernels)) + 7
    constants = sum(n.op not in OPS for k in c.following.kernels for n in k.nodes)
    return _POINTER * (2 + accesses + constants) + _NUMBER * (numbers + 1)


def seconds_of(members: Sequence[Member], target: Target) -> float | None:
    """How long members of one text take in one launch; None if they cannot share one."""
    if sum(m.parameters for m in members) > target.device.parameters:
        return None
    found = together([m.problem for m in members], target)
    return None if found is None else target.device.launch + found[0]


def choose_shared(members: Sequence[Member], target: Target) -> Choice | None:
    """The choice for products that share a launch; None if they cannot."""
    if len({m.text for m in members}) > 1:
        return None
    found = together([m.problem for m in members], target)
    if found is None:
        return None
    t = found[1]
    return Choice(
        "product", tile=(t.m, t.n, t.k), warps=t.warps, stages=t.stages, parts=t.parts,
        loads="descriptors" if t.descriptors else "pointers",
    )  # fmt: skip


def is_shared(choice: Choice) -> bool:
    """Whether a choice is one that products of a launch may have: a whole tile for each program."""
    plain = choice.split_k == 1 and not choice.persistent and not choice.copies
    return choice.kind == "product" and plain
