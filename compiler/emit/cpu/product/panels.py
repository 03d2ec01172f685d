"""Packing: copies of parts of A and B in the order in which a register tile reads them.

A panel holds the rows of A (or the columns of B) of one tile, as `panel[k][lane]`. The contiguous dimension of an
operand is either "k", the reduction dimension (blocks of 16 × 16, or two of 8 × 16, are then transposed in registers),
or "lanes", the rows of A or columns of B (their elements are then copied).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..language.transpose import transposed
from .function import ITEM, LANES, Function

_WORDS = f"vector<{LANES}xi32>"
_HALF = f"vector<{LANES // 2}xi32>"

#: the arguments: addresses of the matrix and of the panel, strides in bytes between lanes and along K, the number of
#: lanes and of K, and the bytes to the next part to pack, which is prefetched
ARGUMENTS = "%from: !llvm.ptr, %to: !llvm.ptr, %lane: i64, %k_stride: i64, %lanes: i64, %k_size: i64, %ahead: i64"
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64"


#: the arguments of patches: sizes of input, output and kernel; stride, padding and dilation
WINDOWS = ("h", "w", "c", "ho", "wo", "kw", "sh", "sw", "ph", "pw", "dh", "dw")


@cache
def pack(name: str, width: int, order: str) -> str:
    """The text of the function `name` that packs a panel of `width` lanes of an operand whose `order` is contiguous.

    Lanes beyond the operand are zeros or repeat the last lane, and K is padded with zeros to a multiple of 32. With a
    width of less than 16 the function writes up to 15 elements beyond the panel; larger widths are multiples of 16.
    """
    e = Function()
    if order == "k" and width > LANES:  # a loop over vectors of lanes keeps the code short
        e.repeat(0, e.i64(width), LANES, lambda first: _transposed(e, first, LANES, width))
    elif order == "k":
        _transposed(e, e.i64(0), width, width)
    else:
        _copied(e, width)
    return e.function(name, ARGUMENTS)


def _copied(e: Function, width: int) -> None:
    firsts = range(0, width, LANES)
    masks = [
        e.first_lanes(e.at_most(e.at_least(e.sub("%lanes", g), 0), LANES), LANES) for g in firsts
    ]

    def along(k: str) -> None:
        source = e.at("%from", e.mul(k, "%k_stride"))
        target = e.at("%to", e.mul(k, width * ITEM))
        for first in firsts:  # rows are far apart, so the hardware prefetcher does not follow them
            e.prefetch(e.at(source, e.add("%ahead", first * ITEM)))
        for first, mask in zip(firsts, masks):
            e.store(e.load(e.at(source, first * ITEM), mask), e.at(target, first * ITEM))

    e.repeat(0, "%k_size", 1, along)


def _transposed(e: Function, first: str, count: int, width: int) -> None:
    """Pack `count` lanes of a panel from lane `first` on, 16 of K at a time, by transposition."""
    last = e.sub("%lanes", 1)
    rows = [
        e.at("%from", e.mul(e.at_most(e.add(first, i) if i else first, last), "%lane"))
        for i in range(count)
    ]
    panel = e.at("%to", e.mul(first, ITEM))

    def part(begin: str) -> list[str]:
        left = e.at_least(e.at_most(e.sub("%k_size", begin), LANES), 0)
        mask, offset = e.first_lanes(left, LANES), e.mul(begin, ITEM)
        return [e.read(e.at(row, offset), _WORDS, ITEM, mask) for row in rows]

    def block(k: str) -> None:
        _turn(e, k, panel, count, width, part)

    e.repeat(0, "%k_size", _at_once(count), block)


def _at_once(count: int) -> int:
    """The part of K that is transposed at once for `count` lanes."""
    return 2 * LANES if count <= LANES // 2 else LANES


def _turn(
    e: Function, k: str, panel: str, count: int, width: int, part: Callable[[str], list[str]]
) -> None:
    """Transpose `_at_once(count)` of K from position `k` on into a panel.

    part: loads 16 elements of each lane from a position on.
    """
    halves, found = _at_once(count) // LANES, []
    for half in range(halves):
        given = part(e.add(k, half * LANES))
        found += given + [given[-1]] * (LANES // halves - count)
    target = e.at(panel, e.mul(k, width * ITEM))
    columns = transposed(e, found)
    for half in range(halves):  # in order: with few lanes, each store overlaps the next one
        for i, column in enumerate(columns):
            at = e.at(target, (half * LANES + i) * width * ITEM)
            if halves == 2:
                e.write(_half(e, column, half), at, _HALF, ITEM, None)
            else:
                e.write(column, at, _WORDS, ITEM, None)


@cache
def gather(name: str, width: int) -> str:
    """The text of the function `name` that packs a panel of `width` patches of a channels-last activation.

    The patches are gathered from the activation; no im2col matrix is stored. The arguments are those of `pack`, except
    `%lane`: the number of the first output position; `%k_stride`: the first position of K = (kh, kw, c), a multiple of
    32, as the channels are; `%ahead`: the address of the arguments `WINDOWS`.
    """
    e = Function()
    words = e("llvm.inttoptr %ahead : i64 to !llvm.ptr")
    w = {n: e(f"llvm.load {e.at(words, 8 * i)} : !llvm.ptr -> i64") for i, n in enumerate(WINDOWS)}
    last, tops, lefts, origins = e.sub("%lanes", 1), [], [], []
    for i in range(width):
        rest, wo = e.split(e.add("%lane", e.at_most(e.i64(i), last)), w["wo"])
        n, ho = e.split(rest, w["ho"])
        top, left = e.sub(e.mul(ho, w["sh"]), w["ph"]), e.sub(e.mul(wo, w["sw"]), w["pw"])
        row = e.add(e.mul(e.add(e.mul(n, w["h"]), top), w["w"]), left)
        origins.append(e.at("%from", e.mul(row, w["c"], ITEM)))
        tops.append(top)
        lefts.append(left)
    tap, channel = e.split("%k_stride", w["c"])
    begin = [*e.split(tap, w["kw"]), channel]

    def block(k: str, at: list[str]) -> list[str]:
        kh, kw, c = at
        down, right = e.mul(kh, w["dh"]), e.mul(kw, w["dw"])
        offset = e.mul(e.add(e.mul(e.add(e.mul(down, w["w"]), right), w["c"]), c), ITEM)
        masks = []
        for top, left in zip(tops, lefts):
            inside = [e.within(e.add(top, down), w["h"]), e.within(e.add(left, right), w["w"])]
            both = e(f"arith.andi {inside[0]}, {inside[1]} : i1")
            masks.append(e(f"vector.broadcast {both} : i1 to vector<{LANES}xi1>"))

        def part(position: str) -> list[str]:
            there = e.add(offset, e.mul(e.sub(position, k), ITEM))
            return [
                e.read(e.at(origin, there), _WORDS, ITEM, mask)
                for origin, mask in zip(origins, masks)
            ]

        _turn(e, k, "%to", width, width, part)
        c = e.add(c, _at_once(width))
        new_tap = e.compare("sge", c, w["c"])
        kw = e.choose(new_tap, e.add(kw, 1), kw)
        new_row = e.compare("sge", kw, w["kw"])
        return [
            e.choose(new_row, e.add(kh, 1), kh), e.choose(new_row, 0, kw), e.choose(new_tap, 0, c),
        ]  # fmt: skip

    e.loop(0, "%k_size", _at_once(width), [(x, "i64") for x in begin], block)
    return e.function(name, ARGUMENTS)


def _half(e: Function, vector: str, number: int) -> str:
    first = number * LANES // 2
    return e(
        f"vector.extract_strided_slice {vector} {{offsets = [{first}], sizes = [{LANES // 2}], strides = [1]}}"
        f" : {_WORDS} to {_HALF}"
    )
