"""Sizes of a convolution, and how its kernels get them."""

from __future__ import annotations

from dataclasses import dataclass

from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

#: words of every kernel after its pointers: batch, input, output and kernel sizes, then
#: strides, padding and dilation
GEOMETRY = ("n", "h", "w", "c", "ho", "wo", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")


@dataclass(frozen=True)
class Geometry:
    """Sizes of a 2-d convolution; a 1-d one has a height of 1."""

    n: int
    h: int
    w: int
    c: int
    ho: int
    wo: int
    o: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int
    groups: int

    @property
    def taps(self) -> int:
        return self.kh * self.kw

    @property
    def direct(self) -> bool:
        """Whether each output reads the one input at its own position."""
        return (self.kh, self.kw, self.sh, self.sw, self.ph, self.pw) == (1, 1, 1, 1, 0, 0)

    def words(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in GEOMETRY)


def geometry(name: str, op: ir.Operation, x: TensorType, w: TensorType, y: TensorType) -> Geometry:
    """The sizes of a channels-last convolution op of this name."""
    attrs = read(OPS[name], op.attributes)

    def two(values: tuple[int, ...], fill: int) -> tuple[int, int]:
        a, b = (fill,) * (2 - len(values)) + tuple(values)
        return a, b

    h, wd = two(x.shape[1:-1], 1)
    ho, wo = two(y.shape[1:-1], 1)
    kh, kw = two(w.shape[1:-1], 1)
    walk = (*two(attrs["stride"], 1), *two(attrs["padding"], 0), *two(attrs["dilation"], 1))
    sizes = (x.shape[0], h, wd, x.shape[-1], ho, wo, y.shape[-1], kh, kw)
    return Geometry(*sizes, *walk, attrs["groups"])
