"""What it costs, in bytes on the wire, to place a value otherwise on one mesh axis.

Figures are those of ring algorithms, by rank: an all-gather, a reduce-scatter or an all-to-all of n ranks sends
(n - 1)/n of what it makes or takes, an all-reduce twice that. Taking a part of what is there, or counting it once
among addends, sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from gflow.dialects.distribution.sharding import reduction, split_dim

WHOLE = "B"
#: of a result of the function that may lie as it comes, but for addends
ADDED = "not partial"

#: bytes that a collective counts for besides those that it sends, so that few large ones win over many
_CALL = 4096.0


def bytes_sent(have: str, need: str, nbytes: float, ranks: int) -> float:
    """Of one rank, to place a value of `nbytes` as needed.

    nbytes: of what the ranks of this axis have together.
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
    """For all ways in which users need one value: what is whole for one is whole for all."""
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
