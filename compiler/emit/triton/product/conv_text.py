"""Index arithmetic that convolution kernels share, as text: positions, taps, bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflow.compiler.kernel.selection.gpu.product.convolution import Convolution, Tensor
from gflow.compiler.kernel.sizes import WIDE

from ..language.parameters import Parameters, term, total


@dataclass
class Walk:
    """The index arithmetic of a convolution; sizes become parameters.

    In the text `k0`, … are a tap's coordinates, `h0`, … the input position of an output's first tap, and `u0`, … the
    input position that a tap reads.
    """

    g: Convolution
    p: Parameters

    def constants(self) -> dict[str, int]:
        """The sizes of the convolution's kernel, as `tl.constexpr`."""
        return {f"K{i}": k for i, k in enumerate(self.g.kernel)}

    def strides(self, stem: str, t: Tensor) -> tuple[str, str, list[str]]:
        """The texts of a tensor's strides: the outer dimension (batch), channels, and spatial dimensions."""
        return (
            self.p.stride("w_o" if stem == "w" else f"{stem}_n", t.outer),
            self.p.stride(f"{stem}_c", t.channel),
            self.p.strides(f"{stem}_", t.spatial),
        )

    def at(self, stem: str, strides: tuple[str, str, list[str]], extent: int) -> str:
        """The offset of channel 0 at position `{stem}0`, … of `image`. extent: the elements that the tensor spans."""
        outer, _, spatial = strides
        image = "image.to(tl.int64)" if extent >= WIDE else "image"
        return total([term(image, outer), *(term(f"{stem}{i}", s) for i, s in enumerate(spatial))])

    def unravel(self, flat: str, sizes: Sequence[int], stem: str) -> list[str]:
        """Lines that split a flat position into `image` and `{stem}0`, …."""
        lines = [f"image = {flat}"]
        for i in range(len(sizes) - 1, -1, -1):
            size = self.p.number(f"{stem}_size{i}", sizes[i])
            lines += [f"{stem}{i} = image % {size}", f"image = image // {size}"]
        return lines

    def taps(self, tap: str, sizes: Sequence[str], stem: str = "k") -> list[str]:
        """Lines that split the number of a tap into `{stem}0`, …."""
        lines, rest = [], tap
        for i in range(len(sizes) - 1, 0, -1):
            lines += [f"{stem}{i} = {rest} % {sizes[i]}", f"over{i} = {rest} // {sizes[i]}"]
            rest = f"over{i}"
        return [*lines, f"{stem}0 = {rest}"]

    def starts(self, stem: str) -> list[str]:
        """Lines that compute `h0`, … of the output position `{stem}0`, …."""
        lines = []
        for i in range(self.g.rank):
            stride, padding = self.moves(i)
            minus = f" - {padding}" if padding != "0" else ""
            lines.append(f"h{i} = {term(f'{stem}{i}', stride)}{minus}")
        return lines

    def moves(self, i: int) -> tuple[str, str]:
        """The stride and the padding along spatial dimension `i`."""
        stride = self.p.stride(f"stride{i}", self.g.stride[i])
        return stride, self.p.stride(f"padding{i}", self.g.padding[i])

    def source(self, i: int) -> tuple[list[str], list[str]]:
        """Lines that compute the output position `u{i}` whose tap `k{i}` reads the input position `q{i}`.

        Also returns the conditions under which there is such a position.
        """
        size = self.p.number(f"y_size{i}", self.g.outputs[i])
        stride, padding = self.moves(i)
        shifted, inside = (
            f"q{i} + ({padding} - {self.dilated(i)})",
            [f"(u{i} >= 0)", f"(u{i} < {size})"],
        )
        if self.g.stride[i] == 1:
            return [f"u{i} = {shifted}"], inside
        even = [f"(t{i} >= 0)", f"(t{i} % {stride} == 0)"]
        return [f"t{i} = {shifted}", f"u{i} = t{i} // {stride}"], [*even, *inside]

    def dilated(self, i: int) -> str:
        """The distance of a tap from the first one along spatial dimension `i`: its index times the dilation."""
        return term(f"k{i}", self.p.stride(f"dilation{i}", self.g.dilation[i]))

    def padded(self, i: int) -> bool:
        """Whether some taps may read outside of the input along spatial dimension `i`."""
        return self.g.padding[i] > 0

    def inside(self, rows: str, cols: str) -> list[str]:
        """Lines that compute `u0`, … along dimensions with padding. rows, cols: how vectors are broadcast, or ""."""
        return [
            f"u{i} = h{i}{rows} + {f'({self.dilated(i)}){cols}' if cols else self.dilated(i)}"
            for i in range(self.g.rank)
            if self.padded(i)
        ]

    def bounds(self) -> str:
        """The condition that a tap is inside the input; "" if all are."""
        parts = []
        for i in range(self.g.rank):
            if self.padded(i):
                size = self.p.number(f"x_size{i}", self.g.inputs[i])
                parts += [f"(u{i} >= 0)", f"(u{i} < {size})"]
        return " & ".join(parts)

    def tap_at(self, strides: Sequence[str], more: str) -> str:
        """The offset of a tap from the first one."""
        return total([*(term(self.dilated(i), s) for i, s in enumerate(strides)), more])

    def plain(self, strides: Sequence[str]) -> list[str]:
        """The terms of a tap's offset in a weight."""
        return [term(f"k{i}", s) for i, s in enumerate(strides)]


def and_masks(*masks: str | None) -> str:
    """The text of the conjunction of masks; None stands for no condition."""
    return " & ".join(m for m in masks if m)


def masked(*masks: str | None) -> str:
    """The text of the mask arguments of a load that gives 0 where a mask is false."""
    text = and_masks(*masks)
    return f", mask={text}, other=0.0" if text else ""
