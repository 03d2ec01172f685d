"""The parameters of a kernel and the arguments of one launch, collected while the source is written.

Sizes and strides are arguments, so that layers of different sizes share a kernel. Strides of 0 and 1 are literals,
since they decide whether loads are vectorized or broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gflow.compiler.emit.placement import Placement
from gflow.compiler.kernel.sizes import WIDE, extent
from gflow.dialects.program import Place

from .expressions import pointer_type


@dataclass
class Parameters:
    """The parameters. types: Triton types by name, in order. values: the arguments of this launch."""

    types: dict[str, str] = field(default_factory=dict)
    values: list[int | float | Place] = field(default_factory=list)

    def pointer(self, name: str, dtype: str, place: Place) -> str:
        """Add a pointer to elements of `dtype` at `place`; returns its name."""
        self.types[name] = pointer_type(dtype)
        self.values.append(place)
        return name

    def number(self, name: str, value: int) -> str:
        """Add an integer, unless it exists; returns its name.

        Raises:
            ValueError: it exists with another value.
        """
        if name in self.types:
            if self.values[list(self.types).index(name)] != value:
                raise ValueError(f"two values of {name}")
            return name
        self.types[name] = "i32" if abs(value) < WIDE else "i64"
        self.values.append(value)
        return name

    def stride(self, name: str, value: int) -> str:
        """The text of a stride: the literals 0 and 1, otherwise a parameter."""
        return str(value) if value in (0, 1) else self.number(name, value)

    def strides(self, stem: str, values: Sequence[int]) -> list[str]:
        """The texts of strides in elements, with parameters `stem0`, `stem1`, …"""
        return [self.stride(f"{stem}{i}", s) for i, s in enumerate(values)]


def term(coordinate: str, stride: str) -> str:
    """The text of a coordinate times a stride; "" if it is 0."""
    if stride == "0" or coordinate == "0":
        return ""
    return coordinate if stride == "1" else f"{coordinate} * {stride}"


def total(terms: Iterable[str]) -> str:
    """The text of a sum; "0" without terms."""
    found = [t for t in terms if t]
    return " + ".join(found) if found else "0"


def is_wide(b: Placement, value: int) -> bool:
    """Whether offsets in a value need 64 bits."""
    return extent(b.body.types[value].shape, b.strides(value)) >= WIDE


def wide(text: str, needed: bool) -> str:
    """The text of an index, converted to 64 bits if needed."""
    return f"({text}).to(tl.int64)" if needed and text not in ("0", "1") else text


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Lines, indented by `depth` levels; empty ones stay empty."""
    return [f"{'    ' * depth}{line}" if line else "" for line in lines]


def addresses(base: str, left: str, right: str, shape: str) -> str:
    """The text of the addresses of a matrix's elements. left, right: the offsets by row and by column, or ""."""
    terms = [base]
    if left:
        terms.append(f"({left})[:, None]" if not left.isidentifier() else f"{left}[:, None]")
    if right:
        terms.append(f"({right})[None, :]" if not right.isidentifier() else f"{right}[None, :]")
    text = " + ".join(terms)
    return text if left and right else f"tl.broadcast_to({text}, {shape})"
