"""A canonical order of a kernel's stores, so that kernels that differ only in that order share their code.

A fused region yields its results in program order, which differs between otherwise equal layers. Stores are sorted by
a checksum of the expression that they store; sizes do not enter the checksum. Nodes and loads then follow in the order
in which the stores use them.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from .description import Access, Kernel, Node


def canonical(k: Kernel) -> Kernel:
    """The kernel with its stores, nodes and loads in canonical order.

    Stores whose checksums are equal keep their order. `operand` of a store is still the number of the op's result.
    """
    if len(k.stores) < 2:
        return k
    marks = _marks(k)

    def key(store: Access) -> tuple[int, str]:
        return marks[store.node], _walk(store)

    stores = sorted(k.stores, key=key)
    if all(a is b for a, b in zip(stores, k.stores)):
        return k
    order = _needed(k, [s.node for s in stores])
    place = {old: new for new, old in enumerate(order)}
    loads = list(dict.fromkeys(k.nodes[i].slot for i in order if k.nodes[i].op == "load"))
    indices = list(dict.fromkeys(k.nodes[i].slot for i in order if k.nodes[i].op == "index"))
    slots = {"load": loads, "index": indices}

    def moved(node: Node) -> Node:
        slot = slots[node.op].index(node.slot) if node.op in slots else node.slot
        args = tuple([place[a] for a in node.args])
        return Node(node.op, node.dtype, args, node.attrs, slot, node.depth, node.dims)

    return replace(
        k,
        nodes=[moved(k.nodes[i]) for i in order],
        loads=[k.loads[i] for i in loads],
        indices=[k.indices[i] for i in indices],
        stores=[replace(s, node=place[s.node]) for s in stores],
    )


def _walk(access: Access) -> str:
    """An access pattern without sizes: element type, which strides are 0, 1 or other, and the offset."""
    strides = "".join("n" if s not in (0, 1) else str(s) for s in access.strides)
    return f"{access.dtype} {strides} {access.offset}"


def _marks(k: Kernel) -> list[int]:
    """A checksum of each node's expression. (Python's string hashes differ between processes, so CRC32 is used.)"""
    marks: list[int] = []
    for node in k.nodes:
        what = _walk(k.loads[node.slot]) if node.op == "load" else ""
        text = f"{node.op} {node.dtype} {what} {[marks[a] for a in node.args]}"
        marks.append(crc32(text.encode()))
    return marks


def _needed(k: Kernel, roots: list[int]) -> list[int]:
    """The nodes that `roots` depend on, in topological order: operands before users."""
    found: dict[int, None] = {}
    stack = roots[::-1]
    while stack:
        i = stack[-1]
        missing = [a for a in k.nodes[i].args if a not in found]
        if missing and i not in found:
            stack += missing[::-1]
        else:
            found[stack.pop()] = None
    return list(found)
