"""Depthwise convolutions, one output channel for each input channel: bound by memory, so no products of matrices.

A tile is positions by channels. The weight's gradient is added up in parts, which a second launch combines.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.dialects.program import TritonConfig
from gflow.dialects.types import TensorType

from ..language.grid import cdiv
from ..language.parameters import WIDE, Parameters, addresses, indented, term
from ..language.parameters import total as total_of
from ..language.signature import add_kernel
from ..program_builder import Builder
from .conv_geometry import Geometry, Tensor
from .conv_text import Walk, and_masks, masked
from .epilogue import Epilogue
from .output_tile import Axis, Tile
from .split_k import SUMS, total

#: with more taps than this the loops over them are loops in the kernel, too
_UNROLLED = 32
#: taps whose gradients a program adds up at once
_TAPS = 9


def is_depthwise(g: Geometry) -> bool:
    return g.groups == g.c == g.o and g.groups > 1


def depthwise(
    b: Builder,
    name: str,
    g: Geometry,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    result: TensorType,
    after: Epilogue,
) -> None:
    """Add the launches of a depthwise convolution, or of a gradient, and of what follows it."""
    if name == "convolution_weight_grad":
        _weight_grad(b, g, x, y, result, after)
    else:
        _activation(b, g, x if name == "convolution" else y, w, result, after, name)


def _activation(
    b: Builder,
    g: Geometry,
    source: Tensor,
    w: Tensor,
    result: TensorType,
    after: Epilogue,
    name: str,
) -> None:
    """Forward, or the gradient of the input."""
    forward = name == "convolution"
    p = Parameters()
    a, weight = p.pointer("a", source.dtype, source.place), p.pointer("b", w.dtype, w.place)
    sizes = g.outputs if forward else g.inputs
    rows, c = p.number("M", g.n * prod(sizes)), p.number("C", g.c)
    s_n, s_c = p.stride("a_n", source.outer), p.stride("a_c", source.channel)
    ss = p.strides("a_", source.spatial)
    w_o, ws = p.stride("w_o", w.outer), p.strides("w_", w.spatial)
    walk = Walk(g, p)
    image = "image.to(tl.int64)" if source.extent >= WIDE else "image"
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
        at = [term(image, s_n), *(term(f"h{i}", s) for i, s in enumerate(ss))]
        tap = walk.tap_at(ss, "")
        moved.append(tap if tap != "0" else "")
        near.append(walk.bounds())
    else:
        at = [term(image, s_n)]
        for i in range(g.rank):
            size = p.number(f"y_size{i}", g.outputs[i])
            stride, padding = (
                p.stride(f"stride{i}", g.stride[i]),
                p.stride(f"padding{i}", g.padding[i]),
            )
            shifted = f"q{i} + ({padding} - {walk.dilated(i)})"
            if g.stride[i] == 1:
                body.append(f"u{i} = {shifted}")
            else:
                body += [f"t{i} = {shifted}", f"u{i} = t{i} // {stride}"]
                near += [f"(t{i} >= 0)", f"(t{i} % {stride} == 0)"]
            near += [f"(u{i} >= 0)", f"(u{i} < {size})"]
            moved.append(term(f"u{i}", ss[i]))
    lines.append(f"a_rows = {total_of(at)}")
    row = total_of(["a_rows", *moved])
    acc = SUMS[source.dtype]
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
    tile = Tile(_axes(g, sizes, p), ("row_ok", "col_ok"))
    lines += after.emit(p, tile, "acc", used)
    stem = "_".join(["depthwise", *([] if forward else ["input_grad"]), *after.ops])
    add_kernel(
        b, stem, p, ["BLOCK_P", "BLOCK_C", *walk.constants()], lines,
        _configs(g.c, source.channel == 1), ["cdiv(M, BLOCK_P) * cdiv(C, BLOCK_C)"], walk.constants(), after,
        used, frozenset({"M"}),
    )  # fmt: skip


def _loops(g: Geometry, body: Sequence[str]) -> list[str]:
    """The loops over the taps."""
    span = "tl.static_range" if g.taps <= _UNROLLED else "range"
    heads = [f"for k{i} in {span}(K{i}):" for i in range(g.rank)]
    lines = [line for i, head in enumerate(heads) for line in indented([head], i)]
    return [*lines, *indented(body, g.rank)]


def _axes(g: Geometry, sizes: Sequence[int], p: Parameters) -> tuple[Axis, ...]:
    """Those of an activation."""
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


def _configs(channels: int, last: bool) -> list[TritonConfig]:
    """Tiles with the contiguous dimension across."""
    wide = 128 if channels >= 128 else 64 if channels > 32 else 32
    if last:
        tiles = [
            (1024 // wide, wide, 4),
            (2048 // wide, wide, 4),
            (512 // wide, wide, 4),
            (1024 // 32, 32, 4),
        ]
    else:
        tiles = [(256, 1, 4), (512, 1, 4), (128, 4, 4), (1024, 1, 4)]
    found = []
    for positions, across, warps in tiles:
        config = TritonConfig({"BLOCK_P": positions, "BLOCK_C": across}, warps, 2)
        if config not in found:
            found.append(config)
    return found


def _weight_grad(
    b: Builder, g: Geometry, x: Tensor, y: Tensor, result: TensorType, after: Epilogue
) -> None:
    p = Parameters()
    a, act = p.pointer("a", y.dtype, y.place), p.pointer("b", x.dtype, x.place)
    positions = g.n * prod(g.outputs)
    rows, c = p.number("M", positions), p.number("C", g.c)
    acc = SUMS[x.dtype]
    part = TensorType(result.shape, "f64" if x.dtype == "f64" else "f32")
    taps = min(g.taps, _TAPS)
    chunks = cdiv(g.taps, taps)
    configs = _grad_configs(g.c, x.channel == 1)
    first = configs[0].constants
    programs = cdiv(g.c, first["BLOCK_C"]) * chunks
    splits = max(
        1,
        min(
            4 * b.target.device.multiprocessors // programs,
            cdiv(positions, 4 * first["BLOCK_P"]),
            512,
        ),
    )
    scratch = b.scratch(part.nbytes * splits)
    p.pointer("partial", part.dtype, scratch)
    y_n, y_c, ys = p.stride("y_n", y.outer), p.stride("y_c", y.channel), p.strides("y_", y.spatial)
    x_n, x_c, xs = p.stride("x_n", x.outer), p.stride("x_c", x.channel), p.strides("x_", x.spatial)
    walk = Walk(g, p)
    count, share = p.number("splits", splits), "share"
    lines = [
        f"across = tl.cdiv({c}, BLOCK_C)",
        "cols = tl.program_id(0) % across * BLOCK_C + tl.arange(0, BLOCK_C)",
        f"first = tl.program_id(0) // across * {taps}",
        f"col_ok = cols < {c}",
        f"{share} = tl.cdiv(tl.cdiv({rows}, {count}), BLOCK_P) * BLOCK_P",
        f"low = tl.program_id(1) * {share}",
        f"high = tl.minimum(low + {share}, {rows})",
        *(f"acc{t} = tl.full((BLOCK_P, BLOCK_C), 0, {acc})" for t in range(taps)),
        "for start in range(low, high, BLOCK_P):",
    ]
    image = "image.to(tl.int64)" if max(x.extent, y.extent) >= WIDE else "image"
    y_at = total_of([term(image, y_n), *(term(f"q{i}", s) for i, s in enumerate(ys))])
    x_at = total_of([term(image, x_n), *(term(f"h{i}", s) for i, s in enumerate(xs))])
    body = [
        "rows = start + tl.arange(0, BLOCK_P)", "row_ok = rows < high",
        *walk.unravel("rows", g.outputs, "q"), *walk.starts("q"),
        f"a_rows = {y_at}", f"b_rows = {x_at}",
        f"dy = tl.load({addresses(a, 'a_rows', term('cols', y_c), '(BLOCK_P, BLOCK_C)')}"
        f"{masked('row_ok[:, None]', 'col_ok[None, :]')}).to({acc})",
    ]  # fmt: skip
    tap_at = walk.tap_at(xs, "")
    row = "b_rows" if tap_at == "0" else f"b_rows + ({tap_at})"
    names = list(walk.constants())
    for t in range(taps):
        near = ["row_ok", walk.bounds()]
        if chunks > 1:
            near.append(f"(first + {t} < {g.taps})")
        body += [
            *walk.taps(f"(first + {t})", names), *walk.inside("", ""),
            f"inside = {and_masks(*near)}",
            f"x = tl.load({addresses(act, row, term('cols', x_c), '(BLOCK_P, BLOCK_C)')}"
            f"{masked('inside[:, None]', 'col_ok[None, :]')})",
            f"acc{t} += dy * x.to({acc})",
        ]  # fmt: skip
    lines += indented(body)
    numel = p.number("numel", result.numel)
    lines.append(
        f"at = partial + tl.program_id(1).to(tl.int64) * {numel} + cols * {g.taps} + first"
    )
    for t in range(taps):
        ok = "col_ok" if chunks == 1 else f"col_ok & (first + {t} < {g.taps})"
        lines.append(f"tl.store(at + {t}, tl.sum(acc{t}, axis=0), mask={ok})")
    add_kernel(
        b, "depthwise_weight_grad_partial", p, ["BLOCK_P", "BLOCK_C", *walk.constants()], lines, configs,
        [f"cdiv(C, BLOCK_C) * {chunks}", "splits"], walk.constants(), after, set(), frozenset({"M"}),
    )  # fmt: skip
    total(b, part, scratch, splits, result, after)


def _grad_configs(channels: int, last: bool) -> list[TritonConfig]:
    wide = 64 if channels > 32 else 32
    tiles = (
        [(1024 // wide, wide), (512 // wide, wide), (2048 // wide, wide)]
        if last
        else [(1024, 1), (512, 1), (2048, 1)]
    )
    return [TritonConfig({"BLOCK_P": n, "BLOCK_C": w}, 4, 2) for n, w in tiles]
