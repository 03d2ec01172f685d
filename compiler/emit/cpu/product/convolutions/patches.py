"""The kernels of im2col and of its transpose, for channels-last float32 data.

`pack` (im2col) copies the patch of each output position into a row of a matrix, with zeros beyond the border. `unpack`
is its transpose, which adds the entries of overlapping patches.
"""

from __future__ import annotations

from gflow.compiler.kernel.blocks import LANES
from gflow.compiler.kernel.convolution import Geometry

from ...language.template import Template

#: the arguments of all convolution kernels: batch; depth, height and width of input, output and kernel; stride, padding
#: and dilation
SIZES = (
    *("n", "d", "h", "w", "c", "do", "ho", "wo", "kd", "kh", "kw"),
    *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
)


def sizes(g: Geometry) -> dict[str, int]:
    """The values of the arguments `SIZES`; dimensions that a convolution lacks are leading ones of size 1."""
    g = g.in_space()
    walk = (*g.kernel, *g.stride, *g.padding, *g.dilation)
    return dict(zip(SIZES, (g.n, *g.inputs, g.c, *g.outputs, *walk), strict=True))


def pack(strided: bool) -> Template:
    """im2col: rows from number `first` on of the matrix with row (n, do, ho, wo) and column (kd, kh, kw, c).

    strided: columns are (c, kd, kh, kw).

    Arguments: x, rows (target); first, count: output positions; cg: the channels of a group, out of c in memory.
    """
    t = Template(("x", "rows", "first", "count", "cg", *SIZES), ("x", "rows"))
    taps = t.mul(t["kd"], t["kh"], t["kw"])
    width = t.mul(taps, t["cg"])
    low, high = t.share(t["count"])

    def row(r: str, _: list[str]) -> list[str]:
        rest, wo = t.split(t.add(t["first"], r), t["wo"])
        rest, ho = t.split(rest, t["ho"])
        n, do = t.split(rest, t["do"])
        target = t.mul(r, width)
        d0, h0, w0 = (
            t.sub(t.mul(at, t[f"s{x}"]), t[f"p{x}"]) for at, x in ((do, "d"), (ho, "h"), (wo, "w"))
        )

        def tap_plane(kd: str, _: list[str]) -> list[str]:
            d = t.add(d0, t.mul(kd, t["dd"]))
            plane_ok, plane = t.within(d, t["d"]), t.mul(t.add(t.mul(n, t["d"]), d), t["h"])

            def tap_row(kh: str, _: list[str]) -> list[str]:
                h = t.add(h0, t.mul(kh, t["dh"]))
                row_ok = t(f"arith.andi {plane_ok}, {t.within(h, t['h'])} : i1")
                line, index_row = t.mul(t.add(plane, h), t["w"]), t.add(t.mul(kd, t["kh"]), kh)

                def tap(kw: str, _: list[str]) -> list[str]:
                    w = t.add(w0, t.mul(kw, t["dw"]))
                    ok = t(f"arith.andi {row_ok}, {t.within(w, t['w'])} : i1")
                    source = t.mul(t.add(line, w), t["c"])
                    index = t.add(t.mul(index_row, t["kw"]), kw)
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

        t.loop(0, t["kd"], 1, [], tap_plane)
        return []

    t.loop(low, high, 1, [], row)
    return t


def unpack(strided: bool) -> Template:
    """The transpose of `pack`: each input position is the sum of its entries in the patch matrix.

    Arguments: x (target), rows; first: the first image; count: the number of input positions of these images.
    """
    t = Template(("x", "rows", "first", "count", "cg", *SIZES), ("x", "rows"))
    taps = t.mul(t["kd"], t["kh"], t["kw"])
    width = t.mul(taps, t["cg"])
    low, high = t.share(t["count"])

    def reader(padded: str, k: str, x: str) -> tuple[str, str]:
        """The output position that reads an input position by tap k, and whether there is one."""
        there = t.sub(padded, t.mul(k, t[f"d{x}"]))
        at, left = t.binary("divsi", there, t[f"s{x}"]), t.binary("remsi", there, t[f"s{x}"])
        fits = t(f"arith.cmpi eq, {left}, {t.i64(0)} : i64")
        return at, t(f"arith.andi {fits}, {t.within(at, t[f'{x}o'])} : i1")

    def position(r: str, _: list[str]) -> list[str]:
        rest, w = t.split(r, t["w"])
        rest, h = t.split(rest, t["h"])
        image, d = t.split(rest, t["d"])
        target = t.mul(t.add(t.mul(t["first"], t["d"], t["h"], t["w"]), r), t["c"])
        dp, hp, wp = t.add(d, t["pd"]), t.add(h, t["ph"]), t.add(w, t["pw"])

        def chunk(c: str, _: list[str]) -> list[str]:
            mask = t.mask(t.sub(t["cg"], c))

            def tap_plane(kd: str, sums: list[str]) -> list[str]:
                do, plane_ok = reader(dp, kd, "d")
                plane = t.mul(t.add(t.mul(image, t["do"]), do), t["ho"])

                def tap_row(kh: str, sums: list[str]) -> list[str]:
                    ho, fits = reader(hp, kh, "h")
                    row_ok = t(f"arith.andi {plane_ok}, {fits} : i1")
                    line, index_row = (
                        t.mul(t.add(plane, ho), t["wo"]),
                        t.add(t.mul(kd, t["kh"]), kh),
                    )

                    def tap(kw: str, sums: list[str]) -> list[str]:
                        wo, fits = reader(wp, kw, "w")
                        ok = t(f"arith.andi {row_ok}, {fits} : i1")
                        row = t.add(line, wo)
                        index = t.add(t.mul(index_row, t["kw"]), kw)
                        if strided:
                            at = t.add(t.mul(row, width), index, t.mul(c, taps))
                            value = t.load(t["rows"], at, t.both(mask, ok), taps)
                        else:
                            at = t.add(t.mul(row, width), t.mul(index, t["cg"]), c)
                            value = t.load(t["rows"], at, t.both(mask, ok))
                        return [t.plus(sums[0], value)]

                    return t.accumulate(0, t["kw"], sums, tap)

                return t.accumulate(0, t["kh"], sums, tap_row)

            (total,) = t.accumulate(0, t["kd"], [t.zero()], tap_plane)
            t.store(total, t["x"], t.add(target, c), mask)
            return []

        t.loop(0, t["cg"], LANES, [], chunk)
        return []

    t.loop(low, high, 1, [], position)
    return t
