"""The kernels of im2col and of its transpose, for channels-last float32 data.

`pack` (im2col) copies the patch of each output position into a row of a matrix, with zeros beyond the border. `unpack`
is its transpose, which adds the entries of overlapping patches.
"""

from __future__ import annotations

from gflow.compiler.kernel.blocks import LANES
from gflow.compiler.kernel.convolution import Geometry

from ...language.template import Template

#: the arguments of all convolution kernels: batch; sizes of input, output and kernel; stride, padding and dilation
SIZES = ("n", "h", "w", "c", "ho", "wo", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")


def sizes(g: Geometry) -> dict[str, int]:
    """The values of the arguments `SIZES` for a convolution in one or two dimensions."""
    g = g.in_planes()
    walk = (*g.kernel, *g.stride, *g.padding, *g.dilation)
    return dict(zip(SIZES, (g.n, *g.inputs, g.c, *g.outputs, *walk), strict=True))


def pack(strided: bool) -> Template:
    """im2col: rows from number `first` on of the matrix with row (n, ho, wo) and column (kh, kw, c).

    strided: columns are (c, kh, kw).

    Arguments: x, rows (target); first, count: output positions; cg: the channels of a group, out of c in memory.
    """
    t = Template(("x", "rows", "first", "count", "cg", *SIZES), ("x", "rows"))
    taps = t.mul(t["kh"], t["kw"])
    width = t.mul(taps, t["cg"])
    low, high = t.share(t["count"])

    def row(r: str, _: list[str]) -> list[str]:
        rest, wo = t.split(t.add(t["first"], r), t["wo"])
        n, ho = t.split(rest, t["ho"])
        target = t.mul(r, width)
        h0, w0 = t.sub(t.mul(ho, t["sh"]), t["ph"]), t.sub(t.mul(wo, t["sw"]), t["pw"])

        def tap_row(kh: str, _: list[str]) -> list[str]:
            h = t.add(h0, t.mul(kh, t["dh"]))
            row_ok = t.within(h, t["h"])

            def tap(kw: str, _: list[str]) -> list[str]:
                w = t.add(w0, t.mul(kw, t["dw"]))
                ok = t(f"arith.andi {row_ok}, {t.within(w, t['w'])} : i1")
                source = t.mul(t.add(t.mul(t.add(t.mul(n, t["h"]), h), t["w"]), w), t["c"])
                index = t.add(t.mul(kh, t["kw"]), kw)
                start = t.add(target, index if strided else t.mul(index, t["cg"]))

                def chunk(c: str, _: list[str]) -> list[str]:
                    mask = t.mask(t.sub(t["cg"], c))
                    value = t.load(t["x"], t.add(source, c), t.both(mask, ok))
                    if strided:
                        t.store(value, t["rows"], t.add(start, t.mul(c, taps)), mask, taps)
                    else:
                        t.store(value, t["rows"], t.add(start, c), mask)
                    return []

                t.loop(0, t["cg"], LANES, [], chunk)
                return []

            t.loop(0, t["kw"], 1, [], tap)
            return []

        t.loop(0, t["kh"], 1, [], tap_row)
        return []

    t.loop(low, high, 1, [], row)
    return t


def unpack(strided: bool) -> Template:
    """The transpose of `pack`: each input position is the sum of its entries in the patch matrix.

    Arguments: x (target), rows; first: the first image; count: the number of input positions of these images.
    """
    t = Template(("x", "rows", "first", "count", "cg", *SIZES), ("x", "rows"))
    taps = t.mul(t["kh"], t["kw"])
    width = t.mul(taps, t["cg"])
    low, high = t.share(t["count"])

    def position(r: str, _: list[str]) -> list[str]:
        rest, w = t.split(r, t["w"])
        image, h = t.split(rest, t["h"])
        target = t.mul(t.add(t.mul(t["first"], t["h"], t["w"]), r), t["c"])
        hp, wp = t.add(h, t["ph"]), t.add(w, t["pw"])

        def chunk(c: str, _: list[str]) -> list[str]:
            mask = t.mask(t.sub(t["cg"], c))

            def tap_row(kh: str, sums: list[str]) -> list[str]:
                th = t.sub(hp, t.mul(kh, t["dh"]))
                ho, left = t.binary("divsi", th, t["sh"]), t.binary("remsi", th, t["sh"])
                fits = t(f"arith.cmpi eq, {left}, {t.i64(0)} : i64")
                row_ok = t(f"arith.andi {fits}, {t.within(ho, t['ho'])} : i1")

                def tap(kw: str, sums: list[str]) -> list[str]:
                    tw = t.sub(wp, t.mul(kw, t["dw"]))
                    wo, left = t.binary("divsi", tw, t["sw"]), t.binary("remsi", tw, t["sw"])
                    fits = t(f"arith.cmpi eq, {left}, {t.i64(0)} : i64")
                    row_fits = t(f"arith.andi {row_ok}, {fits} : i1")
                    ok = t(f"arith.andi {row_fits}, {t.within(wo, t['wo'])} : i1")
                    row = t.add(t.mul(t.add(t.mul(image, t["ho"]), ho), t["wo"]), wo)
                    index = t.add(t.mul(kh, t["kw"]), kw)
                    if strided:
                        at = t.add(t.mul(row, width), index, t.mul(c, taps))
                        value = t.load(t["rows"], at, t.both(mask, ok), taps)
                    else:
                        at = t.add(t.mul(row, width), t.mul(index, t["cg"]), c)
                        value = t.load(t["rows"], at, t.both(mask, ok))
                    return [t.plus(sums[0], value)]

                return t.accumulate(0, t["kw"], sums, tap)

            (total,) = t.accumulate(0, t["kh"], [t.zero()], tap_row)
            t.store(total, t["x"], t.add(target, c), mask)
            return []

        t.loop(0, t["cg"], LANES, [], chunk)
        return []

    t.loop(low, high, 1, [], position)
    return t
