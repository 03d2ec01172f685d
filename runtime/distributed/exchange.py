"""Reductions and large all-gathers of Gloo groups, by point-to-point messages.

PyTorch's Gloo process group implements reduce-scatter as an all-reduce on a copy of the operand, which sends twice the
bytes, and all-gather through a copy of the result. Its all-reduce sums in an order that depends on the position of an
element in the tensor, so a gradient has other bits in a bucket of another layout. Here each rank sends every other rank
its data, directly from and to the program's memory:

    reduce-scatter   rank r sends piece s of its operand to rank s, and adds up what it receives
    all-gather       rank r sends its piece to all
    all-reduce       both, part by part: what is added up is sent while the next part is received

A rank sends (ranks - 1) / ranks of the tensor's bytes in each of the first two, and twice that in the third. Sums are
in the order of the ranks, those of halves in float32, so a reduce-scatter has the same bits as an all-reduce. Between
two ranks the order does not matter: an all-reduce is Gloo's own, which is a little faster.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

Tensor = torch.Tensor

#: bytes of a whole tensor from which on it is faster: below, Gloo's own collectives have fewer messages
_LEAST = 1 << 20
#: bytes of a part that a rank receives of all others together, and parts that it waits for at a time
_PART, _AHEAD = 1 << 20, 4
#: elements that PyTorch adds in the calling thread, whatever the number of threads
_SERIAL = 1 << 15
#: tags of messages: operands and results of sums, pieces of gathers. FIFO: those of one group have an order
_OPERANDS, _RESULTS, _PIECES = 0x6F10, 0x6F11, 0x6F12
_HALVES = (torch.float16, torch.bfloat16)
#: group → whether its latest sum is done: the next one begins then
_latest: Any = WeakKeyDictionary()


def carries(whole: Tensor, group: Any, reduction: str | None = None) -> bool:
    """Whether a collective on this tensor goes by messages, for its speed or for its bits.

    It does in a group whose backend is Gloo, if it is large, or if it adds up floating-point numbers of more than two
    ranks, so that a sum does not depend on its element's place.

    Args:
        whole: the operand of a reduce-scatter or an all-reduce, the result of an all-gather.
        reduction: of the first two; None for an all-gather.
    """
    if whole.device.type != "cpu" or reduction not in (None, "sum"):
        return False
    known: Any = group or dist.group.WORLD
    if not isinstance(known._get_backend(whole.device), dist.ProcessGroupGloo):
        return False
    rounds = reduction is not None and (whole.is_floating_point() or whole.is_complex())
    return whole.nbytes >= _LEAST or (rounds and dist.get_world_size(group) > 2)


class Gather:
    """An all-gather under way. `wait` ends it."""

    def __init__(self, result: Tensor, piece: Tensor, group: Any) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        rows = result.view(ranks, -1)
        if rows[rank].data_ptr() != piece.data_ptr():
            rows[rank].copy_(piece.view(-1))
        others = [r for r in range(ranks) if r != rank]
        self._works = [
            *(dist.irecv(rows[r], group=group, group_src=r, tag=_PIECES) for r in others),
            *(dist.isend(rows[rank], group=group, group_dst=r, tag=_PIECES) for r in others),
        ]

    def wait(self) -> None:
        """Wait until this rank has all pieces, and its own is sent.

        Raises:
            RuntimeError: a rank has ended, or the group's timeout is over.
        """
        _wait_all(self._works)


@dataclass
class Sum:
    """A reduce-scatter or an all-reduce under way, in a thread of its own. `wait` ends it.

    operand: dense; of an all-reduce overwritten by the result. result: this rank's piece, None of an all-reduce.
    """

    operand: Tensor
    result: Tensor | None
    group: Any
    error: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        key = self.group or dist.group.WORLD
        before, self._done = _latest.get(key), threading.Event()
        _latest[key] = self._done  # of the group and the tensors, nothing is kept
        threading.Thread(target=self._run, args=(before,), daemon=True, name="gflow: sum").start()

    def wait(self) -> None:
        """Wait until this rank has the result, and the others what they need of it.

        Raises:
            RuntimeError: a rank has ended, or the group's timeout is over.
        """
        self._done.wait()
        if self.error is not None:
            raise self.error

    def _run(self, before: threading.Event | None) -> None:
        try:
            if before is not None:
                before.wait()
            with torch.no_grad():
                self._sum()
        except Exception as error:  # for the thread that waits
            self.error = error
        finally:
            self._done.set()

    def _sum(self) -> None:
        group, rank = self.group, dist.get_rank(self.group)
        ranks = dist.get_world_size(group)
        others = [r for r in range(ranks) if r != rank]
        flat = self.operand.view(-1)
        pieces = flat.split(-(-flat.numel() // ranks))  # of an all-reduce, the last ones may lack
        pieces = (*pieces, *(flat[:0] for _ in range(ranks - len(pieces))))
        own = pieces[rank]
        result = own if self.result is None else self.result.view(-1)
        count = max(_PART // (ranks - 1) // flat.element_size(), 1)
        works: list[Any] = []
        for r in others:
            works += [
                dist.isend(part, group=group, group_dst=r, tag=_OPERANDS)
                for part in _parts(pieces[r], count)
            ]
            if self.result is None:
                # into what this rank sends: the sum comes after rank r has received it
                works += [
                    dist.irecv(part, group=group, group_src=r, tag=_RESULTS)
                    for part in _parts(pieces[r], count)
                ]
        coming: deque[tuple[list[Any], Tensor]] = deque()
        mine, sums = _parts(own, count), _parts(result, count)
        slots = flat.new_empty(min(_AHEAD, len(mine)), ranks - 1, min(count, own.numel()))

        def receive(n: int) -> None:
            rows = slots[n % _AHEAD][:, : mine[n].numel()]
            found = [
                dist.irecv(row, group=group, group_src=r, tag=_OPERANDS)
                for r, row in zip(others, rows)
            ]
            coming.append((found, rows))

        try:
            for n in range(min(_AHEAD, len(mine))):
                receive(n)
            for n, (x, y) in enumerate(zip(mine, sums)):
                found, rows = coming.popleft()
                _wait_all(found)
                add_in_order([*rows[:rank], x, *rows[rank:]], y)
                if n + _AHEAD < len(mine):
                    receive(n + _AHEAD)
                if self.result is None:
                    works += [dist.isend(y, group=group, group_dst=r, tag=_RESULTS) for r in others]
        finally:
            _wait_all([*works, *(work for found, _ in coming for work in found)])


def add_in_order(terms: Sequence[Tensor], result: Tensor) -> None:
    """The sum of flat tensors, ((first + second) + third) …; of halves in float32. The result may be one of them."""
    for start in range(0, result.numel(), _SERIAL):
        now = [t[start : start + _SERIAL] for t in terms]
        total = now[0].float() if result.dtype in _HALVES else now[0]
        for term in now[1:-1]:
            total = total + term
        if result.dtype in _HALVES:
            result[start : start + _SERIAL].copy_(total + now[-1])
        else:
            torch.add(total, now[-1], out=result[start : start + _SERIAL])


def _parts(piece: Tensor, count: int) -> tuple[Tensor, ...]:
    return piece.split(count) if piece.numel() else ()


def _wait_all(works: Sequence[Any]) -> None:
    """Wait for all, also when one has failed: their memory is used again afterwards."""
    first = None
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            first = first or error
    if first is not None:
        raise first
