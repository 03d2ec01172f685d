"""The best of several strategies, and a local search from each of their results."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from gflow.compiler.memory.liveness import Buffer, lower_bound

from .strategies import STRATEGIES, Offsets, in_order

#: the search's random numbers are the same in every run
_SEED = 0


def choose(
    buffers: Sequence[Buffer], strategies: Sequence[str], improve: int, time_limit: float
) -> Offsets:
    """The smallest arena of all strategies and of the local search.

    Args:
        improve: steps of the search. time_limit: seconds for all of them.
    """
    bound = lower_bound(buffers)
    found: list[Offsets] = []
    for name in strategies:
        found.append(STRATEGIES[name](buffers))
        if found[-1][0] <= bound:
            return found[-1]
    found.sort(key=lambda offsets: offsets[0])
    best = found[0]
    until = time.monotonic() + time_limit
    for start in found:
        best = min(
            best,
            search(buffers, start, bound, improve // len(found), until),
            key=lambda offsets: offsets[0],
        )
        if best[0] <= bound:
            break
    return best


def search(
    buffers: Sequence[Buffer], best: Offsets, bound: int, steps: int, until: float
) -> Offsets:
    """A local search over orders of placement, beginning with the order of offsets.

    The highest buffers are high because of buffers that were placed before them. Each step moves one or a few of the
    highest buffers to earlier positions in the order and places all buffers again, each at the lowest free offset.
    Orders that need no more memory are kept. until: the time limit, on the monotonic clock.
    """
    choice = random.Random(_SEED)
    order = sorted(range(len(buffers)), key=lambda i: (best[1][i], -buffers[i].size))
    current = best
    for _ in range(steps):
        if best[0] <= bound or time.monotonic() > until:
            break
        size, offsets = current
        tops = [i for i in order if offsets[i] + buffers[i].size > bound]
        tops = tops or [i for i in order if offsets[i] + buffers[i].size == size]
        trial = list(order)
        for i in choice.sample(tops, min(len(tops), choice.choice((1, 1, 2, 3)))):
            at = trial.index(i)
            trial.insert(choice.randrange(at + 1), trial.pop(at))
        found = in_order(buffers, trial)
        if found[0] <= current[0]:
            order, current = trial, found
            best = min(best, found, key=lambda f: f[0])
    return best
