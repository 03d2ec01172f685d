"""Long reductions that several programs share: partial results in scratch, and a second launch that combines them.

    sum over 1,000,000 rows of 64    →    432 pieces × 64 partial sums    →    64 sums

With several levels of reductions (a variance after a mean), each level has its own launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.compiler.targets import Device
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, row_major_strides

from ....registers import register_dtype
from ....sizes import cdiv
from .block_sizes import configs_of
from .tiling import Tiling

#: the programs for each multiprocessor that a launch should have
_WANTED = 8
#: with so many kept tiles for each multiprocessor, the reduction isn't split
_ENOUGH = 0.75
#: a loop of up to so many tiles isn't split
_STEPS = 8
#: the fewest elements of a piece
_PIECE = 4096
#: with fewer elements, a second launch does not pay
_LEAST = 16384


@record
class Stage:
    """A kernel of a split reduction.

    Attributes:
        k: the kernel.
        loads, stores: addresses by number of operand and result.
        shared: the tiling, if its programs share reductions; None for the other kernels.
        pieces: the numbers of the stores of partial results.
        chunk: the part of the looped axis that each program reduces, in elements.
    """

    k: Kernel
    loads: tuple[Place, ...]
    stores: tuple[Place, ...]
    shared: Tiling | None = None
    pieces: frozenset[int] = frozenset()
    chunk: int = 0


def pieces_of(k: Kernel, t: Tiling, device: Device) -> int:
    """The number of programs that should share each reduction; 1: it isn't split."""
    if not t.axis or k.numel < _LEAST:
        return 1
    tiles = prod(k.sizes[d] for d in t.outer)
    width = configs_of(k, t, device)[0].constants
    across = width["COLS"] if t.loop_rows else 1  # elements of a step across the looped axis
    if t.cols not in k.reduced:
        tiles *= cdiv(k.sizes[t.cols], width["COLS"])
    elif t.rows and t.rows[0] not in k.reduced:
        tiles *= cdiv(prod(k.sizes[d] for d in t.rows), width["ROWS"])
    if tiles >= _ENOUGH * device.multiprocessors:
        return 1
    length = prod(k.sizes[d] for d in _looped(t))
    if length <= _STEPS * _block(k, t, device):
        return 1
    least = max(_block(k, t, device), _PIECE // across)
    return min(cdiv(length, least), max(1, _WANTED * device.multiprocessors // max(1, tiles)))


def _looped(t: Tiling) -> tuple[int, ...]:
    return t.rows if t.axis == "rows" else (t.cols,)


def _chunk(k: Kernel, t: Tiling, pieces: int, device: Device, chosen: TritonConfig | None) -> int:
    """The length of a piece along the looped axis: a multiple of the tile of every configuration."""
    length = prod(k.sizes[d] for d in _looped(t))
    block = _block(k, t, device, chosen)
    return cdiv(cdiv(length, pieces), block) * block


def _block(k: Kernel, t: Tiling, device: Device, chosen: TritonConfig | None = None) -> int:
    """The longest tile along the looped axis, over all configurations."""
    return max(c.constants[t.axis.upper()] for c in configs_of(k, t, device, chosen))


class Scratch:
    """An allocator of an op's scratch. start: the address of the scratch. used: bytes that are allocated."""

    def __init__(self, start: Place) -> None:
        self.start, self.used = start, 0

    def take(self, dtype: str, count: int) -> Place:
        """The address of `count` elements."""
        return self.take_bytes(count * TensorType((), dtype).itemsize)

    def take_bytes(self, size: int) -> Place:
        """The address of `size` bytes, aligned to 64 bytes."""
        begin = self.start.offset + self.used
        self.used += -(-size // 64) * 64
        return Place(self.start.space, self.start.index, begin)


def split(
    space: Scratch,
    k: Kernel,
    t: Tiling,
    count: int,
    loads: tuple[Place, ...],
    stores: tuple[Place, ...],
    device: Device,
    chosen: TritonConfig | None = None,
) -> Iterator[Stage]:
    """The kernels of a region whose first level of reductions is shared by `count` programs.

    A kernel with deeper reductions is returned last, and is to be split in turn.

    Args:
        space: scratch, from which addresses of partial results are taken.
        k: the kernel.
        t: its tiling.
        count: the number of programs that share each reduction.
        loads, stores: addresses by number of operand and result.
        device: the device.
        chosen: the configuration of the first kernel; None: the model's choice.

    Raises:
        AssertionError: a level has no reductions, which is a defect of the kernel's description.
    """
    kept = [d for d in range(len(k.sizes)) if d not in k.reduced]
    shape = tuple(k.sizes[d] for d in kept)
    width = prod(shape)
    dense = _spread(row_major_strides(shape), kept, len(k.sizes))
    first = [i for i, n in enumerate(k.nodes) if n.op == "reduce" and n.depth == 1]
    wide = [n for n, s in enumerate(k.stores) if any(s.strides[d] for d in k.reduced)]
    early = [n for n in wide if k.nodes[k.stores[n].node].depth == 0]
    narrow = [n for n in range(len(k.stores)) if n not in wide]

    # first: partial results, and the stores that depend on no reduction
    partial = [Access(len(stores) + m, _cell(k.nodes[r]), dense, r) for m, r in enumerate(first)]
    part = _subset(k, [*partial, *(k.stores[n] for n in early)])
    chunk = _chunk(part, t, count, device, chosen)
    count = cdiv(prod(k.sizes[d] for d in _looped(t)), chunk)
    places = {r: space.take(_cell(k.nodes[r]), count * width) for r in first}
    yield Stage(
        part, loads, (*stores, *places.values()), t, frozenset(range(len(first))), chunk
    )  # fmt: skip

    # second: combine them; the pieces are an additional dimension, which is reduced
    deepest = all(n.depth <= 1 for n in k.nodes)
    late = [n for n in wide if n not in early]
    if deepest and not late:
        final = _combining(k, first, places, count, width, kept, narrow, {}, loads)
        yield Stage(final.k, final.loads, stores)
        return
    done = {r: space.take(register_dtype(k.nodes[r].dtype), width) for r in first}
    middle = _combining(k, first, places, count, width, kept, [], done, loads)
    yield Stage(middle.k, middle.loads, middle.stores)
    rest, places_ = _after(
        k, first, done, dense, [n for n in range(len(k.stores)) if n not in early], loads
    )
    if not deepest:
        if all(n.op != "reduce" for n in rest.nodes):
            raise AssertionError("a level of reductions is missing")
        yield Stage(rest, places_, stores)
        return
    # full-size stores first: results of the reduced shape may be stored over their operands
    yield Stage(simplify(_subset(rest, [s for s in rest.stores if _spans(s, k)])), places_, stores)
    last = [s for s in rest.stores if not _spans(s, k)]
    if last:
        yield Stage(_narrowed(_subset(rest, last), kept), places_, stores)


def _spans(s: Access, k: Kernel) -> bool:
    return any(s.strides[d] for d in k.reduced)


def _cell(node: Node) -> str:
    """The element type of a partial result."""
    return "i32" if node.dtype == "i1" else register_dtype(node.dtype)


def _spread(strides: Sequence[int], kept: Sequence[int], rank: int) -> tuple[int, ...]:
    out = [0] * rank
    for d, s in zip(kept, strides):
        out[d] = s
    return tuple(out)


def _subset(k: Kernel, stores: Sequence[Access]) -> Kernel:
    """The part of a kernel that these stores depend on, over the same index space."""
    needed: set[int] = set()
    stack = [s.node for s in stores]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack += k.nodes[i].args
    number = {old: new for new, old in enumerate(sorted(needed))}
    slots = sorted({k.nodes[i].slot for i in needed if k.nodes[i].op == "load"})
    walks = sorted({k.nodes[i].slot for i in needed if k.nodes[i].op == "index"})
    nodes = []
    for i in sorted(needed):
        n = k.nodes[i]
        slot = (
            slots.index(n.slot)
            if n.op == "load"
            else walks.index(n.slot)
            if n.op == "index"
            else n.slot
        )
        nodes.append(replace(n, args=tuple(number[a] for a in n.args), slot=slot))
    return Kernel(
        k.sizes, k.reduced, nodes, [k.loads[s] for s in slots], [k.indices[s] for s in walks],
        [replace(s, node=number[s.node]) for s in stores],
    )  # fmt: skip


def _fresh(nodes: Sequence[Node]) -> list[Node]:
    """Nodes with `depth` and `dims` reset."""
    return [replace(n, depth=0, dims=frozenset()) for n in nodes]


def _replaced(
    k: Kernel, with_load: dict[int, Access], wrap: bool
) -> tuple[list[Node], list[Access], dict[int, int]]:
    """A kernel's nodes, with some replaced by loads of stored values (with `wrap`, by reductions of such loads).

    with_load: by node, the load that replaces it. Returns the nodes, the loads, and the new numbers of nodes.
    """
    nodes: list[Node] = []
    loads = list(k.loads)
    number: dict[int, int] = {}
    for i, n in enumerate(k.nodes):
        if i in with_load:
            access = with_load[i]
            loads.append(access)
            nodes.append(Node("load", access.dtype, slot=len(loads) - 1))
            if wrap:
                nodes.append(Node("reduce", n.dtype, (len(nodes) - 1,), n.attrs))
            elif access.dtype != n.dtype:
                nodes.append(Node("convert", n.dtype, (len(nodes) - 1,), {"dtype": n.dtype}))
        elif any(a not in number for a in n.args):
            continue  # only the replaced nodes use it
        else:
            nodes.append(replace(n, args=tuple(number[a] for a in n.args)))
        number[i] = len(nodes) - 1
    return nodes, loads, number


def _combining(
    k: Kernel, first: Sequence[int], places: dict[int, Place], count: int, width: int, kept: Sequence[int],
    narrow: Sequence[int], done: dict[int, Place], loads: tuple[Place, ...],
) -> Stage:  # fmt: skip
    """The kernel that combines partial results, over the index space (pieces, kept dimensions)."""
    rank = len(k.sizes)
    shape = tuple(k.sizes[d] for d in kept)
    dense = _spread(row_major_strides(shape), kept, rank)
    given = {r: Access(len(loads) + m, _cell(k.nodes[r]), dense) for m, r in enumerate(first)}
    nodes, all_loads, number = _replaced(k, given, wrap=True)
    if done:
        stores = [
            Access(m, register_dtype(k.nodes[r].dtype), dense, number[r])
            for m, r in enumerate(first)
        ]
    else:
        stores = [replace(k.stores[n], node=number[k.stores[n].node]) for n in narrow]
    whole = _subset(Kernel(k.sizes, k.reduced, nodes, all_loads, k.indices, stores), stores)

    def onto(strides: tuple[int, ...], piece: int) -> tuple[int, ...]:
        return (piece, *(strides[d] for d in kept))

    partial = {len(loads) + m for m in range(len(first))}
    combined = Kernel(
        (count, *shape),
        frozenset({0}),
        _fresh(whole.nodes),
        [
            replace(a, strides=onto(a.strides, width if a.operand in partial else 0))
            for a in whole.loads
        ],
        [onto(s, 0) for s in whole.indices],
        [replace(a, strides=onto(a.strides, 0)) for a in whole.stores],
    )
    return Stage(simplify(combined), (*loads, *places.values()), tuple(done.values()))


def _after(
    k: Kernel, first: Sequence[int], done: dict[int, Place], dense: tuple[int, ...], left: Sequence[int],
    loads: tuple[Place, ...],
) -> tuple[Kernel, tuple[Place, ...]]:  # fmt: skip
    """The rest of a kernel after its first level of reductions is stored, and the addresses of its loads."""
    given = {
        r: Access(len(loads) + m, register_dtype(k.nodes[r].dtype), dense)
        for m, r in enumerate(first)
    }
    nodes, all_loads, number = _replaced(k, given, wrap=False)
    stores = [replace(k.stores[n], node=number[k.stores[n].node]) for n in left]
    rest = _subset(Kernel(k.sizes, k.reduced, nodes, all_loads, k.indices, stores), stores)
    reduced = k.reduced if any(n.op == "reduce" for n in rest.nodes) else frozenset()
    found = Kernel(k.sizes, reduced, _fresh(rest.nodes), rest.loads, rest.indices, rest.stores)
    return simplify(found) if reduced else found, (*loads, *done.values())


def _narrowed(k: Kernel, kept: Sequence[int]) -> Kernel:
    """A kernel over the kept dimensions only."""

    def onto(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[d] for d in kept)

    narrow = Kernel(
        tuple(k.sizes[d] for d in kept), frozenset(), _fresh(k.nodes),
        [replace(a, strides=onto(a.strides)) for a in k.loads], [onto(s) for s in k.indices],
        [replace(a, strides=onto(a.strides)) for a in k.stores],
    )  # fmt: skip
    return simplify(narrow)
