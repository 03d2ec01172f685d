"""The cost of resharding a value on one mesh axis, in bytes that each rank sends.

The numbers are those of ring algorithms. An all-gather or a reduce-scatter of n ranks sends (n - 1)/n of the whole
tensor, an all-to-all 1/n of that, and an all-reduce twice as much as a reduce-scatter. Slicing a replicated value, or
turning it into a partial sum, sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from gflow.dialects.distribution.sharding import reduction, split_dim

WHOLE = "B"
#: the placement of a function's result that may have any sharding, except partial sums
ADDED = "not partial"

#: a constant cost of each collective in bytes, so that few large collectives are preferred
_CALL = 4096.0


def bytes_sent(have: str, need: str, nbytes: float, ranks: int) -> float:
    """The bytes that a rank sends to reshard a value.

    Args:
        have, need: the placements before and after.
        nbytes: the bytes of the value that the ranks of this axis hold together.
        ranks: the number of ranks along the axis.
    """
    if have in (need, WHOLE):
        return 0.0
    if need == ADDED:
        return 0.0 if reduction(have) is None else bytes_sent(have, WHOLE, nbytes, ranks)
    part = nbytes * (ranks - 1) / ranks
    if reduction(have) is not None:
        if split_dim(need) is not None and reduction(have) != "avg":
            return part + _CALL  # reduce-scatter
        return 2 * part + _CALL  # all-reduce
    if split_dim(need) is not None:
        return part / ranks + _CALL  # all-to-all
    return part + _CALL  # all-gather


def total_sent(have: str, needs: Collection[str], nbytes: float, ranks: int) -> float:
    """The bytes that a rank sends to reshard a value for all its users; a replicated version serves all of them."""
    if have == WHOLE:
        return 0.0
    needs = {WHOLE if n == ADDED and reduction(have) is not None else n for n in needs}
    needs.discard(ADDED)
    needs.discard(have)
    if not needs:
        return 0.0
    if any(split_dim(n) is None for n in needs):
        return bytes_sent(have, WHOLE, nbytes, ranks)
    return min(
        sum(bytes_sent(have, n, nbytes, ranks) for n in needs),
        bytes_sent(have, WHOLE, nbytes, ranks),
    )
