"""Sharding rules: which dimensions of an op's operands and results are sharded together, and which results are partial.

A rule names *factors*, as Shardy's `OpShardingRule` does. The rule of a matrix product is `"m k, k n -> m n"`: sharding
m shards the rows of the first operand and of the result; sharding k shards both operands, and each rank gets a partial
sum. The notation is that of einsum and einops:

- operands are before the arrow, results after it; commas separate tensors, spaces separate dimensions;
- a name is a factor, `_` a dimension that cannot be sharded;
- `(h r)` is a dimension of two factors, the major one first; `...` is any number of leading dimensions, the same in
  all tensors;
- a factor of operands that no result has is reduced: with that factor sharded, the results are partial sums.

Rules that depend on attributes or shapes are functions that return `Factors`. A *placement* says how a value is
distributed along a mesh axis: `S(d)` shards dimension d into equal, contiguous parts, `B` replicates the value, and
with `P(sum)` each rank has an addend (likewise `P(max)`, `P(min)`, `P(avg)`). These are PyTorch's Shard, Replicate and
Partial, and OneFlow's split, broadcast and partial_sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any

from ..records import record
from ..types import TensorType

#: the factors of a dimension, the major one first; empty for a dimension that cannot be sharded
Dim = tuple[str, ...]
Dims = tuple[Dim, ...]

#: the reductions of partial values
REDUCTIONS = ("sum", "max", "min", "avg")


@record
class Factors:
    """The rule of one op, for its shapes and attributes.

    operands, results: the factors of each dimension of each tensor. sizes: the size of each factor in elements.
    reduces: by factor, the reduction of results that lack it while it is sharded; "sum" for factors not listed.
    linear: sets of operands in which the op is linear: if all operands of a set are partial and the others replicated,
        the op on each rank's addends gives addends of the results. passes: the reductions for which this holds.
    partial: by factor, operands that lack it and must count once: every rank adds its part of the factor to them, so
        they must be partial sums while the factor is sharded.
    masked: by factor, the operand that has positions along it. Each rank looks up the positions that it owns.
    draws: the number of the operand with a generator's state; each shard draws its own numbers.
    follows: result i has the placement of operand i, whatever it is.
    alike: results that are equal on all ranks, for any sharding: tokens.
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


#: operand types, result types, attributes as plain data → the rule; None if the op needs replicated values
FactorsOf = Callable[[Sequence[TensorType], Sequence[TensorType], dict[str, Any]], Factors | None]


@record
class ShardingRule:
    """The sharding rule in an op's declaration: a text, or a function if the rule depends on attributes or shapes.

    linear, passes: those of `Factors`, for a text.
    """

    factors: str | FactorsOf
    linear: tuple[tuple[int, ...], ...] = ()
    passes: tuple[str, ...] = ("sum",)

    def of(
        self, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Factors | None:
        """The rule for these types and attributes; None if the op needs replicated values."""
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
    """Parse a rule's text into the factors of operands and of results; `("...",)` represents leading dimensions.

    Raises:
        ValueError: the text is not a rule.
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
    """The dimensions of a tensor of `rank`, with `...` expanded."""
    if ("...",) not in dims:
        return dims
    at = dims.index(("...",))
    more = rank - (len(dims) - 1)
    return (*dims[:at], *((f"batch{i}",) for i in range(more)), *dims[at + 1 :])


def _sized(
    found: Factors, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Factors:
    """Add the sizes of the factors, first from dimensions of a single factor, then from the others."""
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
    """The dimension that a placement shards; None if it shards none."""
    return int(placement[2:-1]) if placement.startswith("S(") else None


@cache
def reduction(placement: str) -> str | None:
    """The reduction of a partial placement; None for other placements."""
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
    """Raise ValueError unless a value of type `ty` can have these placements on a mesh of these sizes.

    Different reductions do not commute (a sum of maxima), so all partial placements must have the same reduction.
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
    """The type of a rank's shard of a value of type `ty`.

    placements, sizes: one for each axis of the mesh.

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
