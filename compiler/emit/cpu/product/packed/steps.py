"""The step of a `packed_product`."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.convolution import Geometry, packed_geometry
from gflow.dialects.extents import Count
from gflow.dialects.program import KernelAddress, KernelStep, Place

from ...program_builder import Builder
from ..epilogue import Epilogue
from ..finish import Words
from ..function import ITEM, LANES
from . import kernel, tile

_NAME = "packed_product"


def product(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the step of a `gflow.packed_product`, with its epilogue on each tile."""
    values = (*o.operands, *o.results)
    types = [b.body.types[v] for v in values]
    result = types[2]
    if result.numel == 0:
        return
    g = packed_geometry(o.op, types)
    strips = b.choice.strips()
    zeros, addresses = strips.scratch(g.taps, g.c)
    scratch = b.scratch(b.threads * (zeros + addresses))
    finish, after = KernelAddress(""), None
    words: Words = ()
    if epilogue is None:
        target = b.place(o.results[0])
    elif epilogue.tiled is not None:
        target = scratch  # not written to
        finish, words = epilogue.finish(strips.tile[1])
    else:
        size = b.threads * (zeros + addresses)
        raw = b.scratch(size + result.nbytes, epilogue.place is None)
        behind = Place(raw.space, raw.index, raw.offset + size)
        target = epilogue.target(0, behind)
        after = epilogue
    height, width, k = strips.tile
    b.choice.check(k == g.taps * g.cg, "is for a product of another K")
    given: dict[str, Count | Place | KernelAddress] = {
        "x": b.place(o.operands[0]), "w": b.place(o.operands[1]), "y": target, "scratch": scratch,
        "tile": _tile(b, height, width, g.depthwise), "finish": finish if words else 0, "next": 0,
        "m": g.positions, "n": g.o, "channels": g.c, "taps": g.taps,
        "rows": strips.rows, "across": strips.across, "mr": height, "nr": width,
        "strip": ITEM * k * width, "row": 0 if words else ITEM * g.o, "zeros": zeros, "addresses": addresses,
        "plain": int(g.pointwise), "padded": int(any(g.padding)), **_spatial(g),
    }  # fmt: skip
    if _NAME not in b.kernels:
        b.kernels[_NAME] = kernel.function(_NAME)
        b.externals |= set(kernel.EXTERNALS)
    parallel, from_size = b.choice.shared()
    taken = (*(given[name] for name in kernel.WORDS), *words)
    b.steps.append(KernelStep(_NAME, taken, parallel, b.label(o), True, from_size=from_size))  # type: ignore[arg-type]
    if after is not None:
        after.run(0, after.rows, target)


def _spatial(g: Geometry) -> dict[str, int]:
    s = g.in_space()
    names = {
        "input": s.inputs, "output": s.outputs, "kernel": s.kernel, "stride": s.stride, "padding": s.padding,
        "dilation": s.dilation,
    }  # fmt: skip
    return {f"{name}_{d}": x for name, sizes in names.items() for d, x in zip("dhw", sizes)}


def _tile(b: Builder, rows: int, width: int, depthwise: bool) -> KernelAddress:
    make = tile.depthwise if depthwise else tile.tile
    name = f"{'depthwise' if depthwise else 'packed'}_tile_{rows}x{width}"
    if name not in b.kernels:
        b.kernels[name] = make(name, rows, width // LANES)
    return KernelAddress(name)
