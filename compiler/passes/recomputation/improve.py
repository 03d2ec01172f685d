"""A local search over choices of values to recompute, for a memory budget.

The greedy search (`choose.py`) starts from nothing, and from everything between boundaries of blocks (`boundaries.py`).
The best choice is then improved by a large neighbourhood search (Shaw, 1998): some of its values are kept again, the
greedy search drops values until the limit holds, and the result is taken if it is better. In between, one to three
values change sides: dropped ones are kept, and the reverse. While no choice meets the limit, one that exceeds it by
less is better; then one that takes less time. All draws are from a fixed seed, and their number depends on the program
alone, so that a program is compiled in the same way each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from .boundaries import ends_of_forward, starts_at_boundaries
from .choose import Choice, choose, gap_of, grow, keep_again
from .problem import Problem
from .replay import Ends, NotPossible, Replay, replay

#: the neighbourhoods that are tried: so many divided by the number of ops, between a least and a most number
_NEIGHBOURHOODS, _LEAST, _MOST = 20000, 8, 40

#: how often as many neighbourhoods are tried while no choice meets the limit
_PATIENCE = 2

#: the draws of values that change sides, for each neighbourhood, and how many values do
_FLIPS, _FLIPPED = 6, (1, 1, 2, 3)

#: the shares of a choice's values that a neighbourhood keeps again
_SHARES = (0.05, 0.1, 0.2, 0.4)


def search(problem: Problem, limit: int, known: Iterable[Choice] = ()) -> Choice:
    """The values to recompute so that at most `limit` bytes are live at any op, in the least time.

    If no choice is found that reaches the limit, the result is one that exceeds it by little.

    Args:
        problem: the data of the function.
        limit: bytes.
        known: choices for other limits.
    """
    whole = replay(problem, {})
    if whole.peak <= limit:
        return Choice({}, whole)
    found = [choose(problem, limit)]
    starts = [choice.ends for choice in known] or starts_at_boundaries(problem, whole)
    found += [_kept_where_possible(problem, limit, grow(problem, limit, s, whole)) for s in starts]
    best = min(found, key=lambda choice: _rank(choice, limit))
    return improve(problem, limit, best, whole, _PATIENCE)


def improve(problem: Problem, limit: int, best: Choice, whole: Replay, patience: int = 0) -> Choice:
    """The best choice that is found in neighbourhoods of the best one so far.

    Args:
        problem: the data of the function.
        limit: bytes.
        best: the choice to start from.
        whole: the replay without a choice.
        patience: how often as many neighbourhoods are tried again while no choice meets the limit. They also are after
            the first choice that does.
    """
    count = min(max(_NEIGHBOURHOODS // max(len(problem.reads), 1), _LEAST), _MOST)
    draw = random.Random(0)
    ends = {v: gap[0] for v in range(len(problem.size)) if (gap := gap_of(problem, v))}
    ends = ends_of_forward(problem, whole) | ends
    left = count
    while left:
        left -= 1
        fits = best.result.peak <= limit
        for _ in range(_FLIPS):
            flipped = _flip(problem, best, ends, draw)
            best = min(best, flipped, key=lambda choice: _rank(choice, limit))
        order = sorted(best.ends, key=lambda v: (problem.maker[v], v))
        if not order:
            break
        size = max(2, int(len(order) * draw.choice(_SHARES)))
        if draw.random() < 0.5:  # values that are produced one after the other
            first = draw.randrange(len(order))
            again = set(order[first : first + size])
        else:
            again = set(draw.sample(order, min(size, len(order))))
        start = {v: t for v, t in best.ends.items() if v not in again}
        found = _kept_where_possible(problem, limit, grow(problem, limit, start, whole))
        best = min(best, found, key=lambda choice: _rank(choice, limit))
        if best.result.peak <= limit and not fits:
            left, patience = count, 0
        elif not left and patience and best.result.peak > limit:
            left, patience = count, patience - 1
    return best


def _flip(problem: Problem, found: Choice, ends: Ends, draw: random.Random) -> Choice:
    """A choice in which few values change sides. ends: where the live ranges of values end that may be dropped."""
    trial = dict(found.ends)
    for v in draw.sample(sorted(ends), min(draw.choice(_FLIPPED), len(ends))):
        if trial.pop(v, None) is None:
            trial[v] = ends[v]
    try:
        return Choice(trial, replay(problem, trial))
    except NotPossible:
        return found


def _kept_where_possible(problem: Problem, limit: int, found: Choice) -> Choice:
    return keep_again(problem, limit, found) if found.result.peak <= limit else found


def _rank(found: Choice, limit: int) -> tuple[int, float]:
    """Choices of a lower rank are better: first the bytes above the limit, summed over the ops, then the seconds."""
    return int(np.maximum(found.result.live - limit, 0).sum()), found.result.seconds
