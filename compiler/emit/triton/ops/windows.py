"""Index arithmetic of pooling windows, as text: the elements of a window, and the windows that contain an element.

In the text, `q0`, … is a position in the kernel's result, `o0`, … the position of a window, and `u0`, … a position in
the input. `x_size0`, … are the sizes of the input, `y_size0`, … the numbers of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.compiler.kernel.sizes import cdiv
from gflow.dialects.records import record

from ..language.parameters import Parameters, indented, term

#: loops of more steps are not unrolled
_UNROLLED = 32


@record
class Line:
    """The windows along one dimension. adaptive: they divide the elements as evenly as possible (adaptive pooling)."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    adaptive: bool = False

    @property
    def span(self) -> int:
        """The distance from a window's first element to its last one, plus 1."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def clipped(self) -> bool:
        """Whether windows have different numbers of elements."""
        return self.adaptive or self.padding > 0 or self.beyond

    @property
    def beyond(self) -> bool:
        """Whether the last window reaches beyond the last element."""
        return (self.outputs - 1) * self.stride - self.padding + self.span > self.inputs

    @property
    def covering(self) -> int:
        """The most windows that may contain one element."""
        if not self.adaptive:
            return cdiv(self.span, self.stride)
        return _longest(self.outputs, self.inputs)


def _longest(size: int, parts: int) -> int:
    """The longest of the ranges floor(i * size / parts) to ceil((i + 1) * size / parts)."""
    return max(cdiv((i + 1) * size, parts) - i * size // parts for i in range(parts))


def lines_of(attrs: dict[str, Any], inputs: Sequence[int], outputs: Sequence[int]) -> list[Line]:
    """The windows that a pooling op states."""
    if attrs.get("size") is not None:
        return [Line(n, o, _longest(n, o), 1, 0, 1, True) for n, o in zip(inputs, outputs)]
    dilation = attrs.get("dilation") or (1,) * len(inputs)
    walk = zip(inputs, outputs, attrs["kernel"], attrs["stride"], attrs["padding"], dilation)
    return [Line(*entry) for entry in walk]


class Windows:
    """The index arithmetic of a kernel's windows. Sizes become parameters; the lengths of loops are constants."""

    def __init__(self, lines: Sequence[Line], p: Parameters) -> None:
        self.lines = lines
        self.p = p
        self.constants: dict[str, int] = {}

    def _size(self, of: str, i: int) -> str:
        line = self.lines[i]
        return self.p.number(f"{of}_size{i}", line.inputs if of == "x" else line.outputs)

    def _stride(self, i: int) -> str:
        return self.p.stride(f"stride{i}", self.lines[i].stride)

    def _padding(self, i: int) -> str:
        return self.p.stride(f"padding{i}", self.lines[i].padding)

    def plane(self, names: str) -> str:
        """The flat position of an element in its channel's plane."""
        text = f"{names}0"
        for i in range(1, len(self.lines)):
            text = f"({text})" if i > 1 else text
            text = f"{text} * {self._size('x', i)} + {names}{i}"
        return text

    def loops(self, letter: str, counts: Sequence[int], body: Sequence[str]) -> list[str]:
        """Lines of nested loops over `k0`, … (or another letter) with these counts."""
        steps = 1
        for i, count in enumerate(counts):
            self.constants[f"{letter.upper()}{i}"] = count
            steps *= count
        span = "tl.static_range" if steps <= _UNROLLED else "range"
        found: list[str] = []
        for i in range(len(counts)):
            found += indented([f"for {letter}{i} in {span}({letter.upper()}{i}):"], i)
        return [*found, *indented(body, len(counts))]

    def number(self, names: Sequence[str]) -> str:
        """The flat number of an element in its window."""
        text = names[0]
        for i in range(1, len(names)):
            text = f"({text})" if i > 1 else text
            text = f"{text} * K{i} + {names[i]}"
        return text

    # -- from a window to its elements

    def begins(self, names: str) -> list[str]:
        """Lines that compute the first elements of the windows `o0`, … and, for adaptive pooling, their ends."""
        found = []
        for i, line in enumerate(self.lines):
            o = f"{names}{i}"
            if line.adaptive:
                x, y = self._size("x", i), self._size("y", i)
                found += [
                    f"h{i} = {o} * {x} // {y}",
                    f"end{i} = ({o} * {x} + {x} + {y} - 1) // {y}",
                ]
            else:
                padding = self._padding(i)
                minus = "" if padding == "0" else f" - {padding}"
                found.append(f"h{i} = {term(o, self._stride(i))}{minus}")
        return found

    def elements(self) -> tuple[list[str], list[str]]:
        """Lines that compute the position of a window's element `k0`, …, and the conditions that it exists."""
        found, inside = [], []
        for i, line in enumerate(self.lines):
            step = term(f"k{i}", self.p.stride(f"dilation{i}", line.dilation))
            found.append(f"u{i} = h{i} + {step}")
            if line.adaptive:
                inside.append(f"(u{i} < end{i})")
            if line.padding:
                inside.append(f"(u{i} >= 0)")
            if not line.adaptive and line.beyond:
                inside.append(f"(u{i} < {self._size('x', i)})")
        return found, inside

    def kernel(self) -> list[int]:
        """The window's size in each dimension."""
        return [line.kernel for line in self.lines]

    def first(self) -> list[str]:
        """Lines that compute a window's first element inside the input, as `f0`, …, and its number there, `e0`, …."""
        found = []
        for i, line in enumerate(self.lines):
            if not line.padding:
                found += [f"e{i} = h{i} * 0", f"f{i} = h{i}"]
                continue
            step = self.p.stride(f"dilation{i}", line.dilation)
            before = f"tl.maximum(0 - h{i}, 0)"
            found.append(f"e{i} = {before if step == '1' else f'tl.cdiv({before}, {step})'}")
            found.append(f"f{i} = h{i} + {term(f'e{i}', step)}")
        return found

    def count(self, padding: bool) -> tuple[list[str], str | int]:
        """The number of a window's elements: lines, and a text or a number. padding: whether padding counts."""
        number, found, terms = 1, [], []
        for i, line in enumerate(self.lines):
            if not line.clipped:
                number *= line.kernel
                continue
            if line.adaptive:
                terms.append(f"(end{i} - h{i})")
                continue
            kernel = self.p.number(f"kernel{i}", line.kernel)
            limit = self._size("x", i)
            if padding and line.padding:
                limit = f"{limit} + {self._padding(i)}"
            start = f"h{i}" if padding or not line.padding else f"tl.maximum(h{i}, 0)"
            found.append(f"n{i} = tl.minimum(h{i} + {kernel}, {limit}) - {start}")
            terms.append(f"n{i}")
        if not terms:
            return [], number
        return found, " * ".join([*terms, *([str(number)] if number > 1 else [])])

    # -- from an element to the windows that hold it

    def nearest(self) -> list[str]:
        """Lines that compute the last window that may contain the element `q0`, … (adaptive: the first one)."""
        found = []
        for i, line in enumerate(self.lines):
            if line.adaptive:
                x, y = self._size("x", i), self._size("y", i)
                found += [
                    f"low{i} = q{i} * {y} // {x}",
                    f"stop{i} = (q{i} * {y} + {y} + {x} - 1) // {x}",
                ]
                continue
            padding, stride = self._padding(i), self._stride(i)
            place = f"q{i}" if padding == "0" else f"q{i} + {padding}"
            last = place if stride == "1" else f"({place}) // {stride}"
            found.append(f"low{i} = {last} - {line.covering - 1}")
        return found

    def holders(self, exact: bool) -> tuple[list[str], list[str]]:
        """Lines that compute the windows `o0`, … around an element, and the conditions that they exist.

        exact: the conditions also ensure that the windows contain it, as their element `t0`, ….
        """
        found, inside = [], []
        for i, line in enumerate(self.lines):
            found.append(f"o{i} = low{i} + j{i}")
            if line.adaptive:
                inside.append(f"(o{i} < stop{i})")
                continue
            inside += [f"(o{i} >= 0)", f"(o{i} < {self._size('y', i)})"]
            if not exact:
                continue
            padding = self._padding(i)
            place = f"q{i}" if padding == "0" else f"q{i} + {padding}"
            found.append(f"t{i} = {place} - {term(f'o{i}', self._stride(i))}")
            if line.span % line.stride:
                inside.append(f"(t{i} < {line.kernel})")
            if line.dilation > 1:
                step = self.p.stride(f"dilation{i}", line.dilation)
                found += [f"there{i} = t{i} % {step} == 0", f"t{i} = t{i} // {step}"]
                inside.append(f"there{i}")
        return found, inside

    def covering(self) -> list[int]:
        """The most windows that may contain one element, by dimension."""
        return [line.covering for line in self.lines]
