"""One order for the stores of a kernel, so that kernels that do the same in another order share their code.

Fusion yields results in the order in which the program makes them, which differs between equal layers. Stores are put
in the order of what they compute, told by a checksum that sizes have no part in; nodes and loads follow in the order in
which the stores need them.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from .description import Access, Kernel, Node


def canonical(k: Kernel) -> Kernel:
    """The same kernel with its stores in the order of what they compute; stores that are told apart by numbers alone
    stay as they are. A store's operand says which result it is, as before."""
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
    """How an access goes through memory, without sizes."""
    strides = "".join("n" if s not in (0, 1) else str(s) for s in access.strides)
    return f"{access.dtype} {strides} {access.offset}"


def _marks(k: Kernel) -> list[int]:
    """A checksum of what each node computes. (Python's own hashes of texts differ from process to process.)"""
    marks: list[int] = []
    for node in k.nodes:
        what = _walk(k.loads[node.slot]) if node.op == "load" else ""
        text = f"{node.op} {node.dtype} {what} {[marks[a] for a in node.args]}"
        marks.append(crc32(text.encode()))
    return marks


def _needed(k: Kernel, roots: list[int]) -> list[int]:
    """The nodes that some need, each behind its operands."""
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
