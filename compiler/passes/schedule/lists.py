"""List scheduling: the ready op with the smallest key comes next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from gflow.compiler.ir.views import is_view

from .dependences import Dependences


def by_key(found: Dependences, key: Callable[[int], Any]) -> list[int]:
    """The op numbers in their new order. key: the key of an op. It is constant and ends in the op's number."""
    waiting = [len(b) for b in found.before]
    heap = [key(i) for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        i = heapq.heappop(heap)[-1]
        order.append(i)
        for j in found.after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(heap, key(j))
    return order


def updates_first(found: Dependences) -> list[int]:
    """Program order, with updates as early as possible.

    The numbers on which updates depend (a learning rate in another element type, for example) also come early.
    """
    first = found.early | _numbers(found) | _gradients(found)
    return by_key(found, lambda i: (i not in first, i))


def _gradients(found: Dependences) -> set[int]:
    """Gradients of convolution weights that only updates read, and the ops in between.

    The input of the convolution often dies there, which makes room for the gradient of the input: that is as large,
    and so are its patches.
    """
    body = found.body
    kept = set(found.early)
    returned = set(body.returned)
    for o in reversed(body.ops):
        users = [u for r in o.results for u in body.users[r]]
        if not users or not returned.isdisjoint(o.results) or not all(u in kept for u in users):
            continue
        if o.name == "convolution_weight_grad" or is_view(o, found.at):
            kept.add(o.index)
    return kept


def _numbers(found: Dependences) -> set[int]:
    """The ops that compute 0-d values for updates, from arguments and constants alone."""
    ops: set[int] = set()
    for o in found.body.ops:
        if all(n in ops for n in found.before[o.index]) and all(
            found.body.types[r].numel == 1 for r in o.results
        ):
            ops.add(o.index)
    needed = {n for i in found.early for n in found.before[i]} & ops
    for i in sorted(ops, reverse=True):
        if i in needed:
            needed |= found.before[i]
    return needed


def short_last(found: Dependences, short: Sequence[bool]) -> list[int]:
    """Long ops as early as possible; a short op only if no long op is ready."""
    return by_key(found, lambda i: (short[i], i))


def host_early(found: Dependences, host: Sequence[bool], seconds: Sequence[float]) -> list[int]:
    """A schedule for two resources: the host runs `host` ops itself, and queues the others for the device.

    The host never waits if it can do something else: it runs one of its own ops whose operands are ready, otherwise
    queues the next kernel, and only if there is none waits for the op whose operands are ready first.

    seconds: the time of each op.
    """
    waiting = [len(b) for b in found.before]
    done = [0.0] * len(waiting)  # when an op's results are ready
    kernels: list[int] = []
    steps: list[tuple[float, int]] = []  # (when its operands are ready, op)
    clock = device = 0.0
    order: list[int] = []

    def ready(i: int) -> None:
        if host[i]:
            there = max((done[n] for n in found.before[i]), default=0.0)
            heapq.heappush(steps, (there, i))
        else:
            heapq.heappush(kernels, i)

    for i, n in enumerate(waiting):
        if n == 0:
            ready(i)
    while steps or kernels:
        if steps and (steps[0][0] <= clock or not kernels):
            there, i = heapq.heappop(steps)
            clock = max(clock, there) + seconds[i]
            done[i] = clock
        else:
            i = heapq.heappop(kernels)
            there = max((done[n] for n in found.before[i]), default=0.0)
            clock += min(seconds[i], QUEUE_SECONDS)
            device = max(device, there, clock) + seconds[i]
            done[i] = device
        order.append(i)
        for j in found.after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready(j)
    return order


#: seconds in which the host queues a kernel
QUEUE_SECONDS = 4e-6
