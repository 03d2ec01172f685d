"""The steps of products whose A is read in place: `packed_product`, and convolutions whose weight is packed here."""

from __future__ import annotations

from functools import partial

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import Strips
from gflow.compiler.kernel.convolution import ROLES, Geometry, Walk, geometry, packed_geometry
from gflow.compiler.kernel.selection.cpu.convolutions.direct import reads_pairs, reads_windows
from gflow.compiler.kernel.selection.cpu.convolutions.patches import kind_of_patches
from gflow.compiler.kernel.tiles import rounding_rows
from gflow.dialects.extents import Count
from gflow.dialects.program import KernelAddress, KernelStep, Place
from gflow.dialects.types import TensorType

from ...program_builder import Builder
from ..epilogue import Epilogue, ending
from ..finish import Words
from ..finish import finish as finish_of
from ..function import ITEM, LANES
from . import gradient, gradient_tile, kernel, tile, weights


def product(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of a `gflow.packed_product`, with its epilogue on each tile."""
    types = [b.body.types[v] for v in (*o.operands, *o.results)]
    if types[2].numel == 0:
        return
    g = packed_geometry(o.op, types)
    x, w = o.operands
    _add(b, o, epilogue, g, (x, w), {})


def convolution(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of a convolution, or of the gradient of its input, which packs the weight [o, c, taps].

    Raises:
        CannotLower: the chosen kernel does not support the convolution.
    """
    values = (*o.operands, *o.results)
    g = _geometry(b, o)
    x, w, y = (values[n] for n in ROLES[o.name])
    source = x if o.name == "convolution" else y
    _add(b, o, epilogue, g, (source, w), _packing(b, g, b.body.types[w].itemsize))


def _packing(b: Builder, g: Geometry, item: int) -> dict[str, int | KernelAddress]:
    """The arguments for packing a weight here. item: bytes of an element."""
    strips, forward = b.choice.strips(), g.name == "convolution"
    width, deep, wide = strips.tile[1], strips.words(g.walk.channels), g.taps
    outputs, inputs = (item * n for n in weight_steps(g))
    lane, channel = (outputs, inputs) if forward else (inputs, outputs)
    apart = item < ITEM
    if g.taps == 1 and not forward:
        name = f"pack_weight_rows_{item}_{width}"
        text = partial(weights.pack_rows, name, width, item)
    else:
        if g.taps == 1:
            deep, wide, apart = 1, deep, False
        name = f"pack_weight_{item}{'_apart' if apart else ''}_{width}"
        text = partial(weights.pack, name, width, item, apart)
    if name not in b.kernels:
        b.kernels[name] = text()
    return {
        "pack": KernelAddress(name), "lane": lane, "channel": channel, "deep": deep, "wide": wide,
    }  # fmt: skip


def weight_gradient(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of the gradient of a convolution's weight.

    Raises:
        CannotLower: the chosen kernel does not support the convolution.
    """
    x, dy, r = (*o.operands, *o.results)
    result = b.body.types[r]
    g = _geometry(b, o)
    b.choice.check(b.choice.walk == "images", "orders the rows of a product that has none")
    walk, blocks = g.walk, b.choice.gradient_blocks()
    pairs, sizes = bool(blocks.precision), blocks.scratch(g.taps, g.c, g.o)
    (height, width, deep), (counts, entries, zeros, _) = blocks.tile, sizes
    size = sum(sizes)
    b.choice.check(height <= g.o, "has more rows of a tile than output channels")
    table, after = b.scratch(size), epilogue
    target = b.place(r) if epilogue is None else epilogue.behind(size, result)
    suffix = "_pairs" if pairs else ""
    name = f"gradient_tile_{height}x{width}{suffix}"
    if name not in b.kernels:
        b.kernels[name] = gradient_tile.tile(name, height, width // LANES, pairs)
    given: dict[str, Count | Place | KernelAddress] = {
        "x": b.place(x), "dy": b.place(dy), "dw": target, "table": table, "tile": KernelAddress(name), "next": 0,
        "rows": walk.rows, "images": g.n, "inputs": g.c, "outputs": g.o, "taps": g.taps, "deep": deep,
        "beside": blocks.beside, "mr": height, "nr": width, "counts": counts, "each": blocks.each,
        "zeros": counts + entries, "pairs": counts + entries + zeros, "line": blocks.line(g.o),
        "by_position": 0, **_spatial(walk),
    }  # fmt: skip
    name = f"weight_gradient{suffix}"
    if name not in b.kernels:
        b.kernels[name] = gradient.function(name, pairs)
        b.externals |= set(gradient.EXTERNALS)
    parallel, from_size = b.choice.shared()
    taken = tuple(given[word] for word in gradient.ARGUMENTS)
    b.steps.append(KernelStep(name, taken, parallel, b.label(o), True, from_size=from_size))  # type: ignore[arg-type]
    if after is not None:
        after.run(0, after.rows, target)


def _geometry(b: Builder, o: Op) -> Geometry:
    """The geometry of a convolution that reads windows in place."""
    values = (*o.operands, *o.results)
    types, strides = [b.body.types[v] for v in values], [b.strides(v) for v in values]
    g, w = geometry(o.name, o.op, types), ROLES[o.name][1]
    sound = reads_windows(g, types[w], strides[w])
    if b.choice.precision:
        sound = sound and reads_pairs(g, types[: len(o.operands)])
        types = [TensorType(ty.shape, "f32") for ty in types]
    sound = sound and kind_of_patches(g, types, strides, b.blas) == "patches"
    b.choice.check(sound, "reads windows of a convolution that cannot be read so")
    return g


def weight_steps(g: Geometry) -> tuple[int, int]:
    """The elements between output channels and between input channels of a weight [o, c, taps]."""
    return g.taps * g.cg, g.taps


def _add(
    b: Builder,
    o: Op,
    epilogue: Epilogue | None,
    g: Geometry,
    operands: tuple[int, int],
    packing: dict[str, int | KernelAddress],
) -> None:
    """Add the step. operands: the activation and the weight. packing: the arguments of a weight that is packed here."""
    result = b.body.types[o.results[0]]
    walk = g.walk
    strips = b.choice.strips()
    channels = strips.words(walk.channels)
    zeros, addresses = strips.scratch(g.taps, walk.channels)
    size = strips.b_bytes + b.threads * (zeros + addresses)
    scratch = b.scratch(size)
    target, finish, words, after = ending(b, o, epilogue, size, strips.tile[1])
    if strips.precision and not words:
        finish, words = _rounded(b, result, target, strips.tile[1])
    height, width, k = strips.tile
    b.choice.check(k == g.taps * channels // g.groups, "is for a product of another K")
    given: dict[str, Count | Place | KernelAddress] = {
        "x": b.place(operands[0]), "w": b.place(operands[1]), "y": target, "scratch": scratch,
        "tile": _tile(b, strips, g.depthwise), "finish": finish if words else 0, "next": 0,
        "pack": 0, "lane": 0, "channel": 0, "deep": 0, "wide": 0, **packing,
        "m": walk.rows, "n": walk.columns, "images": g.n, "channels": channels, "taps": g.taps,
        "rows": strips.rows, "across": strips.across, "columns": strips.columns or -(-walk.columns // width) * width,
        "mr": height, "nr": width, "strip": strips.strip_bytes, "row": 0 if words else ITEM * walk.columns,
        "zeros": zeros, "addresses": addresses, "b_bytes": strips.b_bytes,
        "by_position": int(strips.by_position), "padded": int(walk.padded),
        "excludes": int(g.name != "convolution"), **_spatial(walk),
    }  # fmt: skip
    lanes, divides = 8 if height <= 8 else LANES, any(n != 1 for n in walk.divisor)
    name = f"packed_product_{lanes}{'_strided' if divides else ''}"
    if name not in b.kernels:
        b.kernels[name] = kernel.function(name, lanes, divides)
        b.externals |= set(kernel.EXTERNALS)
    parallel, from_size = b.choice.shared()
    taken = (*(given[name] for name in kernel.WORDS), *words)
    b.steps.append(KernelStep(name, taken, parallel, b.label(o), True, from_size=from_size))  # type: ignore[arg-type]
    if after is not None:
        after.run(0, after.rows, target)


def _spatial(walk: Walk) -> dict[str, int]:
    names = {
        "input": walk.inputs, "output": walk.outputs, "kernel": walk.kernel, "stride": walk.stride,
        "padding": walk.padding, "dilation": walk.dilation, "divisor": walk.divisor,
    }  # fmt: skip
    return {f"{name}_{d}": x for name, sizes in names.items() for d, x in zip("dhw", sizes)}


def _rounded(b: Builder, ty: TensorType, at: Place, width: int) -> tuple[KernelAddress, Words]:
    """The function that rounds a tile of float32 sums to the convolution's result at `at`, and its arguments."""
    tiled = rounding_rows(ty)
    b.choice.check(tiled is not None, "rounds on tiles what needs all rows")
    assert tiled is not None
    return finish_of(b, tiled, 0, width, [at], [at])


def _tile(b: Builder, strips: Strips, depthwise: bool) -> KernelAddress:
    rows, width, _ = strips.tile
    stem, make = "packed_tile", tile.tile
    if depthwise:
        stem, make = "depthwise_tile", tile.depthwise
    elif strips.precision:
        stem, make = "pairs_tile", tile.pairs
    name = f"{stem}_{rows}x{width}"
    if name not in b.kernels:
        b.kernels[name] = make(name, rows, width // LANES)
    return KernelAddress(name)
