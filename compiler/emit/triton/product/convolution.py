"""Convolutions and their gradients as matrix products whose operands are found by index arithmetic.

The products are those of compiler/kernel/convolution.py. A kernel of one element that skips nothing makes it a plain
product. With strides, the input's positions fall into phases: those of one phase meet the same taps. Channel groups
are a batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.product.contraction import Contraction
from gflow.compiler.kernel.selection.gpu.product.convolution import (
    Convolution,
    Tensor,
    convolution_of,
    direct_product,
    kind_of_convolution,
    packed_weight,
    problem_of,
    weight_copy,
)
from gflow.compiler.kernel.selection.gpu.product.tiles import Problem
from gflow.compiler.kernel.sizes import WIDE
from gflow.dialects.program import Place

from ..language.parameters import Parameters, addresses, term, total
from ..program_builder import Builder
from .conv_text import Walk, and_masks, masked
from .depthwise import depthwise
from .epilogue import Epilogue
from .main_loop import Frame, add
from .matmul import product, takes_tf32
from .operand_copies import copy
from .output_tile import COLUMN_FOURS, COLUMNS, Axis
from .split_k import through_pytorch, zero


def convolution(b: Builder, o: Op, c: Contraction, after: Epilogue, choice: Choice) -> None:
    """Add the launches of a convolution or of one of its gradients, and of its epilogue."""
    g = convolution_of(c)
    kind = kind_of_convolution(c, g)
    choice.check(choice.kind in (kind, "pytorch"), f"is not for a convolution whose kind is {kind}")
    # with an epilogue, the result has no buffer of its own
    places = [
        b.place(v) if v in b.places or v in o.operands else None for v in (*o.operands, *o.results)
    ]
    if choice.kind == "pytorch":
        through_pytorch(b, o, after, aten_ops.convolution)
    elif kind == "zero":
        zero(b, o, after)
    elif kind == "depthwise":
        depthwise(b, c, g, places, after, choice)
    else:
        made = _Convolution(b, c, g, places, after, choice)
        if g.direct:
            made.direct()
        else:
            {
                "convolution": made.forward,
                "convolution_input_grad": made.input_grad,
                "convolution_weight_grad": made.weight_grad,
            }[c.name]()


class _Convolution:
    """The kernel of one convolution op.

    x, w, y: input, weight and output; the op's own result is one of them. places: their addresses by number.
    """

    def __init__(
        self,
        b: Builder,
        c: Contraction,
        g: Convolution,
        places: Sequence[Place | None],
        after: Epilogue,
        choice: Choice,
    ) -> None:
        self.b, self.g, self.x, self.w, self.y = b, g, g.x, packed_weight(g), g.y
        self.places, self.choice = places, choice
        self.result, self.after = c.result, after
        self.label = after.label
        self.tf32 = takes_tf32(b, g.x.dtype)
        self.params = Parameters()
        self.walk = Walk(g, self.params)
        self.reserved = 0

    def pointer(self, name: str, t: Tensor) -> str:
        """Add the pointer to an operand; a copy of the weight is at the start of the scratch."""
        place = self.places[t.number] if t.number >= 0 else self.b.scratch(0, wanted=False)
        assert place is not None
        return self.params.pointer(name, t.dtype, place)

    # -- direct convolutions

    def direct(self) -> None:
        g = self.g
        if g.name == "convolution_weight_grad":
            rows = "batch * M + rows" if g.groups > 1 else "rows"
            left, right = self.y, self.x
            axes: tuple[Axis, ...] = (Axis(g.o, rows, 0), Axis(g.cg, "cols", 1, COLUMN_FOURS))
        else:
            forward = g.name == "convolution"
            left, right = self.x if forward else self.y, self.w
            axes = self._activation(g.outputs if forward else g.inputs, "rows", "N")
        places = [self.places[t.number] for t in (left, right)]
        product(
            self.b, direct_product(g, self.tf32, self.b.target),
            [p for p in places if p is not None], self.result, self.after,
            self.choice, tf32=self.tf32, axes=axes,
        )  # fmt: skip

    def _activation(self, sizes: Sequence[int], position: str, width: str) -> tuple[Axis, ...]:
        """The axes of an activation whose positions are `position`; channels are the columns of the tile."""
        g = self.g
        channels = self.result.shape[-1] if g.last else self.result.shape[1]
        channel = f"batch * {width} + cols" if g.groups > 1 else "cols"
        across = Axis(channels, channel, 1, COLUMN_FOURS if g.groups == 1 else None)
        if g.last:
            return (Axis(g.n * prod(sizes), position, 0), across)
        if prod(sizes) == 1:
            return (Axis(g.n, position, 0), across)
        if g.n == 1:
            return (across, Axis(prod(sizes), position, 0))
        image = self.params.number("image_size", prod(sizes))
        return (
            Axis(g.n, f"({position}) // {image}", 0),
            across,
            Axis(prod(sizes), f"({position}) % {image}", 0),
        )

    # -- shared pieces of text

    def _group(self, stride: str, size: str) -> str:
        """The offset of a program's channel group; "" without groups."""
        if self.g.groups == 1:
            return ""
        return term(f"group * {size}", stride)

    def _pack(self) -> None:
        """Add the copy of the weight to contiguous channels, if it is needed."""
        made = weight_copy(self.g)
        self.choice.check(
            self.choice.copies == (() if made is None else ("b",)), "copies other operands"
        )
        if made is None:
            return
        self.reserved = -(-made.ty.nbytes // 64) * 64
        place, old = self.b.scratch(self.reserved), self.places[self.g.w.number]
        assert old is not None
        copy(self.b, made._replace(source=old, target=place), self.label)

    def _problem(self) -> Problem:
        return problem_of(self.g, self.tf32, self.b.target)

    def _add(self, frame: Frame) -> None:
        add(self.b, frame, self.after, self.choice, self.reserved)

    def _precision(self) -> Literal["ieee", "tf32"]:
        return "tf32" if self.tf32 else "ieee"

    # -- forward

    def forward(self) -> None:
        g, x, p = self.g, self.x, self.params
        flat, w = g.flat, self.w
        self._pack()
        a, weight = self.pointer("a", x), self.pointer("b", w)
        rows, n, c = p.number("M", g.positions), p.number("N", g.og), p.number("C", g.cg)
        x_walk = _, x_c, xs = self.walk.strides("x", x)
        w_o, w_c, ws = self.walk.strides("w", w)
        columns = [f"cols = {COLUMNS}"]
        setup = self._groups(1)
        setup += self.walk.unravel("tl.minimum(rows, M - 1)", g.outputs, "y")
        setup += self.walk.starts("y")
        rows_at = self.walk.at("h", x_walk, x.extent)
        at = self._group(x_c, "C")
        cols = f"(group * {n} + cols)" if g.groups > 1 else "cols"
        w_mask = None
        if w_o == "1":
            w_mask = f"(cols < {n})[None, :]"
        else:
            last = f"tl.minimum(cols, {n} - 1)"
            cols = f"(group * {n} + {last})" if g.groups > 1 else last
        setup += [f"a += {at}"] if at else []
        setup += [f"a_rows = {rows_at}", f"b_cols = {term(cols, w_o) or '0 * cols'}"]
        names = [f"K{i}" for i in range(g.rank)]
        if flat:
            k = p.number("K", g.cg * g.taps)
            count = f"tl.cdiv({k}, BLOCK_K)"
            load = [
                "t = step * BLOCK_K + offs_k", f"c = t % {c}", *self.walk.taps(f"t // {c}", names),
                *self.walk.inside("[:, None]", "[None, :]"),
                f"inside = {and_masks('(t < ' + k + ')[None, :]', self.walk.bounds())}",
                f"x = tl.load({addresses(a, 'a_rows', self.walk.tap_at(xs, term('c', x_c)), '')}"
                ", mask=inside, other=0.0)",
                f"y = tl.load({addresses(weight, total([*self.walk.plain(ws), term('c', w_c)]), 'b_cols', '')}, "
                f"mask={and_masks('(t < ' + k + ')[:, None]', w_mask)}, other=0.0)",
            ]  # fmt: skip
        else:
            setup.append(f"blocks = tl.cdiv({c}, BLOCK_K)")
            count = " * ".join([*names, "blocks"])
            tap = self.walk.tap_at(xs, "")
            base = f"a + ({tap})" if tap != "0" else "a"
            w_tap = total(self.walk.plain(ws))
            w_base = f"b + ({w_tap})" if w_tap != "0" else "b"
            x_at = addresses(base, "a_rows", term("c", x_c), "(BLOCK_M, BLOCK_K)")
            y_at = addresses(w_base, term("c", w_c), "b_cols", "(BLOCK_K, BLOCK_N)")
            inside = self.walk.inside("", "")
            near = "inside[:, None]" if inside else None
            load = [
                "c = step % blocks * BLOCK_K + offs_k", *self.walk.taps("step // blocks", names),
                *inside, *([f"inside = {self.walk.bounds()}"] if inside else []),
                "if K_MULTIPLE % BLOCK_K == 0:",
                f"    x = tl.load({x_at}{masked(near)})",
                f"    y = tl.load({y_at}{masked(w_mask)})",
                "else:",
                f"    x = tl.load({x_at}{masked(near, f'(c < {c})[None, :]')})",
                f"    y = tl.load({y_at}{masked(w_mask, f'(c < {c})[:, None]')})",
            ]  # fmt: skip
        self._add(
            Frame(
                f"convolution_{g.rank}d", p, self._problem(), x.dtype, self.result, rows, n, self._batches(1),
                self._activation(g.outputs, "rows", n), (f"rows < {rows}", f"cols < {n}"), columns, setup, count, load,
                constants=self.walk.constants(), precision=self._precision(), without_divisibility=frozenset({"M"}),
            )
        )  # fmt: skip

    def _batches(self, phases: int) -> str:
        count = self.g.groups * phases
        return self.params.number("batches", count) if count > 1 else "1"

    def _groups(self, phases: int) -> list[str]:
        """Lines that find `group` and `phase` of a program."""
        if phases > 1 and self.g.groups > 1:
            number = self.params.number("phases", phases)
            return [f"phase = batch % {number}", f"group = batch // {number}"]
        if phases > 1:
            return ["phase = batch"]
        return ["group = batch"] if self.g.groups > 1 else []

    # -- gradient of the input

    def input_grad(self) -> None:
        g, y, p = self.g, self.y, self.params
        w = self.w
        self._pack()
        a, weight = self.pointer("a", y), self.pointer("b", w)
        phased, phases, counts = g.phased, g.phases, g.counts
        rows, n, c = p.number("M", g.n * prod(counts)), p.number("N", g.cg), p.number("C", g.og)
        y_n, y_c, ys = self.walk.strides("y", y)
        w_o, w_c, ws = self.walk.strides("w", w)
        columns = [f"cols = {COLUMNS}"]
        setup = self._groups(phases)
        setup += self.walk.unravel("tl.minimum(rows, M - 1)", counts, "q")
        ok, rest = [f"(rows < {rows})"], "phase"
        image = "image.to(tl.int64)" if y.extent >= WIDE else "image"
        rows_at, taps, load, near, tap_at = [term(image, y_n)], [], [], [], []
        rest_of = [i for i in range(g.rank) if phased[i]]
        for i in reversed(range(g.rank)):
            stride, padding = self.walk.moves(i)
            if not phased[i]:
                setup.append(f"at{i}_ = q{i}")
                continue
            if i == rest_of[0]:
                setup.append(f"f{i} = {rest}")
            else:
                setup += [f"f{i} = {rest} % {stride}", f"rest{i} = {rest} // {stride}"]
                rest = f"rest{i}"
            size = p.number(f"x_size{i}", g.inputs[i])
            setup += [
                f"first{i} = (f{i} + {padding}) % {stride}",
                f"base{i} = (f{i} + {padding}) // {stride}",
                f"count{i} = tl.cdiv(K{i} - first{i}, {stride})",
                f"at{i}_ = q{i} * {stride} + f{i}",
            ]  # fmt: skip
            ok.append(f"(at{i}_ < {size})")
        for i in range(g.rank):
            stride, padding = self.walk.moves(i)
            taps.append(f"count{i}" if phased[i] else f"K{i}")
            if phased[i]:
                size = p.number(f"y_size{i}", g.outputs[i])
                near += [f"(u{i} >= 0)", f"(u{i} < {size})"]
                load += [f"k{i} = first{i} + m{i} * {stride}", f"u{i} = q{i} + (base{i} - m{i})"]
                rows_at.append(term(f"q{i}", ys[i]))
                tap_at.append(term(f"(base{i} - m{i})", ys[i]))
                continue
            found, inside = self.walk.source(i)
            load += [f"k{i} = m{i}", *found]
            near += inside
            if g.stride[i] == 1:
                rows_at.append(term(f"q{i}", ys[i]))
                tap_at.append(term(f"({padding} - {self.walk.dilated(i)})", ys[i]))
            else:
                tap_at.append(term(f"u{i}", ys[i]))
        position = "image"
        for i in range(g.rank):
            if g.inputs[i] > 1:
                size = p.number(f"x_size{i}", g.inputs[i])
                position = (
                    f"({position}) * {size} + at{i}_"
                    if position != "image"
                    else f"image * {size} + at{i}_"
                )
        setup += [f"position = {position}", f"row_ok = {' & '.join(ok)}"]
        group_y, group_w = self._group(y_c, "C"), self._group(w_o, "C")
        setup += [f"a += {group_y}"] if group_y else []
        setup += [f"b += {group_w}"] if group_w else []
        w_mask, b_cols = None, "cols"
        if w_c == "1":
            w_mask = f"(cols < {n})[None, :]"
        else:
            b_cols = f"tl.minimum(cols, {n} - 1)"
        setup += [
            f"a_rows = {total(rows_at)}",
            f"b_cols = {term(b_cols, w_c) or '0 * cols'}",
            f"blocks = tl.cdiv({c}, BLOCK_K)",
        ]
        varying = any(not phased[i] and g.stride[i] > 1 for i in range(g.rank))
        tap = total(tap_at)
        rows_text = f"a_rows + {tap}" if tap != "0" else "a_rows"
        base = a
        if not varying and tap != "0":
            base, rows_text = f"{a} + ({tap})", "a_rows"
        w_tap = total(self.walk.plain(ws))
        w_base = f"{weight} + ({w_tap})" if w_tap != "0" else weight
        x_at = addresses(base, rows_text, term("o", y_c), "(BLOCK_M, BLOCK_K)")
        y_at = addresses(w_base, term("o", w_o), "b_cols", "(BLOCK_K, BLOCK_N)")
        load = [
            "o = step % blocks * BLOCK_K + offs_k", *self.walk.taps("step // blocks", taps, "m"), *load,
            f"inside = {' & '.join(near)}",
            "if K_MULTIPLE % BLOCK_K == 0:",
            f"    x = tl.load({x_at}{masked('inside[:, None]')})",
            f"    y = tl.load({y_at}{masked(w_mask)})",
            "else:",
            f"    x = tl.load({x_at}{masked('inside[:, None]', f'(o < {c})[None, :]')})",
            f"    y = tl.load({y_at}{masked(w_mask, f'(o < {c})[:, None]')})",
        ]  # fmt: skip
        self._add(
            Frame(
                f"convolution_{g.rank}d_input_grad", p, self._problem(), y.dtype, self.result, rows, n,
                self._batches(phases), self._input_axes(n), ("row_ok", f"cols < {n}"), columns, setup,
                " * ".join([*taps, "blocks"]), load,
                constants=self.walk.constants(), precision=self._precision(), without_divisibility=frozenset({"M"}),
            )
        )  # fmt: skip

    def _input_axes(self, n: str) -> tuple[Axis, ...]:
        axes = self._activation(self.g.inputs, "position", n)
        if self.g.groups == 1:
            return axes
        return tuple(
            replace(a, text=a.text.replace("batch *", "group *")) if a.dim == 1 else a for a in axes
        )

    # -- gradient of the weight

    def weight_grad(self) -> None:
        g, x, y, p = self.g, self.x, self.y, self.params
        flat = g.flat
        a, act = self.pointer("a", y), self.pointer("b", x)
        rows, c = p.number("M", g.og), p.number("C", g.cg)
        many = p.number("K", g.positions)
        x_walk = _, x_c, xs = self.walk.strides("x", x)
        y_c = p.stride("y_c", y.channel)
        names = [f"K{i}" for i in range(g.rank)]
        setup = list(self._groups(1))
        if flat:
            n = p.number("N", g.cg * g.taps)
            columns = [
                f"cols = {COLUMNS}", f"c = cols % {c}", f"tap = cols // {c}",
                "column = cols",
            ]  # fmt: skip
            setup += self.walk.taps("tap", names)
            tiles, col_ok = "tl.cdiv({cols}, BLOCK_N)", f"cols < {n}"
        else:
            n = c
            columns = [
                f"across = tl.cdiv({c}, BLOCK_N)", "tap = tile_n // across",
                "c = tile_n % across * BLOCK_N + tl.arange(0, BLOCK_N)", f"column = tap * {c} + c",
            ]  # fmt: skip
            setup += self.walk.taps("tap", names)
            tiles, col_ok = " * ".join([*names, "tl.cdiv({cols}, BLOCK_N)"]), f"c < {c}"
        y_rows, y_mask = "rows", f"(rows < {rows})[:, None]"
        if y_c != "1":
            setup.append("a_rows = tl.minimum(rows, M - 1)")
            y_rows, y_mask = "a_rows", ""
        group_y, group_x = self._group(y_c, "M"), self._group(x_c, "C")
        setup += [f"a += {group_y}"] if group_y else []
        setup += [f"b += {group_x}"] if group_x else []
        load = [
            "t = step * BLOCK_K + offs_k", *self.walk.unravel("t", g.outputs, "y"), *self.walk.starts("y"),
        ]  # fmt: skip
        even = g.rows_of(y)
        if even is not None:
            y_at = term("t.to(tl.int64)" if y.extent >= WIDE else "t", p.stride("y_p", even))
        else:
            y_at = self.walk.at("y", self.walk.strides("y", y), y.extent)
        x_rows = self.walk.at("h", x_walk, x.extent)
        rows_suffix, cols_suffix = ("[:, None]", "[None, :]") if flat else ("", "")
        inside = self.walk.inside(rows_suffix, cols_suffix)
        near = and_masks(f"(t < {many}){'[:, None]' if flat else ''}", self.walk.bounds())
        tap_at = self.walk.tap_at(xs, term("c", x_c))
        load += [*inside, f"inside = {near}"]
        shape = "(BLOCK_K, BLOCK_N)"
        right = addresses(
            act, x_rows if x_rows != "0" else "", tap_at if tap_at != "0" else "", shape
        )
        left = addresses(a, term(y_rows, y_c), y_at if y_at != "0" else "", "(BLOCK_M, BLOCK_K)")
        mask = "inside" if flat else "inside[:, None]"
        col_mask = f"({col_ok})[None, :]"
        load += [
            f"x = tl.load({left}{masked(y_mask, f'(t < {many})[None, :]')})",
            f"y = tl.load({right}{masked(mask, col_mask)})",
        ]
        frame = Frame(
            f"convolution_{g.rank}d_weight_grad", p, self._problem(), x.dtype, self.result, rows, n,
            self._batches(1), self._weight_axes(flat), (f"rows < {rows}", col_ok), columns, setup,
            f"tl.cdiv({many}, BLOCK_K)", load,
            cols_tiles=tiles, constants=self.walk.constants(), precision=self._precision(),
            without_divisibility=frozenset({"K"}),
        )  # fmt: skip
        self._add(frame)

    def _weight_axes(self, flat: bool) -> tuple[Axis, ...]:
        g = self.g
        channel = Axis(g.o, "group * M + rows" if g.groups > 1 else "rows", 0)
        if g.last:
            return (channel, Axis(g.cg * g.taps, "column", 1))
        return (channel, Axis(g.cg, "c", 1), Axis(g.taps, "tap", 1 if flat else None))
