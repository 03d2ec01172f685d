"""Depthwise convolutions: one output channel for each input channel. They are memory-bound, and no matrix products.

A tile has positions × channels. Where several programs share the positions of a weight's gradient, a second launch adds
their partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.product.contraction import SUMS, Contraction
from gflow.compiler.kernel.selection.gpu.product.convolution import (
    TAPS,
    Convolution,
    depthwise_configs,
    depthwise_sums,
)
from gflow.compiler.kernel.sizes import cdiv, power_of_two
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.types import TensorType

from ..language.expressions import triton_type
from ..language.parameters import Parameters, addresses, indented, term
from ..language.parameters import total as total_of
from ..language.signature import add_kernel
from ..program_builder import Builder
from .conv_text import Walk, and_masks, masked
from .epilogue import Epilogue
from .output_tile import Axis, Tile
from .split_k import total

#: with more taps, loops over them are not unrolled
_UNROLLED = 32


def depthwise(
    b: Builder,
    c: Contraction,
    g: Convolution,
    places: Sequence[Place | None],
    after: Epilogue,
    choice: Choice,
) -> None:
    """Add the launches of a depthwise convolution or of one of its gradients, and of its epilogue.

    places: the addresses of its operands and its result.
    """
    whole = after.whole()
    configs = list(b.ways(depthwise_configs(g, whole)))
    b.choice.check(
        configs[0].constants["BLOCK_P"] % whole == 0,
        f"has a tile whose positions are no multiple of {whole}",
    )
    at = [p for p in places[:2] if p is not None]
    if c.name == "convolution_weight_grad":
        _weight_grad(b, g, at, c.result, after, configs, choice.pieces)
    else:
        _activation(b, g, at, after, configs)


def _activation(
    b: Builder,
    g: Convolution,
    places: Sequence[Place],
    after: Epilogue,
    configs: list[TritonConfig],
) -> None:
    """Add the launch of the forward or of the input's gradient."""
    name = g.name
    source, w = g.x if name == "convolution" else g.y, g.w
    forward = name == "convolution"
    p = Parameters()
    a, weight = p.pointer("a", source.dtype, places[0]), p.pointer("b", w.dtype, places[1])
    sizes = g.outputs if forward else g.inputs
    rows, c = p.number("M", g.n * prod(sizes)), p.number("C", g.c)
    walk = Walk(g, p)
    source_walk = s_n, s_c, ss = walk.strides("a", source)
    w_o, ws = p.stride("w_o", w.outer), p.strides("w_", w.spatial)
    lines = [
        f"across = tl.cdiv({c}, BLOCK_C)",
        "rows = tl.program_id(0) // across * BLOCK_P + tl.arange(0, BLOCK_P)",
        "cols = tl.program_id(0) % across * BLOCK_C + tl.arange(0, BLOCK_C)",
        f"row_ok = rows < {rows}",
        f"col_ok = cols < {c}",
        *walk.unravel("rows", sizes, "q"),
    ]
    body: list[str] = []
    near = ["row_ok"]
    moved: list[str] = []
    if forward:
        lines += walk.starts("q")
        body += walk.inside("", "")
        at = walk.at("h", source_walk, source.extent)
        tap = walk.tap_at(ss, "")
        moved.append(tap if tap != "0" else "")
        near.append(walk.bounds())
    else:
        at = walk.at("", (s_n, s_c, []), source.extent)
        for i in range(g.rank):
            found, inside = walk.source(i)
            body += found
            near += inside
            moved.append(term(f"u{i}", ss[i]))
    lines.append(f"a_rows = {at}")
    row = total_of(["a_rows", *moved])
    acc = triton_type(SUMS[source.dtype])
    w_at = total_of([term(f"k{i}", s) for i, s in enumerate(ws)])
    body += [
        f"inside = {and_masks(*near)}",
        f"x = tl.load({addresses(a, row, term('cols', s_c), '(BLOCK_P, BLOCK_C)')}"
        f"{masked('inside[:, None]', 'col_ok[None, :]')})",
        f"y = tl.load({weight} + {total_of([w_at if w_at != '0' else '', term('cols', w_o)])}{masked('col_ok')})",
        f"acc += x.to({acc}) * y.to({acc})[None, :]",
    ]
    lines.append(f"acc = tl.full((BLOCK_P, BLOCK_C), 0, {acc})")
    lines += _loops(g, body)
    used: set[str] = set()
    tile = Tile(_axes(g, sizes, p), ("row_ok", "col_ok"), "BLOCK_C")
    lines += after.emit(p, tile, "acc", used)
    stem = "_".join(["depthwise", *([] if forward else ["input_grad"]), *after.ops])
    add_kernel(
        b, stem, p, ["BLOCK_P", "BLOCK_C", *walk.constants()], lines,
        configs, ["cdiv(M, BLOCK_P) * cdiv(C, BLOCK_C)"], walk.constants(), after,
        used, frozenset({"M"}),
    )  # fmt: skip


def _loops(g: Convolution, body: Sequence[str]) -> list[str]:
    """Lines of the loops over the taps."""
    span = "tl.static_range" if g.taps <= _UNROLLED else "range"
    heads = [f"for k{i} in {span}(K{i}):" for i in range(g.rank)]
    lines = [line for i, head in enumerate(heads) for line in indented([head], i)]
    return [*lines, *indented(body, g.rank)]


def _axes(g: Convolution, sizes: Sequence[int], p: Parameters) -> tuple[Axis, ...]:
    """The axes of an activation."""
    if g.last:
        return (Axis(g.n * prod(sizes), "rows", 0), Axis(g.c, "cols", 1))
    if g.n == 1:
        return (Axis(g.c, "cols", 1), Axis(prod(sizes), "rows", 0))
    image = p.number("image_size", prod(sizes))
    return (
        Axis(g.n, f"rows // {image}", 0),
        Axis(g.c, "cols", 1),
        Axis(prod(sizes), f"rows % {image}", 0),
    )


def _weight_grad(
    b: Builder,
    g: Convolution,
    places: Sequence[Place],
    result: TensorType,
    after: Epilogue,
    configs: list[TritonConfig],
    splits: int,
) -> None:
    x, y, p = g.x, g.y, Parameters()
    a, act = p.pointer("a", y.dtype, places[1]), p.pointer("b", x.dtype, places[0])
    positions = g.positions
    rows, c = p.number("M", positions), p.number("C", g.c)
    acc = triton_type(SUMS[x.dtype])
    taps = min(g.taps, TAPS)
    chunks = cdiv(g.taps, taps)
    walk = Walk(g, p)
    y_walk, x_walk = walk.strides("y", y), walk.strides("x", x)
    shared = [f"low, high = 0, {rows}"]
    if splits > 1:
        shared = [
            f"share = tl.cdiv(tl.cdiv({rows}, {p.number('splits', splits)}), BLOCK_P) * BLOCK_P",
            "low = tl.program_id(1) * share",
            f"high = tl.minimum(low + share, {rows})",
        ]
    lines = [
        "program = tl.program_id(0)",
        f"across = tl.cdiv({c}, BLOCK_C)",
        "cols = program % across * BLOCK_C + tl.arange(0, BLOCK_C)",
        f"first = program // across * {taps}",
        f"col_ok = cols < {c}",
        *shared,
        *(f"acc{t} = tl.full((BLOCK_P, BLOCK_C), 0, {acc})" for t in range(taps)),
        "for start in range(low, high, BLOCK_P):",
    ]
    extent = max(x.extent, y.extent)
    body = [
        "rows = start + tl.arange(0, BLOCK_P)", "row_ok = rows < high",
        *walk.unravel("rows", g.outputs, "q"), *walk.starts("q"),
        f"a_rows = {walk.at('q', y_walk, extent)}", f"b_rows = {walk.at('h', x_walk, extent)}",
        f"dy = tl.load({addresses(a, 'a_rows', term('cols', y_walk[1]), '(BLOCK_P, BLOCK_C)')}"
        f"{masked('row_ok[:, None]', 'col_ok[None, :]')}).to({acc})",
    ]  # fmt: skip
    tap_at = walk.tap_at(x_walk[2], "")
    row = "b_rows" if tap_at == "0" else f"b_rows + ({tap_at})"
    names = list(walk.constants())
    for t in range(taps):
        near = ["row_ok", walk.bounds()]
        if chunks > 1:
            near.append(f"(first + {t} < {g.taps})")
        body += [
            *walk.taps(f"(first + {t})", names), *walk.inside("", ""),
            f"inside = {and_masks(*near)}",
            f"x = tl.load({addresses(act, row, term('cols', x_walk[1]), '(BLOCK_P, BLOCK_C)')}"
            f"{masked('inside[:, None]', 'col_ok[None, :]')})",
            f"acc{t} += dy * x.to({acc})",
        ]  # fmt: skip
    lines += indented(body)
    grid = f"cdiv(C, BLOCK_C) * {chunks}"
    names = ["BLOCK_P", "BLOCK_C", *walk.constants()]
    if splits == 1:
        used: set[str] = set()
        end = f"tl.minimum(first + {taps}, {g.taps})" if chunks > 1 else str(taps)
        lines += [
            f"tap = first + tl.arange(0, {power_of_two(taps)})",
            f"tap_ok = tap < {end}",
            f"acc = tl.full((BLOCK_C, {power_of_two(taps)}), 0, {acc})",
        ]
        for t in range(taps):
            lines.append(
                f"acc = tl.where((tap == first + {t})[None, :], tl.sum(acc{t}, axis=0)[:, None], acc)"
            )
        tile = Tile((Axis(g.c, "cols", 0), Axis(g.taps, "tap", 1)), ("col_ok", "tap_ok"))
        lines += after.emit(p, tile, "acc", used)
        stem = "_".join(["depthwise_weight_grad", *after.ops])
        add_kernel(
            b, stem, p, names, lines, configs, [grid], walk.constants(), after, used, frozenset({"M"})
        )  # fmt: skip
        return
    part = depthwise_sums(g, result)
    scratch = b.scratch(part.nbytes * splits)
    p.pointer("partial", part.dtype, scratch)
    numel = p.number("numel", result.numel)
    lines.append(
        f"at = partial + tl.program_id(1).to(tl.int64) * {numel} + cols * {g.taps} + first"
    )
    for t in range(taps):
        ok = "col_ok" if chunks == 1 else f"col_ok & (first + {t} < {g.taps})"
        lines.append(f"tl.store(at + {t}, tl.sum(acc{t}, axis=0), mask={ok})")
    add_kernel(
        b, "depthwise_weight_grad_partial", p, names, lines, configs, [grid, "splits"], walk.constants(), after, set(),
        frozenset({"M"}),
    )  # fmt: skip
    total(b, part, scratch, splits, result, after)
