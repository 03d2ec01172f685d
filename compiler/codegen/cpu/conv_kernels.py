"""Kernels for convolutions on channels-last f32 data: patches for GEMM, and depthwise directly.

A convolution with groups of more than one channel is a matrix product of patches: `pack_patches` copies windows into
rows (zeros beyond the border), `add_patches` is its transpose. A depthwise one is memory-bound, so it is computed
where the data lies. All sizes are words, so one function serves every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .template import LANES, Template

#: words of every kernel here after its pointers: batch, input, output and kernel sizes, then geometry
GEOMETRY = ("n", "h", "w", "c", "ho", "wo", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")


def _pack(strided: bool) -> Template:
    """Rows `first`… of the patch matrix: row (n, ho, wo), column (kh, kw, c), or (c, kh, kw) if `strided`.

    Words: x, rows (target); first, count: output positions; cg: channels taken, of c in memory.
    """
    t = Template(("x", "rows", "first", "count", "cg", *GEOMETRY), ("x", "rows"))
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


def _unpack(strided: bool) -> Template:
    """The transpose of `_pack`: each input position is the sum of its entries in the patch matrix.

    Words: x (target), rows; first: the first image; count: input positions of these images.
    """
    t = Template(("x", "rows", "first", "count", "cg", *GEOMETRY), ("x", "rows"))
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
                    ok = t(
                        f"arith.andi {t(f'arith.andi {row_ok}, {fits} : i1')}, {t.within(wo, t['wo'])} : i1"
                    )
                    row = t.add(t.mul(t.add(t.mul(image, t["ho"]), ho), t["wo"]), wo)
                    index = t.add(t.mul(kh, t["kw"]), kw)
                    if strided:
                        at = t.add(t.mul(row, width), index, t.mul(c, taps))
                        value = t.load(t["rows"], at, t.both(mask, ok), taps)
                    else:
                        at = t.add(t.mul(row, width), t.mul(index, t["cg"]), c)
                        value = t.load(t["rows"], at, t.both(mask, ok))
                    return [t.plus(sums[0], value)]

                return t.loop(0, t["kw"], 1, sums, tap)

            (total,) = t.loop(0, t["kh"], 1, [t.zero()], tap_row)
            t.store(total, t["x"], t.add(target, c), mask)
            return []

        t.loop(0, t["cg"], LANES, [], chunk)
        return []

    t.loop(low, high, 1, [], position)
    return t


def _channel_tiles(t: Template, width: int, body: Callable[[str, int, str | None], None]) -> None:
    """Cover the channels: whole tiles of `width` vectors, then masked single vectors."""
    tile = width * LANES
    whole = t.sub(t["c"], t.binary("remui", t["c"], t.i64(tile)))

    def unrolled(c: str, _: list[str]) -> list[str]:
        body(c, width, None)
        return []

    def single(c: str, _: list[str]) -> list[str]:
        body(c, 1, t.mask(t.sub(t["c"], c)))
        return []

    t.loop(0, whole, tile, [], unrolled)
    t.loop(whole, t["c"], LANES, [], single)


def _depthwise() -> Template:
    """y[n, ho, wo, c] = sum over (kh, kw) of x[n, ho sh - ph + kh dh, …, c] k[kh, kw, c]. Words: x, k, y (target)."""
    t = Template(("x", "k", "y", *GEOMETRY), ("x", "k", "y"))
    low, high = t.share(t.mul(t["n"], t["ho"]))

    def row(r: str, _: list[str]) -> list[str]:
        n, ho = t.split(r, t["ho"])
        h0 = t.sub(t.mul(ho, t["sh"]), t["ph"])
        kh_low, kh_high = _taps_inside(t, h0, "h", "kh", "dh")

        def column(wo: str, _: list[str]) -> list[str]:
            w0 = t.sub(t.mul(wo, t["sw"]), t["pw"])
            kw_low, kw_high = _taps_inside(t, w0, "w", "kw", "dw")
            target = t.mul(t.add(t.mul(r, t["wo"]), wo), t["c"])

            def tile(c: str, width: int, mask: str | None) -> None:
                def tap_row(kh: str, sums: list[str]) -> list[str]:
                    line = t.mul(t.add(t.mul(n, t["h"]), h0, t.mul(kh, t["dh"])), t["w"])

                    def tap(kw: str, sums: list[str]) -> list[str]:
                        at = t.add(t.mul(t.add(line, w0, t.mul(kw, t["dw"])), t["c"]), c)
                        weight = t.add(t.mul(t.add(t.mul(kh, t["kw"]), kw), t["c"]), c)
                        return [
                            t.fma(
                                t.load(t["x"], t.add(at, u * LANES), mask),
                                t.load(t["k"], t.add(weight, u * LANES), mask),
                                s,
                            )
                            for u, s in enumerate(sums)
                        ]

                    return t.loop(kw_low, kw_high, 1, sums, tap)

                sums = t.loop(kh_low, kh_high, 1, [t.zero()] * width, tap_row)
                for u, s in enumerate(sums):
                    t.store(s, t["y"], t.add(target, c, u * LANES), mask)

            _channel_tiles(t, 4, tile)
            return []

        t.loop(0, t["wo"], 1, [], column)
        return []

    t.loop(low, high, 1, [], row)
    return t


def _taps_inside(t: Template, start: str, size: str, taps: str, dilation: str) -> tuple[str, str]:
    """The taps k with 0 <= start + k dilation < size."""
    zero = t.i64(0)
    low = t.binary("ceildivsi", t.at_least(t.sub(zero, start), 0), t[dilation])
    high = t.at_most(
        t.binary("ceildivsi", t.at_least(t.sub(t[size], start), 0), t[dilation]), t[taps]
    )
    return low, t.at_least(high, low)


def _depthwise_input() -> Template:
    """x[n, h, w, c] = sum over outputs that read it of y k; dilation 1. Words: x (target), k, y."""
    t = Template(("x", "k", "y", *GEOMETRY), ("x", "k", "y"))
    low, high = t.share(t.mul(t["n"], t["h"]))

    def readers(position: str, taps: str, stride: str, outputs: str) -> tuple[str, str]:
        """The outputs o with 0 <= position - o stride < taps."""
        first = t.at_least(t.binary("ceildivsi", t.sub(t.add(position, 1), t[taps]), t[stride]), 0)
        last = t.at_most(t.add(t.binary("floordivsi", position, t[stride]), 1), t[outputs])
        return first, t.at_least(last, first)

    def row(r: str, _: list[str]) -> list[str]:
        n, h = t.split(r, t["h"])
        hp = t.add(h, t["ph"])
        ho_low, ho_high = readers(hp, "kh", "sh", "ho")

        def column(w: str, _: list[str]) -> list[str]:
            wp = t.add(w, t["pw"])
            wo_low, wo_high = readers(wp, "kw", "sw", "wo")
            target = t.mul(t.add(t.mul(r, t["w"]), w), t["c"])

            def tile(c: str, width: int, mask: str | None) -> None:
                def out_row(ho: str, sums: list[str]) -> list[str]:
                    line = t.mul(t.add(t.mul(n, t["ho"]), ho), t["wo"])
                    kh = t.mul(t.sub(hp, t.mul(ho, t["sh"])), t["kw"])

                    def out(wo: str, sums: list[str]) -> list[str]:
                        at = t.add(t.mul(t.add(line, wo), t["c"]), c)
                        weight = t.add(t.mul(t.add(kh, t.sub(wp, t.mul(wo, t["sw"]))), t["c"]), c)
                        return [
                            t.fma(
                                t.load(t["y"], t.add(at, u * LANES), mask),
                                t.load(t["k"], t.add(weight, u * LANES), mask),
                                s,
                            )
                            for u, s in enumerate(sums)
                        ]

                    return t.loop(wo_low, wo_high, 1, sums, out)

                sums = t.loop(ho_low, ho_high, 1, [t.zero()] * width, out_row)
                for u, s in enumerate(sums):
                    t.store(s, t["x"], t.add(target, c, u * LANES), mask)

            _channel_tiles(t, 4, tile)
            return []

        t.loop(0, t["w"], 1, [], column)
        return []

    t.loop(low, high, 1, [], row)
    return t


def _depthwise_weight() -> Template:
    """k[kh, kw, c] = sum over (n, ho, wo) of y x. Threads share the batch; `partial` holds one k for each thread.

    Words: x, y, k (target), partial.
    """
    t = Template(("x", "y", "k", "partial", *GEOMETRY), ("x", "y", "k", "partial"))
    low, high = t.share(t["n"])
    tid, count = t.thread_number("thread_num"), t.thread_number("num_threads")
    taps = t.mul(t["kh"], t["kw"])
    size = t.mul(taps, t["c"])
    mine = t.mul(tid, size)

    def clear(c: str, _: list[str]) -> list[str]:
        t.store(t.zero(), t["partial"], t.add(mine, c), t.mask(t.sub(size, c)))
        return []

    t.loop(0, size, LANES, [], clear)

    def outputs(shift: str, stride: str, inputs: str, total: str) -> tuple[str, str]:
        """The outputs o with 0 <= o stride + shift < inputs."""
        first = t.binary("ceildivsi", t.at_least(t.sub(t.i64(0), shift), 0), t[stride])
        last = t.binary("ceildivsi", t.at_least(t.sub(t[inputs], shift), 0), t[stride])
        return t.at_most(first, t[total]), t.at_most(last, t[total])

    def image(n: str, _: list[str]) -> list[str]:
        def tap(k: str, _: list[str]) -> list[str]:
            kh, kw = t.split(k, t["kw"])
            sh, sw = t.sub(t.mul(kh, t["dh"]), t["ph"]), t.sub(t.mul(kw, t["dw"]), t["pw"])
            ho_low, ho_high = outputs(sh, "sh", "h", "ho")
            wo_low, wo_high = outputs(sw, "sw", "w", "wo")

            def tile(c: str, width: int, mask: str | None) -> None:
                cell = t.add(mine, t.mul(k, t["c"]), c)

                def out_row(ho: str, sums: list[str]) -> list[str]:
                    y_line = t.mul(t.add(t.mul(n, t["ho"]), ho), t["wo"])
                    x_line = t.add(
                        t.mul(t.add(t.mul(n, t["h"]), t.mul(ho, t["sh"]), sh), t["w"]), sw
                    )

                    def out(wo: str, sums: list[str]) -> list[str]:
                        y = t.add(t.mul(t.add(y_line, wo), t["c"]), c)
                        x = t.add(t.mul(t.add(x_line, t.mul(wo, t["sw"])), t["c"]), c)
                        return [
                            t.fma(
                                t.load(t["y"], t.add(y, u * LANES), mask),
                                t.load(t["x"], t.add(x, u * LANES), mask),
                                s,
                            )
                            for u, s in enumerate(sums)
                        ]

                    return t.loop(wo_low, wo_high, 1, sums, out)

                old = [t.load(t["partial"], t.add(cell, u * LANES), mask) for u in range(width)]
                for u, s in enumerate(t.loop(ho_low, ho_high, 1, old, out_row)):
                    t.store(s, t["partial"], t.add(cell, u * LANES), mask)

            _channel_tiles(t, 4, tile)
            return []

        t.loop(0, taps, 1, [], tap)
        return []

    t.loop(low, high, 1, [], image)
    t.barrier()
    start, end = t.share(t.binary("ceildivsi", size, t.i64(LANES)))

    def combine(block: str, _: list[str]) -> list[str]:
        at = t.mul(block, LANES)
        mask = t.mask(t.sub(size, at))

        def add(thread: str, sums: list[str]) -> list[str]:
            return [t.plus(sums[0], t.load(t["partial"], t.add(t.mul(thread, size), at), mask))]

        (total,) = t.loop(0, count, 1, [t.zero()], add)
        t.store(total, t["k"], at, mask)
        return []

    t.loop(start, end, 1, [], combine)
    return t


_MAKERS: dict[str, Callable[[], Template]] = {
    "pack_patches": lambda: _pack(False),
    "pack_patches_channel_major": lambda: _pack(True),
    "add_patches": lambda: _unpack(False),
    "add_patches_channel_major": lambda: _unpack(True),
    "depthwise": _depthwise,
    "depthwise_input_grad": _depthwise_input,
    "depthwise_weight_grad": _depthwise_weight,
}


@cache
def kernel(name: str) -> tuple[str, frozenset[str], tuple[str, ...]]:
    """A convolution kernel: its text, what it calls, and its words' names in order."""
    t = _MAKERS[name]()
    return t.function(name), frozenset(t.externals), t.word_names
