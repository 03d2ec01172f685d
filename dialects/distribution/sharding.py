"""Sharding rules: which dimensions of an op's operands and results are split together, and what a split leaves to do.

A rule names *factors*, as Shardy's `OpShardingRule` does: `"m k, k n -> m n"` says of a product that splitting m
splits the rows of the first operand and of the result, and that splitting k splits both operands and leaves each
rank a partial sum. The notation is that of einsum and einops:

- operands before the arrow, results after it, separated by commas; dimensions by spaces;
- a name stands for a factor, `_` for a dimension that no rank may hold a part of;
- `(h r)` is a dimension of two factors, the major one first; `...` any number of leading dimensions, the same in all;
- a factor of operands that no result has is reduced: the results are partial sums.

Rules that depend on attributes or shapes are functions that give `Factors`. A *placement* is what a mesh axis does
to a value: `S(d)` splits dimension d into equal, contiguous parts, `B` repeats the value, `P(sum)` leaves each rank
an addend (`max` and `min` likewise; PyTorch's Shard, Replicate and Partial, OneFlow's split, broadcast, partial_sum).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any

from ..records import record
from ..types import TensorType

#: the factors of a dimension, the major one first; none: the dimension stays whole
Dim = tuple[str, ...]
Dims = tuple[Dim, ...]

#: reductions that partial values may wait for
REDUCTIONS = ("sum", "max", "min", "avg")


@record
class Factors:
    """The rule of one op, for its shapes and attributes.

    operands, results: for each, the factors of its dimensions. sizes: of the factors, in elements.
    reduces: how results are partial where a factor is split that they lack; "sum" for one not named here.
    linear: sets of operands. If all of a set are partial sums and the other operands are whole, the op on the
        addends gives addends of the results. passes: the reductions that this holds for.
    partial: by factor, operands that lack it and count once: each rank adds its part of the factor to them, so they
        must be partial sums themselves.
    masked: by factor, the operand that holds positions along it. Ranks look up what they own of it.
    draws: the number of the operand that holds a generator's state: parts draw numbers of their own.
    follows: result i is operand i, however that is placed.
    alike: results that all ranks have, whatever is split: tokens.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    reduces: dict[str, str] = field(default_factory=dict)
    linear: tuple[tuple[int, ...], ...] = ()
    passes: tuple[str, ...] = ("sum",)
    partial: dict[str, tuple[int, ...]] = field(default_factory=dict)
    masked: dict[str, int] = field(default_factory=dict)
    draws: int | None = None
    follows: bool = False
    alike: frozenset[int] = frozenset()


#: operand types, result types, attributes as plain data → the rule; None: the op runs on whole values
FactorsOf = Callable[[Sequence[TensorType], Sequence[TensorType], dict[str, Any]], Factors | None]


@record
class ShardingRule:
    """How an op is declared to shard: a text, or a function where that depends on attributes or shapes.

    linear, passes: as of `Factors`, for a text.
    """

    factors: str | FactorsOf
    linear: tuple[tuple[int, ...], ...] = ()
    passes: tuple[str, ...] = ("sum",)

    def of(
        self, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Factors | None:
        """The rule for these types and attributes; None where the op runs on whole values."""
        if callable(self.factors):
            found = self.factors(operands, results, attrs)
            return None if found is None else _sized(found, operands, results)
        texts = parse(self.factors)
        names = [
            tuple(_expanded(dims, ty.rank) for dims, ty in zip(part, types, strict=True))
            for part, types in zip(texts, (operands, results), strict=True)
        ]
        found = Factors(names[0], names[1], linear=self.linear, passes=self.passes)
        return _sized(found, operands, results)


@cache
def parse(text: str) -> tuple[tuple[Dims, ...], tuple[Dims, ...]]:
    """A rule's text as factors of operands and of results; `("...",)` stands for leading dimensions.

    Raises:
        ValueError: the text is none.
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise ValueError(f"a sharding rule has operands, '->' and results, found {text!r}")
    found = []
    for side in sides:
        found.append(
            tuple(
                tuple(_dim(item) for item in re.findall(r"\([^)]*\)|\S+", part))
                for part in side.split(",")
            )
        )
    return found[0], found[1]


def _dim(item: str) -> Dim:
    if item == "_":
        return ()
    return tuple(item.strip("()").split())


def _expanded(dims: Dims, rank: int) -> Dims:
    """`...` as the dimensions that it stands for."""
    if ("...",) not in dims:
        return dims
    at = dims.index(("...",))
    more = rank - (len(dims) - 1)
    return (*dims[:at], *((f"batch{i}",) for i in range(more)), *dims[at + 1 :])


def _sized(
    found: Factors, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Factors:
    """With the sizes of the factors, from the dimensions that they stand alone in, then from the others."""
    sizes = dict(found.sizes)
    compound = []
    for dims, ty in (*zip(found.operands, operands), *zip(found.results, results)):
        if len(dims) != ty.rank:
            raise ValueError(f"a sharding rule of {len(dims)} dimensions stands for {ty}")
        for dim, size in zip(dims, ty.shape):
            if len(dim) == 1 and dim[0] not in found.sizes:
                if sizes.setdefault(dim[0], size) != size:
                    raise ValueError(f"factor {dim[0]} has sizes {sizes[dim[0]]} and {size}")
            elif len(dim) > 1:
                compound.append((dim, size))
    for dim, size in compound:
        unknown = [name for name in dim if name not in sizes]
        if len(unknown) == 1:
            known = 1
            for name in dim:
                known *= sizes.get(name, 1)
            sizes[unknown[0]] = size // known if known else 0
    return replace(found, sizes=sizes)


@cache
def split_dim(placement: str) -> int | None:
    """The dimension that a placement splits; None where it splits none."""
    return int(placement[2:-1]) if placement.startswith("S(") else None


@cache
def reduction(placement: str) -> str | None:
    """The reduction that a partial value waits for; None where the placement is no partial one."""
    return placement[2:-1] if placement.startswith("P(") else None


def check_placement(text: str, rank: int) -> None:
    """Raise ValueError unless `text` is a placement of a tensor of `rank`."""
    if text == "B":
        return
    found = re.fullmatch(r"S\((\d+)\)|P\((\w+)\)", text)
    if found is None or (found[2] is not None and found[2] not in REDUCTIONS):
        raise ValueError(
            f"a placement is S(<dimension>), B or P({'|'.join(REDUCTIONS)}), found {text!r}"
        )
    if found[1] is not None and int(found[1]) >= rank:
        raise ValueError(f"{text} splits a dimension that a tensor of rank {rank} doesn't have")


def check_sharding(placed: Sequence[str], ty: TensorType, sizes: Sequence[int]) -> None:
    """Raise ValueError unless a value of type `ty` can lie so on a mesh of these sizes.

    Terms of a sum of maxima are in no order, so there is one reduction for all axes.
    """
    if len(placed) != len(sizes):
        raise ValueError(
            f"needs a placement for each of {len(sizes)} mesh axes, found {list(placed)}"
        )
    for placement in placed:
        check_placement(placement, ty.rank)
    if len({reduction(p) for p in placed} - {None}) > 1:
        raise ValueError(f"partial values have one reduction on all axes, found {list(placed)}")
    local_type(ty, placed, sizes)


def local_type(ty: TensorType, placements: Sequence[str], sizes: Sequence[int]) -> TensorType:
    """The type of the part that a rank holds of a value of type `ty`.

    placements, sizes: of the mesh's axes.

    Raises:
        ValueError: a dimension cannot be split evenly.
    """
    shape = list(ty.shape)
    for placement, size in zip(placements, sizes, strict=True):
        d = split_dim(placement)
        if d is not None:
            if shape[d] % size:
                raise ValueError(
                    f"dimension {d} of {ty} has {ty.shape[d]} elements, which {'x'.join(map(str, sizes))} "
                    f"ranks under {list(placements)} cannot share evenly"
                )
            shape[d] //= size
    return TensorType(tuple(shape), ty.dtype)
