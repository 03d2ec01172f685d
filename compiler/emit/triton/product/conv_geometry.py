"""Sizes of a convolution, and where its three tensors lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gflow.compiler.ir.ssa import Op
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import Place

from ..language.parameters import extent
from ..program_builder import Builder


@dataclass(frozen=True)
class Geometry:
    """n: images. c, o: channels of input and output. inputs, outputs, kernel: spatial sizes.

    last: whether channels are the last dimension.
    """

    n: int
    c: int
    o: int
    groups: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    last: bool

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def cg(self) -> int:
        """Input channels of a group."""
        return self.c // self.groups

    @property
    def og(self) -> int:
        return self.o // self.groups

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def direct(self) -> bool:
        """Whether each output reads the one input at its own position."""
        return self.taps == 1 and set(self.stride) == {1} and not any(self.padding)


@dataclass(frozen=True)
class Tensor:
    """An activation, or a weight, whose `outer` dimension is that of the output channels.

    outer, channel, spatial: strides. extent: elements that it spans.
    """

    place: Place
    dtype: str
    outer: int
    channel: int
    spatial: tuple[int, ...]
    extent: int = 0


def geometry(b: Builder, o: Op, *, written: bool) -> tuple[Geometry, Tensor, Tensor, Tensor]:
    """A convolution's sizes, and its input, weight and output.

    written: whether its result has a place; a contraction with an epilogue has none.
    """
    attrs = read(OPS[o.name], o.op.attributes)
    first, second, out = o.operands[0], o.operands[1], o.results[0]
    x, w, y = {
        "convolution": (first, second, out),
        "convolution_input_grad": (out, second, first),
        "convolution_weight_grad": (first, out, second),
    }[o.name]
    layout = attrs["layout"]

    def tensor(v: int) -> Tensor:
        ty = b.body.types[v]
        outer, channel, spatial = conv_dims(layout, ty.rank)
        place = Place("arena", 0, 0) if v == out and not written else b.place(v)
        s = b.strides(v)
        return Tensor(
            place, ty.dtype, s[outer], s[channel], tuple(s[d] for d in spatial), extent(ty.shape, s)
        )

    sx, sw, sy = (b.body.types[v].shape for v in (x, w, y))
    n, c, spatial = conv_dims(layout, len(sx))
    found = Geometry(
        sx[n], sx[c], sy[c], attrs["groups"], tuple(sx[d] for d in spatial), tuple(sy[d] for d in spatial),
        tuple(sw[d] for d in spatial), tuple(attrs["stride"]), tuple(attrs["padding"]), tuple(attrs["dilation"]),
        layout == "N*C",
    )  # fmt: skip
    return found, tensor(x), tensor(w), tensor(y)
