"""Optimizer state in pieces: a rank keeps its piece of a tensor that Python code sees whole.

The tensor in `optimizer.state` keeps its shape and gives up its memory: it shows NaN everywhere until it is gathered
again (`gather`, which all ranks call together; `optimizer.state_dict()` does).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from .steps import all_gather_single, put_piece

Tensor = torch.Tensor


@dataclass
class _Held:
    """piece: this rank's. strides: of the whole. shown: what stands in its memory's place; None while it is whole.
    current: whether the piece has the latest values, and the whole has none."""

    piece: Tensor
    group: Any
    strides: tuple[int, ...]
    shown: Tensor | None = None
    current: bool = False


#: whole tensor → its piece
_held: Any = WeakIdKeyDictionary()


def piece_of(whole: Tensor, group: Any, size: int) -> Tensor:
    """This rank's piece of a tensor, of `size` elements; what the tensor held is freed."""
    held = _held.get(whole)
    if held is not None and held.shown is not None and held.shown.data_ptr() == whole.data_ptr():
        return held.piece  # type: ignore[no-any-return]
    if held is None or held.piece.numel() != size:
        held = _held[whole] = _Held(whole.new_empty(size), group, whole.stride())
    with torch.no_grad():
        if not held.current or held.shown is not None:  # the whole has values of its own
            put_piece(whole, held.piece, dist.get_rank(group))
        _give_up(whole, held)
    return held.piece


def whole_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor; those that it had when it was whole, if it lies in pieces."""
    held = _held.get(tensor) if _held else None
    if held is None or held.shown is None or held.shown.data_ptr() != tensor.data_ptr():
        return tensor.stride()
    return held.strides  # type: ignore[no-any-return]


def _give_up(whole: Tensor, held: _Held) -> None:
    empty = float("nan") if whole.is_floating_point() else 0
    held.strides = whole.stride()
    held.shown = torch.full((1,), empty, dtype=whole.dtype, device=whole.device)
    held.current = True
    whole.set_(held.shown.untyped_storage(), 0, whole.shape, (0,) * whole.dim())


def gather(tensors: Iterable[Tensor]) -> None:
    """Make tensors whole again; all ranks call it with the same ones."""
    for whole, held in _given_up(tensors):
        flat = held.piece.new_empty(held.piece.numel() * dist.get_world_size(held.group))
        all_gather_single(flat, held.piece, held.group)
        _fill(whole, held)
        whole.copy_(flat[: whole.numel()].view(whole.shape))
        held.current = False


def blank(tensors: Iterable[Tensor]) -> None:
    """Give tensors memory of their own for as long as a program is traced; what it holds means nothing."""
    for whole, held in _given_up(tensors):
        _fill(whole, held)
        held.shown = None


def _fill(whole: Tensor, held: _Held) -> None:
    with torch.no_grad():
        new = torch.empty_strided(whole.shape, held.strides, dtype=whole.dtype, device=whole.device)
        whole.set_(new.untyped_storage(), 0, whole.shape, held.strides)


def _given_up(tensors: Iterable[Tensor]) -> list[tuple[Tensor, _Held]]:
    found = []
    for whole in tensors:
        held = _held.get(whole)
        if (
            held is not None
            and held.shown is not None
            and held.shown.data_ptr() == whole.data_ptr()
        ):
            found.append((whole, held))
    return found
