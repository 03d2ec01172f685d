"""Results beside float64's: gflow's error may be a small multiple of eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: gflow's error may be this many times eager's, both against float64
TIMES = 2.0
#: and this many units in the last place of the largest value, where eager happens to round well
UNITS = 4.0
#: elements that are compared at once
_PART = 1 << 25


def double(t: Tensor) -> Tensor:
    """As float64, if it is of floats."""
    return t.double() if t.is_floating_point() else t


def exact_of(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> tuple[str, list[Tensor]]:
    """A function's results in float64, or in float32 where the memory is too small for that: the type's name,
    and the results."""
    try:
        return "float64", list(function(*map(double, inputs)))
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    wide = [t.float() if t.is_floating_point() else t for t in inputs]
    return "float32", list(function(*wide))


def compare(
    found: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor]
) -> dict[str, Any]:
    """Largest errors against `exact`, relative to the largest value; `ok` if gflow's may pass."""
    if len(found) != len(eager):
        return {"ok": False, "error": f"{len(found)} results, where eager has {len(eager)}"}
    worst, ok = {"error_gflow": 0.0, "error_eager": 0.0}, True
    for mine, other, truth in zip(found, eager, exact):
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return {
                "ok": False,
                "error": f"{mine.dtype} {list(mine.shape)}, eager has {other.dtype} {list(other.shape)}",
            }
        if not truth.is_floating_point():
            ok = ok and torch.equal(mine, other)
            continue
        scale = _largest(truth)
        a, b = (_distance(t, truth, scale) for t in (mine, other))
        unit = torch.finfo(mine.dtype).eps
        ok = ok and a <= max(TIMES * b, UNITS * unit)
        worst = {
            "error_gflow": max(worst["error_gflow"], a),
            "error_eager": max(worst["error_eager"], b),
        }
    return {"ok": ok, **worst}


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, a part at a time: copies in a wider type are large."""
    if tensors[0].numel() <= _PART or not tensors[0].dim():
        yield tensors
        return
    rows = max(1, _PART * tensors[0].shape[0] // tensors[0].numel())
    yield from zip(*(t.split(rows) for t in tensors))


def _largest(truth: Tensor) -> float:
    found = [float(part.abs().max()) for (part,) in _parts(truth) if part.numel()]
    return max([1e-30, *found])


def _distance(a: Tensor, truth: Tensor, scale: float) -> float:
    worst = 0.0
    for mine, exact in _parts(a, truth):
        if not mine.numel():
            continue
        distance = (mine.double() - exact).abs() / scale
        same = (mine == exact) | (mine.isnan() & exact.isnan())
        here = distance.masked_fill(same, 0.0).max().item()
        worst = max(worst, float("inf") if here != here else here)
    return worst


def relative_l2(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The distance of vectors that are given in parts, relative to the length of the exact one."""
    off = sum(
        float((a.double() - b.double()).square().sum()) for a, b in zip(found, exact, strict=True)
    )
    length = sum(float(b.double().square().sum()) for b in exact)
    return (off / max(length, 1e-300)) ** 0.5
