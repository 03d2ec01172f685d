"""The kernels of depthwise convolutions of channels-last float32 data: one output channel for each input channel.

They are memory-bound, so nothing is packed. Vectors run along channels.
"""

from __future__ import annotations

from collections.abc import Callable

from gflow.compiler.kernel.blocks import LANES

from ...language.template import Template
from ..tile import FINISH_TYPES
from .patches import SIZES

#: positions and channels of a tile
POSITIONS, WIDTH = 8, 4 * LANES


def _channel_tiles(t: Template, width: int, body: Callable[[str, int, str | None], None]) -> None:
    """Write loops over the channels: whole tiles of `width` vectors, then masked single vectors."""
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


def _products(
    t: Template, a: tuple[str, str], b: tuple[str, str], sums: list[str], mask: str | None
) -> list[str]:
    """The sums plus one product each. a, b: for each factor, the argument that is its address, and its offset."""
    return [
        t.fma(
            t.load(t[a[0]], t.add(a[1], u * LANES), mask),
            t.load(t[b[0]], t.add(b[1], u * LANES), mask),
            s,
        )
        for u, s in enumerate(sums)
    ]


def _store(t: Template, vectors: list[str], word: str, start: str, mask: str | None) -> None:
    """Store consecutive vectors, from element `start` of the tensor `word` on."""
    for u, vector in enumerate(vectors):
        t.store(vector, t[word], t.add(start, u * LANES), mask)


def forward(tiled: bool) -> Template:
    """y[n, ho, wo, c] = sum over (kh, kw) of x[n, ho sh - ph + kh dh, …, c] k[kh, kw, c].

    Arguments: x, k, y (target). tiled: instead of being stored to y, tiles of `POSITIONS` × `WIDTH` channels are passed
    to the epilogue's function `finish`, whose arguments follow these.
    """
    words = ("x", "k", "finish" if tiled else "y", *SIZES)
    t = Template(words, ("x", "k", "y"))
    held, finish, behind = "", "", ""
    if tiled:
        held = t(
            f"llvm.alloca {t.i64(POSITIONS * WIDTH)} x f32 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
        )
        finish = t(f"llvm.inttoptr {t['finish']} : i64 to !llvm.ptr")
        behind = t(f"llvm.getelementptr %w[{8 * len(words)}] : (!llvm.ptr) -> !llvm.ptr, i8")
    bounds = t(f"llvm.alloca {t.i64(2 * POSITIONS)} x i64 : (i64) -> !llvm.ptr")
    low, high = t.share(t.mul(t["n"], t["ho"]))

    def bound(number: str) -> str:
        return t(f"llvm.getelementptr {bounds}[{number}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")

    def row(r: str, _: list[str]) -> list[str]:
        n, ho = t.split(r, t["ho"])
        h0 = t.sub(t.mul(ho, t["sh"]), t["ph"])
        kh_low, kh_high = _taps_inside(t, h0, "h", "kh", "dh")

        def block(begin: str, _: list[str]) -> list[str]:
            count = t.at_most(t.sub(t["wo"], begin), POSITIONS)
            first = t.add(t.mul(r, t["wo"]), begin)

            def start(p: str) -> str:
                return t.sub(t.mul(t.add(begin, p), t["sw"]), t["pw"])

            def inside(p: str, _: list[str]) -> list[str]:
                for i, x in enumerate(_taps_inside(t, start(p), "w", "kw", "dw")):
                    t.line(f"llvm.store {x}, {bound(t.add(t.mul(p, 2), i))} : i64, !llvm.ptr")
                return []

            def tile(c: str, width: int, mask: str | None) -> None:
                def position(p: str, _: list[str]) -> list[str]:
                    w0 = start(p)
                    kw_low, kw_high = (
                        t(f"llvm.load {bound(t.add(t.mul(p, 2), i))} : !llvm.ptr -> i64")
                        for i in (0, 1)
                    )

                    def tap_row(kh: str, sums: list[str]) -> list[str]:
                        line = t.mul(t.add(t.mul(n, t["h"]), h0, t.mul(kh, t["dh"])), t["w"])

                        def tap(kw: str, sums: list[str]) -> list[str]:
                            at = t.add(t.mul(t.add(line, w0, t.mul(kw, t["dw"])), t["c"]), c)
                            weight = t.add(t.mul(t.add(t.mul(kh, t["kw"]), kw), t["c"]), c)
                            return _products(t, ("x", at), ("k", weight), sums, mask)

                        return t.accumulate(kw_low, kw_high, sums, tap)

                    sums = t.accumulate(kh_low, kh_high, [t.zero()] * width, tap_row)
                    if not tiled:
                        _store(t, sums, "y", t.add(t.mul(t.add(first, p), t["c"]), c), mask)
                    for u, vector in enumerate(sums if tiled else ()):
                        t.store(vector, held, t.add(t.mul(p, WIDTH), u * LANES))
                    return []

                t.loop(0, count, 1, [], position)
                if tiled:
                    columns = t.at_most(t.sub(t["c"], c), width * LANES)
                    arguments = f"{behind}, {held}, {first}, {c}, {count}, {columns}"
                    t.line(f"llvm.call {finish}({arguments}) : !llvm.ptr, ({FINISH_TYPES}) -> ()")

            t.loop(0, count, 1, [], inside)
            _channel_tiles(t, WIDTH // LANES, tile)
            return []

        t.loop(0, t["wo"], POSITIONS, [], block)
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


def input_grad() -> Template:
    """x[n, h, w, c] = sum of y k over the outputs that read it. The dilation is 1. Arguments: x (target), k, y."""
    t = Template(("x", "k", "y", *SIZES), ("x", "k", "y"))
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
                        return _products(t, ("y", at), ("k", weight), sums, mask)

                    return t.accumulate(wo_low, wo_high, sums, out)

                sums = t.accumulate(ho_low, ho_high, [t.zero()] * width, out_row)
                _store(t, sums, "x", t.add(target, c), mask)

            _channel_tiles(t, 4, tile)
            return []

        t.loop(0, t["w"], 1, [], column)
        return []

    t.loop(low, high, 1, [], row)
    return t


def weight_grad() -> Template:
    """k[kh, kw, c] = sum over (n, ho, wo) of y x.

    Threads share the batch. Arguments: x, y, k (target), partial (scratch: one k for each thread).
    """
    t = Template(("x", "y", "k", "partial", *SIZES), ("x", "y", "k", "partial"))
    low, high = t.share(t["n"])
    tid, count = t.thread("thread_num"), t.thread("num_threads")
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
                        return _products(t, ("y", y), ("x", x), sums, mask)

                    return t.accumulate(wo_low, wo_high, sums, out)

                old = [t.load(t["partial"], t.add(cell, u * LANES), mask) for u in range(width)]
                _store(t, t.accumulate(ho_low, ho_high, old, out_row), "partial", cell, mask)

            _channel_tiles(t, 4, tile)
            return []

        t.loop(0, taps, 1, [], tap)
        return []

    t.loop(low, high, 1, [], image)
    t.barrier()
    start, end = t.share(t.granules(size, LANES))

    def combine(block: str, _: list[str]) -> list[str]:
        at = t.mul(block, LANES)
        mask = t.mask(t.sub(size, at))

        def add(thread: str, sums: list[str]) -> list[str]:
            return [t.plus(sums[0], t.load(t["partial"], t.add(t.mul(thread, size), at), mask))]

        (total,) = t.accumulate(0, count, [t.zero()], add)
        t.store(total, t["k"], at, mask)
        return []

    t.loop(start, end, 1, [], combine)
    return t
