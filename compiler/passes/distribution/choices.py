"""The ways in which an op can be sharded along one mesh axis: replicated, by one of its factors, or by partial sums."""

from __future__ import annotations

from functools import cached_property
from math import prod

from gflow.dialects.distribution.sharding import Dims, Factors, split_dim
from gflow.dialects.records import record

from .resharding import WHOLE


@record
class Choice:
    """A way to shard an op along one mesh axis.

    Attributes:
        needs, gives: the placements of operands and results: "B" (replicated), "S(d)" (sharded) or "P(kind)" (partial).
        factor: the factor of the op's sharding rule that is split; "": none.
    """

    needs: tuple[str, ...]
    gives: tuple[str, ...]
    factor: str = ""

    @property
    def whole(self) -> bool:
        """Whether all ranks compute the whole op."""
        return not self.factor and all(n == WHOLE for n in self.needs)

    @cached_property
    def splits(self) -> bool:
        """Whether a factor is split."""
        return any(split_dim(p) is not None for p in (*self.needs, *self.gives))


def choices(
    rule: Factors | None, operands: int, results: int, ranks: int, split: dict[str, int]
) -> list[Choice]:
    """All ways to shard an op along an axis, the replicated one first.

    Args:
        rule: the op's sharding rule; None: it has none, and is replicated.
        operands, results: their numbers.
        ranks: the ranks along the axis.
        split: by factor, the number of ranks along other axes that already split it.
    """
    found = [Choice((WHOLE,) * operands, (WHOLE,) * results)]
    if rule is None or rule.follows:
        return found
    for factor, size in rule.sizes.items():
        mine = split.get(factor, 1)
        if (size // mine) % ranks or size < mine * ranks or not _reachable(rule, factor, split):
            continue
        found.append(_by_factor(rule, factor))
    for reduction in rule.passes:
        for linear in rule.linear:
            needs = tuple(f"P({reduction})" if i in linear else WHOLE for i in range(operands))
            found.append(Choice(needs, (f"P({reduction})",) * results))
    return found


def _reachable(rule: Factors, factor: str, split: dict[str, int]) -> bool:
    """Whether a split of the factor gives contiguous parts in each dimension: more major factors are split fully."""
    for dims in (*rule.operands, *rule.results):
        for dim in dims:
            if factor in dim:
                major = dim[: dim.index(factor)]
                if prod(rule.sizes[f] // split.get(f, 1) for f in major) != 1:
                    return False
    return True


def _by_factor(rule: Factors, factor: str) -> Choice:
    partial = rule.partial.get(factor, ())
    needs = tuple(
        "P(sum)" if i in partial else _split(dims, factor) or WHOLE
        for i, dims in enumerate(rule.operands)
    )
    added = f"P({rule.reduces.get(factor, 'sum')})"
    is_operand = any(_split(dims, factor) for dims in rule.operands)
    gives = tuple(
        _split(dims, factor) or (added if is_operand and n not in rule.alike else WHOLE)
        for n, dims in enumerate(rule.results)
    )
    return Choice(needs, gives, factor)


def _split(dims: Dims, factor: str) -> str:
    for d, dim in enumerate(dims):
        if factor in dim:
            return f"S({d})"
    return ""
