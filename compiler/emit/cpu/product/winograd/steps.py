"""The steps of a convolution and of its gradients by Winograd's algorithm."""

from __future__ import annotations

from functools import partial
from math import prod

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import ITEM, LANES
from gflow.compiler.kernel.convolution import ROLES, Geometry, geometry
from gflow.compiler.kernel.selection.cpu.convolutions.patches import kind_of_patches
from gflow.compiler.kernel.selection.cpu.convolutions.winograd import (
    is_by_channels,
    reads_weight,
    tiles_of,
    transforms,
)
from gflow.dialects.extents import Count
from gflow.dialects.program import KernelAddress, KernelStep, Place

from ...program_builder import Builder
from .. import tile
from ..epilogue import Epilogue, ending
from ..packed import weights
from ..packed.steps import weight_steps
from . import base, gradient, kernel

#: the products of a chain of additions, and those that are added in one chain, which takes no second step
_CHAIN, _SHORT = 16, 32


def convolution(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of a convolution, or of the gradient of its input.

    Raises:
        CannotLower: the chosen kernel does not support the convolution.
    """
    blocks = b.choice.winograd()
    g, (x, w, y) = _geometry(b, o, blocks.tile[1])
    walk = g.walk
    packed, u, zeros, each = blocks.scratch(walk)
    size = packed + u + b.threads * each
    scratch = b.scratch(size)
    target, finish, words, after = ending(b, o, epilogue, size, blocks.tile[1])
    height, width = blocks.tile
    forward = g.name == "convolution"
    outputs, inputs, tap = *(ITEM * n for n in weight_steps(g)), 0
    pack = f"pack_weight_{ITEM}_{width}"
    text = partial(weights.pack, pack, width, ITEM, False)
    if is_by_channels(g, b.body.types[w], b.strides(w)):
        outputs, inputs, tap = ITEM * g.taps * g.c, ITEM, ITEM * g.c
        if not forward:
            pack = f"pack_weight_rows_{ITEM}_{width}"
            text = partial(weights.pack_rows, pack, width, ITEM)
    if pack not in b.kernels:
        b.kernels[pack] = text()
    v_row = blocks.v_row(walk)
    given: dict[str, Count | Place | KernelAddress] = {
        "x": b.place(x if forward else y), "w": b.place(w), "y": target, "scratch": scratch,
        "tile": _tile(b, blocks.tile, (ITEM, tile.GIVEN), walk.kernel[0] * walk.channels),
        "finish": finish if words else 0, "pack": KernelAddress(pack),
        "next": 0, "n": walk.columns, "channels": walk.channels, **_sizes(g),
        "flipped": int(not forward), "block": blocks.tiles,
        "mr": height, "nr": width, "row": ITEM * walk.columns,
        "lane": outputs if forward else inputs, "channel": inputs if forward else outputs, "tap": tap,
        "v_row": v_row, "m_row": blocks.m_row, "v_size": blocks.tiles * v_row, "m_size": blocks.tiles * blocks.m_row,
        "strip": blocks.strip(walk), "u_strip": blocks.u_strip(walk), "packed": packed, "u": u, "zeros": zeros,
        "each": each,
    }  # fmt: skip
    name = f"winograd_{width}"
    if name not in b.kernels:
        b.kernels[name] = kernel.function(name, width // LANES)
        b.externals |= set(base.EXTERNALS)
    parallel, from_size = b.choice.shared()
    taken = (*(given[name] for name in kernel.WORDS), *words)
    b.steps.append(KernelStep(name, taken, parallel, b.label(o), True, from_size=from_size))  # type: ignore[arg-type]
    if after is not None:
        after.run(0, after.rows, target)


def weight_gradient(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of the gradient of a convolution's weight.

    Raises:
        CannotLower: the chosen kernel does not support the convolution.
    """
    blocks = b.choice.winograd_gradient()
    g, (x, _, y) = _geometry(b, o, LANES)
    result = b.body.types[o.results[0]]
    half, zeros, each = blocks.scratch(g)
    size = 2 * half + b.threads * each
    scratch = b.scratch(size)
    target = b.place(o.results[0]) if epilogue is None else epilogue.behind(size, result)
    height, width = blocks.tile
    v_row, d_row = blocks.v_row(g), blocks.d_row(g)
    tiles = g.n * prod(tiles_of(g.walk))
    b.choice.check(tiles > 1, "sums two halves of one tile")
    given: dict[str, Count | Place | KernelAddress] = {
        "x": b.place(x), "dy": b.place(y), "dw": target, "scratch": scratch,
        "tile": _tile(b, blocks.tile, (tile.GIVEN, ITEM), blocks.tiles), "next": 0,
        "outputs": g.o, "inputs": g.c, **_sizes(g),
        "block": blocks.tiles, "half": -(-tiles // 2), "rows": blocks.rows, "beside": blocks.beside,
        "parts": -(-g.o // blocks.beside), "mr": height, "nr": width,
        "v_row": v_row, "d_row": d_row, "m_row": v_row, "v_size": blocks.tiles * v_row, "d_size": blocks.tiles * d_row,
        "m_size": blocks.m_size(g), "m": half, "zeros": zeros, "each": each,
    }  # fmt: skip
    name = "winograd_weight_gradient"
    if name not in b.kernels:
        b.kernels[name] = gradient.function(name)
        b.externals |= set(base.EXTERNALS)
    parallel, from_size = b.choice.shared()
    taken = tuple(given[word] for word in gradient.WORDS)
    b.steps.append(KernelStep(name, taken, parallel, b.label(o), True, from_size=from_size))  # type: ignore[arg-type]
    if epilogue is not None:
        epilogue.run(0, epilogue.rows, target)


def _geometry(b: Builder, o: Op, width: int) -> tuple[Geometry, tuple[int, int, int]]:
    """The geometry of a convolution that the algorithm supports, and its values. width: of a strip."""
    values = (*o.operands, *o.results)
    types, strides = [b.body.types[v] for v in values], [b.strides(v) for v in values]
    g, (x, w, y) = geometry(o.name, o.op, types), ROLES[o.name]
    sound = transforms(g, width) and reads_weight(g, types[w], strides[w])
    sound = sound and kind_of_patches(g, types, strides, b.blas) == "patches"
    b.choice.check(sound, "is for 3×3 convolutions with stride 1 of whole vectors of channels")
    return g, (values[x], values[w], values[y])


def _sizes(g: Geometry) -> dict[str, int]:
    """The arguments of sizes, and of the position that the first result reads from."""
    walk = g.walk
    _, tiles_h, tiles_w = tiles_of(walk)
    first = [
        -p - (k - 1 if g.name == "convolution_input_grad" else 0)
        for p, k in zip(walk.padding, walk.kernel)
    ]
    return {
        "images": g.n, **dict(zip(("d", "h", "w_"), walk.outputs)), **dict(zip(("di", "hi", "wi"), walk.inputs)),
        "depth": walk.kernel[0], **dict(zip(("fd", "fh", "fw"), first)), "tiles_h": tiles_h, "tiles_w": tiles_w,
    }  # fmt: skip


def _tile(
    b: Builder, size: tuple[int, int], steps: tuple[int | str, int | str], k: int
) -> KernelAddress:
    """The function of a register tile.

    steps: the strides of A along K and from row to row, in bytes. k: the size of K.
    """
    (height, width), chain = size, _SHORT if k <= _SHORT else _CHAIN
    name = f"tile_{'rows' if steps[0] == ITEM else 'columns'}_{height}x{width}_{chain}"
    if name not in b.kernels:
        b.kernels[name] = tile.tile(name, height, width // LANES, False, steps, chain)
    return KernelAddress(name)
