"""Tensors in pieces: a rank keeps its piece of a tensor that Python code sees whole.

The tensor (of an optimizer's state, a module's parameter) keeps its shape and gives up its memory: it shows NaN
everywhere until it is gathered again (`gather`, which all ranks call together; `state_dict()` does).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from ..failures import explain
from .release import used
from .steps import all_gather_single, put_piece

Tensor = torch.Tensor


@dataclass
class _Held:
    """piece: this rank's. strides: of the whole. shown: what stands in the place of the whole's memory while the piece
    has the latest values; None while the whole has them. owner: the rank of the group that keeps the tensor, where it
    lies on one and not in pieces; there, `shown` is the tensor's own memory."""

    piece: Tensor
    group: Any
    strides: tuple[int, ...]
    shown: Tensor | None = None
    owner: int | None = None


#: whole tensor → its piece
_held: Any = WeakIdKeyDictionary()
#: whether `gather` acts
_gathering = [True]


def any_held() -> bool:
    """Whether this process has had a tensor in pieces."""
    return bool(_held)


def _divided(whole: Tensor) -> _Held | None:
    """What is held of a tensor, if its piece has the latest values; someone may have given it other memory."""
    held = _held.get(whole) if _held else None
    if held is None or held.shown is None or held.shown.data_ptr() != whole.data_ptr():
        return None
    return held  # type: ignore[no-any-return]


def piece_of(whole: Tensor, group: Any, size: int) -> Tensor:
    """This rank's piece of a tensor, of `size` elements; what the tensor held is freed.

    Raises:
        RuntimeError: the tensor lies in pieces of other ranks.
    """
    held = _divided(whole)
    if held is not None:
        if held.piece.numel() == size and held.owner is None:
            return held.piece
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} lies in pieces of {held.piece.numel()} elements, and a program "
            f"takes pieces of {size}: gather it first (gflow.distributed.gather)"
        )
    held = _held.get(whole)
    if held is None or held.piece.numel() != size:
        held = _held[whole] = _Held(whole.new_empty(size), group, whole.stride())
    with torch.no_grad():
        put_piece(whole, held.piece, dist.get_rank(group))
        held.strides = whole.stride()
        _give_up(whole, held)
    return held.piece  # type: ignore[no-any-return]


def keep_on(whole: Tensor, group: Any, owner: int) -> None:
    """From now on one rank of a group has the latest values of a tensor, and keeps it; others give their memory up.

    Raises:
        RuntimeError: another one keeps it, or it lies in pieces.
    """
    held = _divided(whole)
    if held is not None:
        if held.owner == owner:
            return
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} lies on other ranks than a pipeline keeps it on: gather it first "
            "(gflow.distributed.unshard)"
        )
    held = _held[whole] = _Held(whole.new_empty(0), group, whole.stride(), None, owner)
    with torch.no_grad():
        if owner == dist.get_rank(group):
            held.shown = whole.detach()
        else:
            _give_up(whole, held)


def whole_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor; those that it had when it was whole, if it lies in pieces."""
    held = _divided(tensor)
    return tensor.stride() if held is None else held.strides


def _give_up(whole: Tensor, held: _Held) -> None:
    empty = float("nan") if whole.is_floating_point() else 0
    held.shown = torch.full((1,), empty, dtype=whole.dtype, device=whole.device)
    whole.set_(held.shown.untyped_storage(), 0, whole.shape, (0,) * whole.dim())


def gather(tensors: Iterable[Tensor]) -> None:
    """Make tensors whole again; all ranks call it with the same ones.

    Raises:
        RuntimeError: another rank does not take part within the group's timeout.
    """
    for whole, held in _those_divided(tensors) if _gathering[0] else ():
        ranks = dist.get_world_size(held.group)
        if held.owner is not None:
            _from_owner(whole, held)
            continue
        flat = held.piece.new_empty(held.piece.numel() * ranks)
        try:
            with used(flat, held.piece):
                all_gather_single(flat, held.piece, held.group)
        except RuntimeError as error:
            told = (
                f"rank {dist.get_rank()} gathers a tensor of shape {list(whole.shape)} that lies in pieces on "
                f"{ranks} ranks, which all of them do together: state_dict(), and calls that read it whole"
            )
            explain(error, told)
            raise
        with torch.no_grad():
            whole.set_(*_memory(whole, held))
            whole.copy_(flat[: whole.numel()].view(whole.shape))
        held.shown = None


def parts_held() -> dict[int, tuple[Tensor | None, Any]]:
    """What this rank has of tensors that lie in pieces, by the address that these, and views of all of them, have now.

    Returns:
        The piece and its group; or the whole and None where this rank keeps it, None and None where another one does.
    """
    found: dict[int, tuple[Tensor | None, Any]] = {}
    for whole, held in _those_divided(_held.keys()):
        mine = held.owner is not None and held.owner == dist.get_rank(held.group)
        if held.owner is None:
            found[whole.data_ptr()] = held.piece, held.group
        else:
            found[whole.data_ptr()] = (whole.detach() if mine else None), None
    return found


@contextlib.contextmanager
def ungathered() -> Iterator[None]:
    """While active, nothing is gathered."""
    _gathering[0] = False
    try:
        yield
    finally:
        _gathering[0] = True


def _from_owner(whole: Tensor, held: _Held) -> None:
    """Give all ranks what one keeps."""
    mine = held.owner == dist.get_rank(held.group)
    with torch.no_grad():
        flat = whole.detach().reshape(-1) if mine else whole.new_empty(whole.numel())
        with used(flat):
            dist.broadcast(flat, group=held.group, group_src=held.owner)
        if not mine:
            whole.set_(*_memory(whole, held))
            whole.copy_(flat.view(whole.shape))
    held.shown = None


@contextlib.contextmanager
def lent() -> Iterator[None]:
    """Give what lies in pieces memory of its own for as long as a program is traced; what it holds means nothing."""
    found = [
        (whole, held)
        for whole, held in _those_divided(_held.keys())
        if held.owner is None or held.owner != dist.get_rank(held.group)
    ]
    with torch.no_grad():
        for whole, held in found:
            memory = whole.new_empty(0).set_(*_memory(whole, held))
            held.shown = memory
            whole.set_(*_place(memory))
    try:
        yield
    finally:
        with torch.no_grad():
            for whole, held in found:
                if _divided(whole) is held:
                    _give_up(whole, held)


def _memory(whole: Tensor, held: _Held) -> tuple[Any, ...]:
    """New memory for a whole tensor."""
    return _place(
        torch.empty_strided(whole.shape, held.strides, dtype=whole.dtype, device=whole.device)
    )


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def _those_divided(tensors: Iterable[Tensor]) -> list[tuple[Tensor, _Held]]:
    unique = {id(t): t for t in tensors}
    return [(t, held) for t in unique.values() if (held := _divided(t)) is not None]
