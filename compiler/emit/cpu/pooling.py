"""Maximum pooling of channels-last data and its gradient: vectors run along channels.

    max_pool         for positions of the result       (threads share rows of the result)
                         for channels
                             for elements of the window that are inside of the input
    max_pool_grad    for positions of the input        (threads share rows of the input)
                         for channels
                             for windows that have the position

Of equal elements the first counts, of NaNs the last. A gradient adds the windows of an element in their order, in
float32, so its bits do not depend on the number of threads. Sizes are arguments, so one function serves all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import ITEM, LANES
from gflow.compiler.kernel.selection.cpu.other_ops import pooled_lines
from gflow.dialects.extents import Count
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import KernelStep, Place

from .. import aten_pooling
from .language.scalars import bf16_bits
from .product.bfloat16.words import HALF, WORDS, widened
from .product.function import VECTOR, Function
from .program_builder import Builder

_DIMENSIONS = ("d", "h", "w")
#: the words of each spatial dimension: sizes of the input and of the result, and what the windows are
_LINES = ("inputs", "outputs", "kernel", "stride", "padding", "dilation")
_NAMES = ("x", "y", "positions", "n", "c", *(f"{name}_{d}" for name in _LINES for d in _DIMENSIONS))
#: vectors side by side
_BESIDE = 4
_PLACES = f"vector<{LANES}xi64>"
#: positions while they are compared; planes with more elements run as PyTorch's call
_NUMBERS = f"vector<{LANES}xi32>"


def pool(b: Builder, o: Op) -> None:
    """Add the step of a maximum pooling or of its gradient: gflow's kernel if it is chosen, otherwise an ATen call."""
    if b.choice.kind == "pytorch":
        aten_pooling.pool(b, o)
        return
    values = [*o.operands, *o.results]
    if b.body.types[o.results[0]].numel == 0:
        return
    lines = pooled_lines(o, b.body, [b.strides(v) for v in values])
    b.choice.check(lines is not None, "is for maxima that gflow's kernel does not support")
    assert lines is not None
    grad = o.name == "max_pool_grad"
    x, y = (o.results[0], o.operands[0]) if grad else (o.operands[0], o.results[0])
    positions = o.operands[1] if grad else o.results[1] if len(o.results) > 1 else None
    ty = b.body.types[x]
    name = f"{o.name}_{8 * ty.itemsize}{'' if positions is not None else '_alone'}"
    if name not in b.kernels:
        made = _gradient if grad else _maxima
        b.kernels[name] = made(name, ty.itemsize, positions is not None)
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    image, channel, _ = conv_dims("N*C", ty.rank)
    words: list[Count | Place] = [
        b.place(x),
        b.place(y),
        b.place(y if positions is None else positions),
    ]
    words += [ty.shape[image], ty.shape[channel]]
    words += [line[i] for i in range(len(_LINES)) for line in lines]
    parallel, from_size = b.choice.shared()
    b.steps.append(KernelStep(name, tuple(words), parallel, b.label(o), True, from_size=from_size))


@cache
def _maxima(name: str, item: int, positions: bool) -> str:
    return _Maxima(item, positions).function(name)


@cache
def _gradient(name: str, item: int, positions: bool) -> str:
    return _Gradient(item).function(name)


class _Pool(Function):
    """The base of both kernels. item: bytes of an element, 4 (float32) or 2 (bfloat16)."""

    def __init__(self, item: int) -> None:
        super().__init__()
        self.item = item
        self.w = self.words_by_name(_NAMES, _NAMES[:3], ())

    def coordinates(self, row: str, sizes: str) -> tuple[str, dict[str, str]]:
        """The image of a row, and its coordinates but for the last. sizes: "inputs" or "outputs"."""
        rest, h = self.split(row, self.w[f"{sizes}_h"])
        n, d = self.split(rest, self.w[f"{sizes}_d"])
        return n, {"d": d, "h": h}

    def rows(self, sizes: str) -> str:
        return self.mul(self.w["n"], self.w[f"{sizes}_d"], self.w[f"{sizes}_h"])

    def channels(self, body: Callable[[str, int, str | None], None]) -> None:
        """Write loops over the channels: tiles of whole vectors, then masked vectors."""
        c, tile = self.w["c"], _BESIDE * LANES
        whole = self.sub(c, self.binary("remui", c, tile))
        self.repeat(0, whole, tile, lambda i: body(i, _BESIDE, None))
        self.repeat(whole, c, LANES, lambda i: body(i, 1, self.first_lanes(self.sub(c, i), LANES)))

    def over(
        self, bounds: dict[str, tuple[str, str]], carried: list[tuple[str, str]],
        body: Callable[[dict[str, str], list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """A loop over all dimensions between bounds."""

        def nest(n: int, at: dict[str, str], values: list[str]) -> list[str]:
            if n == len(_DIMENSIONS):
                return body(at, values)
            d = _DIMENSIONS[n]
            inits = [(x, ty) for x, (_, ty) in zip(values, carried)]
            low, high = bounds[d]
            return self.loop(low, high, 1, inits, lambda i, given: nest(n + 1, at | {d: i}, given))

        return nest(0, {}, [x for x, _ in carried])

    def number(self, image: str | int, at: dict[str, str], sizes: str) -> str:
        """The number of a position, among those of its plane (image 0) or of all images."""
        found: str | int = image
        for d in _DIMENSIONS:
            found = self.add(self.mul(found, self.w[f"{sizes}_{d}"]), at[d])
        assert isinstance(found, str)
        return found

    def value(self, base: str, element: str, mask: str | None) -> str:
        """A vector of elements as float32."""
        at = self.at(base, self.mul(element, self.item))
        if self.item == ITEM:
            return self.load(at, mask)
        return widened(self, self.read(at, HALF, 2, mask))

    def keep(self, x: str, base: str, element: str, mask: str | None) -> None:
        """Store a vector of float32 as elements."""
        at = self.at(base, self.mul(element, self.item))
        if self.item == ITEM:
            self.store(x, at, mask)
            return
        words = bf16_bits(self, x, LANES)
        self.write(self(f"arith.trunci {words} : {WORDS} to {HALF}"), at, HALF, 2, mask)

    def places(self, number: str) -> str:
        """A position in all lanes."""
        small = self(f"arith.trunci {number} : i64 to i32")
        return self(f"vector.broadcast {small} : i32 to {_NUMBERS}")


class _Maxima(_Pool):
    def __init__(self, item: int, positions: bool) -> None:
        super().__init__(item)
        self.positions = positions
        low, high = self.share(self.rows("outputs"))
        self.repeat(low, high, 1, self._row)

    def _row(self, row: str) -> None:
        w = self.w
        n, at = self.coordinates(row, "outputs")
        begins, bounds = {}, {}
        for d in ("d", "h"):
            begins[d], bounds[d] = self._inside(d, at[d])

        def column(o: str) -> None:
            begins["w"], bounds["w"] = self._inside("w", o)
            element = self.mul(self.add(self.mul(row, w["outputs_w"]), o), w["c"])
            self.channels(
                lambda c, width, mask: self._tile(n, begins, bounds, element, c, width, mask)
            )

        self.repeat(0, w["outputs_w"], 1, column)

    def _inside(self, d: str, o: str) -> tuple[str, tuple[str, str]]:
        """Where a window begins along a dimension, and the first and the last + 1 of its elements that are inside."""
        w = self.w
        begin, by = self.sub(self.mul(o, w[f"stride_{d}"]), w[f"padding_{d}"]), w[f"dilation_{d}"]
        low = self.granules(self.at_least(self.sub(0, begin), 0), by)
        high = self.granules(self.at_least(self.sub(w[f"inputs_{d}"], begin), 0), by)
        return begin, (low, self.at_most(high, w[f"kernel_{d}"]))

    def _tile(
        self, n: str, begins: dict[str, str], bounds: dict[str, tuple[str, str]], element: str,
        c: str, width: int, mask: str | None,
    ) -> None:  # fmt: skip
        w = self.w

        def position(at: dict[str, str]) -> dict[str, str]:
            return {
                d: self.add(begins[d], self.mul(at[d], w[f"dilation_{d}"])) for d in _DIMENSIONS
            }

        def one(at: dict[str, str], given: list[str]) -> list[str]:
            plane = self.number(0, position(at), "inputs")
            base = self.mul(self.add(self.mul(n, self._plane()), plane), w["c"])
            here = self.places(plane) if self.positions else ""
            bests, places = given[:width], given[width:]
            for u in range(width):
                x = self.value(w["x"], self.add(base, c, u * LANES), mask)
                above = self(f"arith.cmpf ogt, {x}, {bests[u]} : {VECTOR}")
                nan = self(f"arith.cmpf uno, {x}, {x} : {VECTOR}")
                better = self(f"arith.ori {above}, {nan} : vector<{LANES}xi1>")
                bests[u] = self._select(better, x, bests[u], VECTOR)
                if self.positions:
                    places[u] = self._select(better, here, places[u], _NUMBERS)
            return [*bests, *places]

        start = [(self.const(-inf, VECTOR), VECTOR)] * width
        if self.positions:
            first = self.number(0, position({d: bounds[d][0] for d in _DIMENSIONS}), "inputs")
            start += [(self.places(first), _NUMBERS)] * width
        found = self.over(bounds, start, one)
        for u, best in enumerate(found[:width]):
            self.keep(best, w["y"], self.add(element, c, u * LANES), mask)
        for u, place in enumerate(found[width:]):
            wide = self(f"arith.extui {place} : {_NUMBERS} to {_PLACES}")
            at = self.at(w["positions"], self.mul(self.add(element, c, u * LANES), 8))
            self.write(wide, at, _PLACES, 8, mask)

    def _plane(self) -> str:
        return self.mul(*(self.w[f"inputs_{d}"] for d in _DIMENSIONS))

    def _select(self, mask: str, a: str, b: str, ty: str) -> str:
        return self(f"arith.select {mask}, {a}, {b} : vector<{LANES}xi1>, {ty}")


class _Gradient(_Pool):
    def __init__(self, item: int) -> None:
        super().__init__(item)
        low, high = self.share(self.rows("inputs"))
        self.repeat(low, high, 1, self._row)

    def _row(self, row: str) -> None:
        w = self.w
        n, at = self.coordinates(row, "inputs")
        bounds = {d: self._holders(d, at[d]) for d in ("d", "h")}

        def column(i: str) -> None:
            every = bounds | {"w": self._holders("w", i)}
            here = self(
                f"vector.broadcast {self.number(0, at | {'w': i}, 'inputs')} : i64 to {_PLACES}"
            )
            element = self.mul(self.add(self.mul(row, w["inputs_w"]), i), w["c"])
            self.channels(
                lambda c, width, mask: self._tile(n, every, here, element, c, width, mask)
            )

        self.repeat(0, w["inputs_w"], 1, column)

    def _holders(self, d: str, i: str) -> tuple[str, str]:
        """The first and the last + 1 of the windows that reach over a position."""
        w = self.w
        inside, stride = self.add(i, w[f"padding_{d}"]), w[f"stride_{d}"]
        reach = self.mul(self.sub(w[f"kernel_{d}"], 1), w[f"dilation_{d}"])
        low = self.granules(self.at_least(self.sub(inside, reach), 0), stride)
        high = self.at_most(self.add(self.binary("divui", inside, stride), 1), w[f"outputs_{d}"])
        return low, high

    def _tile(
        self, n: str, bounds: dict[str, tuple[str, str]], here: str, element: str,
        c: str, width: int, mask: str | None,
    ) -> None:  # fmt: skip
        w = self.w

        def one(at: dict[str, str], sums: list[str]) -> list[str]:
            base = self.mul(self.number(n, at, "outputs"), w["c"])
            made = []
            for u, total in enumerate(sums):
                at_lanes = self.add(base, c, u * LANES)
                place = self.read(self.at(w["positions"], self.mul(at_lanes, 8)), _PLACES, 8, mask)
                own = self(f"arith.cmpi eq, {place}, {here} : {_PLACES}")
                more = self.plus(total, self.value(w["y"], at_lanes, mask))
                made.append(
                    self(f"arith.select {own}, {more}, {total} : vector<{LANES}xi1>, {VECTOR}")
                )
            return made

        sums = self.over(bounds, [(self.const(0.0, VECTOR), VECTOR)] * width, one)
        for u, total in enumerate(sums):
            self.keep(total, w["x"], self.add(element, c, u * LANES), mask)
