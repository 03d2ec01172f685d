"""The geometry of a convolution and of its gradients, in any number of spatial dimensions.

Along each dimension, output position p and tap k of the kernel meet input position p · stride - padding + k · dilation;
a position outside of the input is zero. A transposed convolution is the gradient of the input.

    forward          y[p, o]      = sum over (tap, c) of x[p + tap, c]   w[o, tap, c]
    input gradient   x[p, c]      = sum over (tap, o) of y[p - tap, o]   w[o, tap, c]
    weight gradient  w[o, tap, c] = sum over p of        y[p, o]         x[p + tap, c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

#: which of a convolution's operands and result are input, weight and output
ROLES = {
    "convolution": (0, 1, 2),
    "convolution_input_grad": (2, 1, 0),
    "convolution_weight_grad": (0, 2, 1),
}


@record
class Geometry:
    """Sizes of a convolution, and how its windows move.

    name: of the op. n: images. c, o: channels of input and output. inputs, outputs, kernel: spatial sizes.
    last: whether channels are the last dimension of activations ("N*C"), else they are the second ("NC*").
    """

    name: str
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
        """Spatial dimensions."""
        return len(self.kernel)

    @property
    def cg(self) -> int:
        """Input channels of a group."""
        return self.c // self.groups

    @property
    def og(self) -> int:
        """Output channels of a group."""
        return self.o // self.groups

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return prod(self.kernel)

    @property
    def positions(self) -> int:
        """Output positions, of all images."""
        return self.n * prod(self.outputs)

    @property
    def depthwise(self) -> bool:
        """Whether each input channel has one output channel of its own."""
        return self.groups == self.c == self.o and self.groups > 1

    @property
    def pointwise(self) -> bool:
        """Whether each output position reads the one input at its own position."""
        return self.taps == 1 and set(self.stride) <= {1} and not any(self.padding)

    def in_space(self) -> Geometry:
        """The same in three spatial dimensions, the first ones of size 1."""
        more = 3 - self.rank
        ones, none = (1,) * more, (0,) * more
        return replace(
            self, inputs=(*ones, *self.inputs), outputs=(*ones, *self.outputs), kernel=(*ones, *self.kernel),
            stride=(*ones, *self.stride), padding=(*none, *self.padding), dilation=(*ones, *self.dilation),
        )  # fmt: skip

    def in_planes(self) -> Geometry:
        """The same convolution in two spatial dimensions, where it has one: with a height of 1."""
        if self.rank != 1:
            return self
        return replace(
            self, inputs=(1, *self.inputs), outputs=(1, *self.outputs), kernel=(1, *self.kernel),
            stride=(1, *self.stride), padding=(0, *self.padding), dilation=(1, *self.dilation),
        )  # fmt: skip


def packed_geometry(op: ir.Operation, types: Sequence[TensorType]) -> Geometry:
    """The geometry of a `packed_product`: of a product of matrices, without spatial dimensions and as many images as
    rows. types: of its operands, then its result."""
    attrs = read(OPS["packed_product"], op.attributes)
    x, y = types[0].shape, types[2].shape
    kernel = tuple(attrs["kernel"])
    n, inputs, outputs = (x[0], x[1:-1], y[1:-1]) if kernel else (prod(x[:-1]), (), ())
    groups = x[-1] if attrs["depthwise"] else 1
    return Geometry(
        "convolution", n, x[-1], y[-1], groups, inputs, outputs, kernel, tuple(attrs["stride"]),
        tuple(attrs["padding"]), tuple(attrs["dilation"]), last=True,
    )  # fmt: skip


def geometry(name: str, op: ir.Operation, types: Sequence[TensorType]) -> Geometry:
    """The geometry of an op, by its name in the dialect. types: of its operands, then its result."""
    attrs = read(OPS[name], op.attributes)
    x, w, y = (types[n].shape for n in ROLES[name])
    n, channels, spatial = conv_dims(attrs["layout"], len(x))
    inputs, kernel, outputs = (tuple(shape[d] for d in spatial) for shape in (x, w, y))
    return Geometry(
        name, x[n], x[channels], y[channels], attrs["groups"], inputs, outputs, kernel, tuple(attrs["stride"]),
        tuple(attrs["padding"]), tuple(attrs["dilation"]), attrs["layout"] == "N*C",
    )  # fmt: skip
