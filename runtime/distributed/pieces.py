"""Sharded tensors: a rank keeps its shard of a tensor that Python code sees whole.

The tensor (optimizer state or a parameter) keeps its shape but not its memory: it reads as NaN until it is gathered
(`gather`, which all ranks call together, as `state_dict()` does). Most ops refuse to write to it. After one that does
not (`zero_`, `fill_`), its next use is an error.
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
from .groups import is_alive
from .release import used
from .steps import all_gather, put_piece

Tensor = torch.Tensor


@dataclass
class _Held:
    """The state of a tensor whose memory this rank does not hold as a whole.

    Attributes:
        strides: the strides of the whole tensor.
        shown: the memory that the tensor has while its latest values are elsewhere (in the piece, or on other ranks);
            None while the whole tensor has them on all ranks.
        given_up: whether `shown` is a single element.
        piece: this rank's piece; None if the tensor isn't sharded.
        group: the process group over which the tensor is sharded, or None.
        keepers: a process group of which one rank (`owner`) keeps the tensor: as a whole (then `shown` is the tensor's
            own memory there), or sharded over another group; None if all ranks have it.
        owner: the rank in `keepers`.
    """

    strides: tuple[int, ...]
    shown: Tensor | None = None
    given_up: bool = False
    piece: Tensor | None = None
    group: Any = None
    keepers: Any = None
    owner: int | None = None

    @property
    def mine(self) -> bool:
        """Whether this rank has the latest values or a piece of them."""
        return self.keepers is None or self.owner == dist.get_rank(self.keepers)


#: the state of each such tensor
_held: Any = WeakIdKeyDictionary()
#: the methods of tensors by which they are copied and saved
COPYING = {"__deepcopy__", "__reduce_ex__"}
#: whether `gather` has an effect
_gathering = [True]


def any_held() -> bool:
    """Whether this process has had a sharded tensor."""
    return bool(_held.data)  # its own length is counted in Python


def _divided(whole: Tensor) -> _Held | None:
    """The state of a tensor, if its latest values are in pieces; None if it has been given other memory.

    Raises:
        RuntimeError: the element that stands for the tensor has been written to.
    """
    held = _held.get(whole) if _held else None
    if held is None or held.shown is None or held.shown.data_ptr() != whole.data_ptr():
        return None
    if held.given_up and not _is_empty(held.shown):
        with torch.no_grad():
            held.shown.fill_(_empty(whole.dtype))
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} was written to (zero_, fill_, …) while it lay in pieces on the "
            "ranks, or on another rank. The write has changed nothing; all ranks have to gather the tensor "
            "before: gflow.distributed.unshard(module), or of an optimizer"
        )
    return held  # type: ignore[no-any-return]


def _empty(dtype: torch.dtype) -> float | int:
    """The value that a tensor without memory shows: NaN for floats."""
    if dtype is torch.bool:
        return False
    return float("nan") if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).min


def _is_empty(shown: Tensor) -> bool:
    value, empty = shown.item(), _empty(shown.dtype)
    return value == empty or (value != value and empty != empty)


def piece_of(whole: Tensor, group: Any, size: int) -> Tensor:
    """Shard a tensor: this rank's piece of it, of `size` elements. The memory of the tensor is freed.

    Raises:
        RuntimeError: the tensor is sharded over other ranks.
    """
    held = _divided(whole)
    if held is not None and held.piece is not None and held.mine:
        if held.piece.numel() == size:
            return held.piece
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} lies in pieces of {held.piece.numel()} elements, and a program "
            f"takes pieces of {size}: gather it first (gflow.distributed.unshard)"
        )
    if held is not None and not held.mine:
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} lies on rank {held.owner} of a pipeline, and a program on rank "
            f"{dist.get_rank(held.keepers)} takes a piece of it: gather it first (gflow.distributed.unshard)"
        )
    if held is None:
        known = _held.get(whole)
        held = _held[whole] = _Held(whole.stride(), piece=None if known is None else known.piece)
    if held.piece is None or held.piece.numel() != size:
        held.piece = whole.new_empty(size)
    held.group = group
    with torch.no_grad():
        put_piece(whole, held.piece, dist.get_rank(group))
        held.strides = whole.stride()
        _give_up(whole, held)
    return held.piece


def keep_on(whole: Tensor, keepers: Any, owner: int, divided: bool = False) -> None:
    """From now on only rank `owner` of the group `keepers` keeps a tensor; the other ranks free its memory.

    Args:
        whole: the tensor.
        keepers: the process group.
        owner: the rank in the group.
        divided: whether the owner keeps a piece (`piece_of`) of a tensor that is sharded over another group.

    Raises:
        RuntimeError: another rank keeps the tensor, or it is sharded.
    """
    held = _divided(whole)
    if held is not None:
        if held.owner == owner and (divided or held.piece is None or not held.mine):
            return
        raise RuntimeError(
            f"a tensor of shape {list(whole.shape)} lies on other ranks than a pipeline keeps it on: gather it first "
            "(gflow.distributed.unshard)"
        )
    held = _held[whole] = _Held(whole.stride(), keepers=keepers, owner=owner)
    with torch.no_grad():
        if held.mine:
            held.shown = whole.detach()
        else:
            _give_up(whole, held)


def whole_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor, or of the whole tensor if it is sharded."""
    held = _divided(tensor)
    return tensor.stride() if held is None else held.strides


def _give_up(whole: Tensor, held: _Held) -> None:
    held.shown = torch.full((1,), _empty(whole.dtype), dtype=whole.dtype, device=whole.device)
    held.given_up = True
    whole.set_(held.shown.untyped_storage(), 0, whole.shape, (0,) * whole.dim())
    for name in COPYING:
        setattr(whole, name, _refuse_copies)


def _take_back(whole: Tensor, held: _Held) -> None:
    """Record that the tensor has its own memory again."""
    held.given_up = False
    for name in COPYING & vars(whole).keys():
        delattr(whole, name)


def _refuse_copies(*_: Any) -> Any:
    """Raise an error from `copy.deepcopy` and `pickle` (`torch.save`) of a tensor without memory."""
    raise RuntimeError(
        "a tensor is copied or saved while it lies in pieces on the ranks, or on another rank, so the copy would be of "
        "NaN: save state_dict(), or gather it on all ranks before: gflow.distributed.unshard(module or optimizer)"
    )


def gather(tensors: Iterable[Tensor]) -> None:
    """Gather tensors, so that they are whole again. All ranks must call it with the same tensors.

    Raises:
        RuntimeError: another rank did not take part within the group's timeout.
    """
    for whole, held in _those_divided(tensors) if _gathering[0] else ():
        flat = _joined(whole, held) if held.mine else whole.new_empty(whole.numel())
        if held.keepers is not None:
            with torch.no_grad(), used(flat):
                dist.broadcast(flat, group=held.keepers, group_src=held.owner)
        if held.piece is not None or not held.mine:
            with torch.no_grad():
                whole.set_(*_memory(whole, held))
                whole.copy_(flat.view(whole.shape))
        held.shown = held.keepers = held.owner = None
        _take_back(whole, held)


def _joined(whole: Tensor, held: _Held) -> Tensor:
    """The values of a tensor that this rank has, or has a piece of, as a flat tensor."""
    if held.piece is None:
        return whole.detach().reshape(-1)
    ranks = dist.get_world_size(held.group)
    flat = held.piece.new_empty(held.piece.numel() * ranks)
    try:
        with used(flat, held.piece):
            all_gather(flat, held.piece, held.group).wait()
    except RuntimeError as error:
        told = (
            f"rank {dist.get_rank()} gathers a tensor of shape {list(whole.shape)} that lies in pieces on "
            f"{ranks} ranks, which all of them do together: state_dict(), and calls that read it whole"
        )
        explain(error, told)
        raise
    return flat[: whole.numel()]


def parts_held() -> dict[int, tuple[Tensor | None, Any]]:
    """The parts of sharded tensors that this rank has, by the current address of the tensor (and of complete views).

    Returns:
        For each address: the piece and its group; or the whole tensor and None if this rank keeps it; or None and None
        if another rank keeps it.
    """
    found: dict[int, tuple[Tensor | None, Any]] = {}
    for whole, held in _all_divided():
        if not held.mine:
            found[whole.data_ptr()] = None, None
        elif held.piece is None:
            found[whole.data_ptr()] = whole.detach(), None
        else:
            found[whole.data_ptr()] = held.piece, held.group
    return found


@contextlib.contextmanager
def ungathered() -> Iterator[None]:
    """A context in which `gather` has no effect."""
    _gathering[0] = False
    try:
        yield
    finally:
        _gathering[0] = True


@contextlib.contextmanager
def lent() -> Iterator[None]:
    """A context in which sharded tensors have their own memory, with meaningless contents, for tracing."""
    found = [
        (whole, held) for whole, held in _all_divided() if held.piece is not None or not held.mine
    ]
    with torch.no_grad():
        for whole, held in found:
            memory = whole.new_empty(0).set_(*_memory(whole, held))
            held.shown = memory
            _take_back(whole, held)
            whole.set_(*_place(memory))
    try:
        yield
    finally:
        with torch.no_grad():
            for whole, held in found:
                if _divided(whole) is held:
                    _give_up(whole, held)


def _memory(whole: Tensor, held: _Held) -> tuple[Any, ...]:
    """Allocate memory for a whole tensor."""
    return _place(
        torch.empty_strided(whole.shape, held.strides, dtype=whole.dtype, device=whole.device)
    )


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def _all_divided() -> list[tuple[Tensor, _Held]]:
    """All tensors that are sharded or kept by one rank, except those whose process groups were destroyed."""
    return [
        (t, held)
        for t, held in _those_divided(_held.keys())
        if all(is_alive(g) for g in (held.group, held.keepers) if g is not None)
    ]


def _those_divided(tensors: Iterable[Tensor]) -> list[tuple[Tensor, _Held]]:
    unique = {id(t): t for t in tensors}
    return [(t, held) for t in unique.values() if (held := _divided(t)) is not None]
