"""Reductions and large all-gathers of Gloo groups, by point-to-point messages.

PyTorch's Gloo process group implements reduce-scatter as an all-reduce on a copy of the operand, which sends twice the
bytes, and all-gather through a copy of the result. Its all-reduce sums in an order that depends on the position of an
element in the tensor, so the bits of a gradient depend on the layout of its bucket. Here each rank sends its data
directly to every other rank, from and to the program's memory:

    reduce-scatter   rank r sends piece s of its operand to rank s, and adds the pieces that it receives
    all-gather       rank r sends its piece to all ranks
    all-reduce       both, in parts: the sum of a part is sent while the next part is received

A rank sends (ranks - 1) / ranks of the tensor's bytes in each of the first two, and twice that in the third. Terms are
added in the order of the ranks, half precision in float32, so a reduce-scatter has the same bits as an all-reduce. With
two ranks the order does not matter, and Gloo's own all-reduce is used, which is slightly faster.
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

#: the fewest bytes of a whole tensor for which this is faster; Gloo's own collectives have fewer messages
_LEAST = 1 << 20
#: the bytes of a part that a rank receives from all others together, and the number of parts in flight
_PART, _AHEAD = 1 << 20, 4
#: the most elements that PyTorch adds in the calling thread alone
_SERIAL = 1 << 15
#: the tags of messages: operands and results of sums, pieces of gathers. Messages of a group are delivered in order
_OPERANDS, _RESULTS, _PIECES = 0x6F10, 0x6F11, 0x6F12
_HALVES = (torch.float16, torch.bfloat16)
#: by group: whether its latest sum is done, so that the next one can begin
_latest: Any = WeakKeyDictionary()


def carries(whole: Tensor, group: Any, reduction: str | None = None) -> bool:
    """Whether a collective on this tensor uses point-to-point messages, for speed or for reproducible bits.

    It does in a group with the backend Gloo, if the tensor is large, or if it sums floating-point numbers of more than
    two ranks, so that a sum does not depend on the position of its element.

    Args:
        whole: the operand of a reduce-scatter or an all-reduce, the result of an all-gather.
        group: the process group.
        reduction: the kind of a reduce-scatter or an all-reduce; None: an all-gather.
    """
    if whole.device.type != "cpu" or reduction not in (None, "sum"):
        return False
    known: Any = group or dist.group.WORLD
    if not isinstance(known._get_backend(whole.device), dist.ProcessGroupGloo):
        return False
    rounds = reduction is not None and (whole.is_floating_point() or whole.is_complex())
    return whole.nbytes >= _LEAST or (rounds and dist.get_world_size(group) > 2)


class Gather:
    """An all-gather in flight; `wait` completes it."""

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
        """Wait until this rank has received all pieces, and its own piece is sent.

        Raises:
            RuntimeError: a rank has ended, or the group's timeout has passed.
        """
        _wait_all(self._works)


@dataclass
class Sum:
    """A reduce-scatter or an all-reduce in flight, in its own thread; `wait` completes it.

    operand: dense; an all-reduce overwrites it by the result. result: this rank's piece; None for an all-reduce.
    """

    operand: Tensor
    result: Tensor | None
    group: Any
    error: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        key = self.group or dist.group.WORLD
        before, self._done = _latest.get(key), threading.Event()
        _latest[key] = self._done  # keeps no reference to the group and the tensors
        threading.Thread(target=self._run, args=(before,), daemon=True, name="gflow: sum").start()

    def wait(self) -> None:
        """Wait until this rank has the result, and the others have received its data.

        Raises:
            RuntimeError: a rank has ended, or the group's timeout has passed.
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
        except Exception as error:  # is raised in the waiting thread
            self.error = error
        finally:
            self._done.set()

    def _sum(self) -> None:
        group, rank = self.group, dist.get_rank(self.group)
        ranks = dist.get_world_size(group)
        others = [r for r in range(ranks) if r != rank]
        flat = self.operand.view(-1)
        pieces = flat.split(
            -(-flat.numel() // ranks)
        )  # in an all-reduce, the last pieces may be missing
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
                # into memory that was sent to rank r, whose sum arrives after it has received that
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
    """Add flat tensors, ((first + second) + third) …; half precision in float32. The result may be one of the terms."""
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
    """Wait for all, even if one has failed, since their memory is reused afterwards."""
    first = None
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            first = first or error
    if first is not None:
        raise first
