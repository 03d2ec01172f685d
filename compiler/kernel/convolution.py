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

#: by op: the numbers of input, weight and output among its two operands (0, 1) and its result (2)
ROLES = {
    "convolution": (0, 1, 2),
    "convolution_input_grad": (2, 1, 0),
    "convolution_weight_grad": (0, 2, 1),
}


@record
class Geometry:
    """The sizes and window parameters of a convolution, in elements.

    Attributes:
        name: the op's name in the dialect.
        n: the batch size.
        c, o: channels of input and output.
        groups: the number of groups.
        inputs, outputs, kernel: spatial sizes of input, output and kernel.
        stride, padding, dilation: one number for each spatial dimension.
        last: whether channels are the last dimension of activations ("N*C"); otherwise they are the second ("NC*").
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
        """The number of spatial dimensions."""
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
        """The number of positions of the kernel."""
        return prod(self.kernel)

    @property
    def positions(self) -> int:
        """The number of output positions of the whole batch."""
        return self.n * prod(self.outputs)

    @property
    def depthwise(self) -> bool:
        """Whether each input channel has one output channel of its own."""
        return self.groups == self.c == self.o and self.groups > 1

    @property
    def pointwise(self) -> bool:
        """Whether each output position reads only the input at the same position (1×1, stride 1, no padding)."""
        return self.taps == 1 and set(self.stride) <= {1} and not any(self.padding)

    def in_space(self) -> Geometry:
        """The same convolution in three spatial dimensions, with leading dimensions of size 1."""
        more = 3 - self.rank
        ones, none = (1,) * more, (0,) * more
        return replace(
            self, inputs=(*ones, *self.inputs), outputs=(*ones, *self.outputs), kernel=(*ones, *self.kernel),
            stride=(*ones, *self.stride), padding=(*none, *self.padding), dilation=(*ones, *self.dilation),
        )  # fmt: skip

    @property
    def walk(self) -> Walk:
        """How a convolution or a gradient of it reads an activation: that of a weight reads as the convolution does."""
        s = self.in_space()
        if self.name != "convolution_input_grad":
            return Walk(
                self.positions, self.o, self.c, s.inputs, s.outputs, s.kernel, s.stride, s.padding, s.dilation,
                (1, 1, 1), any(self.padding),
            )  # fmt: skip
        padding, dilation = (tuple(-x for x in sizes) for sizes in (s.padding, s.dilation))
        return Walk(
            self.n * prod(self.inputs), self.c, self.o, s.outputs, s.inputs, s.kernel, (1, 1, 1), padding, dilation,
            s.stride, not self.pointwise,
        )  # fmt: skip


@record
class Walk:
    """A convolution, or the gradient of its input, as a product of windows and weights, in three spatial dimensions.

    Along each dimension, position p of the result and tap k read position
    (p · stride - padding + k · dilation) / divisor of the activation, if that is an integer.

    Attributes:
        rows, columns: of the result.
        channels: of the activation that is read.
        inputs, outputs, kernel: spatial sizes of that activation, of the result and of the kernel.
        stride, padding, dilation, divisor: one number for each spatial dimension.
        padded: whether some windows reach beyond the activation.
    """

    rows: int
    columns: int
    channels: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    divisor: tuple[int, ...]
    padded: bool


def packed_geometry(op: ir.Operation, types: Sequence[TensorType]) -> Geometry:
    """The geometry of a `packed_product`.

    A matrix product has no spatial dimensions, and its rows are the batch. types: the types of the operands, then of
    the result.
    """
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
    """The geometry of a convolution op.

    Args:
        name: the op's name in the dialect, without "gflow.".
        op: the op, for its attributes.
        types: the types of its operands, then of its result.
    """
    attrs = read(OPS[name], op.attributes)
    x, w, y = (types[n].shape for n in ROLES[name])
    n, channels, spatial = conv_dims(attrs["layout"], len(x))
    inputs, kernel, outputs = (tuple(shape[d] for d in spatial) for shape in (x, w, y))
    return Geometry(
        name, x[n], x[channels], y[channels], attrs["groups"], inputs, outputs, kernel, tuple(attrs["stride"]),
        tuple(attrs["padding"]), tuple(attrs["dilation"]), attrs["layout"] == "N*C",
    )  # fmt: skip
