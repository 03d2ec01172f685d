"""Pooling and its gradients: each program computes a tile of the result.

    max_pool, avg_pool            an element of the result iterates over its window
    their gradients               an element of the result sums the gradients of the windows that contain it, in a fixed
                                  order: no atomics, deterministic

With channels last, a tile has positions × channels; with channels first, it is a run of elements. Means and sums of
half precision are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.registers import register_dtype
from gflow.compiler.kernel.selection.gpu.other_blocks import pool_configs
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.ops.pooling import POSITIONS
from gflow.dialects.types import FLOATS, is_row_major

from ..language import device_functions
from ..language.expressions import triton_type
from ..language.parameters import Parameters, indented, is_wide, term, total
from ..product.conv_text import and_masks
from ..program_builder import NAME, Builder, Source
from ..region.fused import readable
from .windows import Windows, lines_of


def pool(b: Builder, o: Op) -> None:
    """Add the launch of a pooling op."""
    if b.body.types[o.results[0]].numel == 0:
        return
    kernel = _Pool(b, o)
    lines = _BODIES[o.name](kernel)
    kernel.launch(lines)


class _Pool:
    """The writer of one kernel.

    last: whether channels are the last dimension. acc: the element type of accumulators.
    """

    def __init__(self, b: Builder, o: Op) -> None:
        self.b, self.o = b, o
        self.attrs: dict[str, Any] = read(OPS[o.name], o.op.attributes)
        self.last = self.attrs["layout"] == "N*C"
        self.p = Parameters()
        backward = o.name.endswith("_grad")
        inner, outer = (o.results[0], o.operands[0]) if backward else (o.operands[0], o.results[0])
        inputs, outputs = self.sizes(inner), self.sizes(outer)
        self.p.pointer("x", self.dtype(o.operands[0]), b.place(o.operands[0]))
        if backward and len(o.operands) == 2:
            self.p.pointer("positions", self.dtype(o.operands[1]), b.place(o.operands[1]))
        self.p.pointer("out", self.dtype(o.results[0]), b.place(o.results[0]))
        if not backward and len(o.results) == 2:
            self.p.pointer("positions", self.dtype(o.results[1]), b.place(o.results[1]))
        self.w = Windows(lines_of(self.attrs, inputs, outputs), self.p)
        self.acc = register_dtype(self.dtype(o.operands[0]))
        self.wide = any(is_wide(b, v) for v in (*o.operands, *o.results))
        self.walked = self.sizes(o.results[0])
        self.of = "x" if backward else "y"  # the tensor whose sizes are parameters

    def dtype(self, value: int) -> str:
        return self.b.body.types[value].dtype

    def sizes(self, value: int) -> tuple[int, ...]:
        shape = self.b.body.types[value].shape
        return tuple(shape[d] for d in conv_dims(self.attrs["layout"], len(shape))[2])

    @property
    def images(self) -> tuple[int, int]:
        """The batch size and the number of channels."""
        shape = self.b.body.types[self.o.results[0]].shape
        n, c, _ = conv_dims(self.attrs["layout"], len(shape))
        return shape[n], shape[c]

    @property
    def tile(self) -> str:
        return "[ROWS, COLS]" if self.last else "[ROWS]"

    @property
    def inside(self) -> str:
        return "row_ok & col_ok" if self.last else "row_ok"

    def full(self, value: float | int, dtype: str) -> str:
        text = f'float("{value}")' if isinstance(value, float) else str(value)
        return f"tl.full({self.tile}, {text}, {triton_type(dtype)})"

    def header(self) -> list[str]:
        """Lines that compute the tile's positions: `image`, `channel` and `q0`, …."""
        n, c = self.images
        program = "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")
        channels = self.p.number("channels", c)
        if self.last:
            rows = self.p.number("rows", n * prod(self.walked))
            lines = [
                f"across = tl.cdiv({channels}, COLS)",
                f"row = ({program} // across * ROWS + tl.arange(0, ROWS))[:, None]",
                f"channel = ({program} % across * COLS + tl.arange(0, COLS))[None, :]",
                f"row_ok = row < {rows}",
                f"col_ok = channel < {channels}",
            ]
        else:
            rows = self.p.number("rows", n * c * prod(self.walked))
            lines = [f"row = {program} * ROWS + tl.arange(0, ROWS)", f"row_ok = row < {rows}"]
        lines.append("image = row")
        for i in range(len(self.walked) - 1, -1, -1):
            size = self.p.number(f"{self.of}_size{i}", self.walked[i])
            lines += [f"q{i} = image % {size}", f"image = image // {size}"]
        if not self.last:
            lines += [f"channel = image % {channels}", f"image = image // {channels}"]
        return lines

    def at(self, stem: str, value: int, names: str) -> tuple[str, str]:
        """The offset of `image` and `channel` of a value, and of the position `q0`, … (or other names) from there."""
        n, c, spatial = conv_dims(self.attrs["layout"], self.b.body.types[value].rank)
        s = self.b.strides(value)
        base = [
            term("image", self.p.stride(f"{stem}_n", s[n])),
            term("channel", self.p.stride(f"{stem}_c", s[c])),
        ]
        steps = self.p.strides(f"{stem}_", [s[d] for d in spatial])
        step = total([term(f"{names}{i}", step) for i, step in enumerate(steps)])
        if not (base[1] if self.last else any(base)) or (not base[0] and step == "0"):
            base.append(f"tl.zeros({self.tile}, tl.int32)")  # a broadcast one
        return total(base), step

    def result(self, stem: str, value: int) -> str:
        """The offsets of the tile's elements in a result, which are usually contiguous."""
        if is_row_major(self.b.body.types[value].shape, self.b.strides(value)):
            return "row * channels + channel" if self.last else "row"
        return " + ".join(self.at(stem, value, "q"))

    def launch(self, lines: Sequence[str]) -> None:
        body = [*self.header(), *lines]
        names = [*self.p.types, *self.w.constants, "ROWS", *(["COLS"] if self.last else [])]
        head = [n if n in self.p.types else f"{n}: tl.constexpr" for n in names]
        text = "\n".join(
            [f"def {NAME}(", *indented([f"{h}," for h in head]), "):", *indented(body)]
        )
        grid = "cdiv(rows, ROWS)" + (" * cdiv(channels, COLS)" if self.last else "")
        configs = self.b.ways(pool_configs(self.o, self.b.body, self.b.target.device))
        source = Source(
            self.o.name, device_functions.source(text + "\n", ()), self.p.types, configs, (grid,),
            self.w.constants, None, lambda: readable(self.o.op),
        )  # fmt: skip
        self.b.launch(source, self.p.values, self.b.label(self.o))

    def load(self, pointer: str, where: str, masks: Sequence[str], other: str) -> str:
        return f"tl.load({pointer} + {where}, mask={and_masks(self.inside, *masks)}, other={other})"


def _quotient(acc: str, above: str, below: str) -> str:
    return f"{above} / {below}" if acc == "f64" else f"tl.div_rn({above}, {below})"


def _narrow(text: str, source: str, dtype: str) -> str:
    return text if source == dtype else f"{text}.to({triton_type(dtype)})"


def _lowest(dtype: str) -> float | int:
    if dtype in FLOATS:
        return -float("inf")
    return 0 if dtype.startswith("u") else -(1 << (int(dtype[1:]) - 1))


def _max_pool(k: _Pool) -> list[str]:
    x, y = k.o.operands[0], k.o.results[0]
    base, step = k.at("x", x, "u")
    elements, inside = k.w.elements()
    lowest = _lowest(k.acc)
    # elements outside of the input are the lowest number
    other = '-float("inf")' if isinstance(lowest, float) else str(lowest)
    found = "(value > best)" + (" | (value != value)" if k.acc in FLOATS else "")
    positions = len(k.o.results) == 2
    lines = [*k.w.begins("q"), f"base = {base}", f"best = {k.full(lowest, k.acc)}"]
    in_window = k.attrs["positions"] == "window"
    axes = range(len(k.walked))
    if positions:
        first = k.w.number([f"e{i}" for i in axes]) if in_window else k.w.plane("f")
        lines += [*k.w.first(), f"place = {first} + tl.zeros({k.tile}, tl.int32)"]
    body = [*elements, f"value = {_widened(k, k.load('x', f'base + {step}', inside, other))}"]
    body.append(f"better = {found}")
    if positions:
        place = k.w.number([f"k{i}" for i in axes]) if in_window else k.w.plane("u")
        body.append(f"place = tl.where(better, {place}, place)")
    body.append("best = tl.where(better, value, best)")
    lines += k.w.loops("k", k.w.kernel(), body)
    lines.append(
        f"tl.store(out + {k.result('y', y)}, {_narrow('best', k.acc, k.dtype(y))}, mask={k.inside})"
    )
    if positions:
        where = k.result("positions", k.o.results[1])
        kind = triton_type(k.dtype(k.o.results[1]))
        lines.append(f"tl.store(positions + {where}, place.to({kind}), mask={k.inside})")
    return lines


def _widened(k: _Pool, text: str) -> str:
    return text if k.acc == k.dtype(k.o.operands[0]) else f"{text}.to({triton_type(k.acc)})"


def _max_pool_grad(k: _Pool) -> list[str]:
    dy, positions = k.o.operands
    (dx,) = k.o.results
    in_window = k.dtype(positions) == POSITIONS["window"]
    # windows that do not contain the element never have its position
    holders, inside = k.w.holders(exact=in_window)
    base, step = k.at("dy", dy, "o")
    lines = [*k.w.nearest(), f"base = {base}"]
    here = "here"
    if in_window:
        here = k.w.number([f"t{i}" for i in range(len(k.walked))])
        k.w.constants |= {f"K{i}": line.kernel for i, line in enumerate(k.w.lines)}
    else:
        lines.append(f"here = {k.w.plane('q')}")
    place = f"base + {step}"
    if k.b.strides(dy) != k.b.strides(positions):
        place_base, place_step = k.at("positions", positions, "o")
        lines.append(f"place_base = {place_base}")
        place = f"place_base + {place_step}"
    lines.append(f"sum = {k.full(0, k.acc)}")
    body = [
        *holders,
        f"place = {k.load('positions', place, inside, '0' if in_window else '-1')}",
        f"value = {k.load('x', f'base + {step}', inside, '0')}",
        f"sum += {_widened(k, f'tl.where(place == {here}, value, 0)')}",
    ]
    lines += k.w.loops("j", k.w.covering(), body)
    lines.append(
        f"tl.store(out + {k.result('dx', dx)}, {_narrow('sum', k.acc, k.dtype(dx))}, mask={k.inside})"
    )
    return lines


def _divided(k: _Pool, text: str, count: str | int) -> str:
    """The text of a sum divided by a number of elements."""
    below = str(float(count)) if isinstance(count, int) else f"({count}).to({triton_type(k.acc)})"
    if k.acc == "f64" or not isinstance(count, int):
        return _quotient(k.acc, text, below)
    return f"tl.div_rn({text}, tl.full([], {below}, tl.float32))"


def _count(k: _Pool) -> tuple[list[str], str | int]:
    if k.attrs.get("divisor") is not None:
        return [], int(k.attrs["divisor"])
    return k.w.count(bool(k.attrs.get("count_padding")))


def _avg_pool(k: _Pool) -> list[str]:
    x, y = k.o.operands[0], k.o.results[0]
    base, step = k.at("x", x, "u")
    elements, inside = k.w.elements()
    lines = [*k.w.begins("q"), f"base = {base}", f"sum = {k.full(0, k.acc)}"]
    body = [*elements, f"sum += {_widened(k, k.load('x', f'base + {step}', inside, '0'))}"]
    lines += k.w.loops("k", k.w.kernel(), body)
    counted, count = _count(k)
    lines += [*counted, f"mean = {_divided(k, 'sum', count)}"]
    lines.append(
        f"tl.store(out + {k.result('y', y)}, {_narrow('mean', k.acc, k.dtype(y))}, mask={k.inside})"
    )
    return lines


def _avg_pool_grad(k: _Pool) -> list[str]:
    (dy,), (dx,) = k.o.operands, k.o.results
    holders, inside = k.w.holders(exact=True)
    base, step = k.at("dy", dy, "o")
    counted, count = _count(k)
    value = _widened(k, k.load("x", f"base + {step}", inside, "0"))
    body = [*holders, f"value = {value}"]
    if isinstance(count, int):
        body.append("sum += value")
    else:
        body += [*k.w.begins("o"), *counted]
        body.append(f"sum += {_divided(k, 'value', f'tl.maximum({count}, 1)')}")
    lines = [*k.w.nearest(), f"base = {base}", f"sum = {k.full(0, k.acc)}"]
    lines += k.w.loops("j", k.w.covering(), body)
    value = "sum"
    if isinstance(count, int):
        lines.append(f"mean = {_divided(k, 'sum', count)}")
        value = "mean"
    lines.append(
        f"tl.store(out + {k.result('dx', dx)}, {_narrow(value, k.acc, k.dtype(dx))}, mask={k.inside})"
    )
    return lines


_BODIES = {
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool": _avg_pool,
    "avg_pool_grad": _avg_pool_grad,
}
