"""Pointwise kernels that share a launch: which may, how many, in which block.

A merged kernel finds its tensor by its program's number, and takes the addresses and sizes of all its tensors as
parameters. So what shares a launch has one text, and parameters that fit into a launch:

    exp of 4,096, of 4,097 … elements    →    one text; addresses and sizes differ, so each adds three parameters
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from gflow.compiler.targets import Device
from gflow.dialects.program import Place
from gflow.dialects.records import record
from gflow.dialects.types import NO_KERNELS, TensorType

from ....constants import is_parameter, signed
from ....description import Access, Kernel
from ....registers import register_dtype
from ....sizes import cdiv
from ...choice import WARP, Choice
from .block_sizes import busy
from .tiling import Tiling, tiling_of

#: elements of a program, at least and at most; its warps
_BLOCK, _MOST_BLOCK, _WARPS = 1024, 4096, 4
#: an op of more elements gains nothing by sharing a launch, and has a kernel made for its size
_MOST = 1 << 26


class Parameter(NamedTuple):
    """What a launch passes: its type, and its value."""

    kind: str
    value: int | float | Place


@record
class Member:
    """A kernel of a launch: its text, as what the text follows from, and what a launch of it alone would pass."""

    k: Kernel
    text: Hashable
    parameters: tuple[Parameter, ...]


def is_flat(k: Kernel) -> bool:
    """Whether a kernel can be one of several: elementwise, over one dimension or one position."""
    if len(k.sizes) > 1 or any(n.op == "reduce" for n in k.nodes):
        return False
    if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
        return False
    return tiling_of(k) in (Tiling((), 0, ()), Tiling((), -1, ()))


def member_of(k: Kernel, loads: Sequence[Place], stores: Sequence[Place]) -> Member | None:
    """A kernel as one of a launch; None if it had better run alone. Places are by operand and result number."""
    if not is_flat(k) or k.numel > _MOST:
        return None
    found = _Follows()
    if k.sizes:
        found.parameters.append(Parameter("i32", k.numel))
    loaded = [found.access(a, ("load", a.operand, a.dtype), loads[a.operand]) for a in k.loads]
    index = [found.stride(strides) for strides in k.indices]
    stored = [found.access(a, ("store", n), stores[a.operand]) for n, a in enumerate(k.stores)]
    nodes = [
        (n.op, n.dtype, n.args, n.slot, found.attributes(n.op, n.dtype, n.attrs)) for n in k.nodes
    ]
    text = (len(k.sizes), tuple(nodes), tuple(loaded), tuple(index), tuple(stored))
    return Member(k, text, tuple(found.parameters))


class _Follows:
    """What a kernel's text follows from, and the parameters that it has; equal ones are one, numbered as they come."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.numbers: dict[Hashable, int] = {}

    def once(self, key: Hashable, kind: str, value: int | float | Place) -> int:
        """The number of the parameter for `key`."""
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.parameters.append(Parameter(kind, value))
        return self.numbers[key]

    def stride(self, strides: tuple[int, ...]) -> Hashable:
        """A walk: 0 and 1 stand in the text, and the factor of a multiple of 8 or 4 that is none of 16."""
        if not strides or strides[0] in (0, 1):
            return strides
        unit = next((u for u in (8, 4) if strides[0] % u == 0), 1) if strides[0] % 16 else 1
        return unit, self.once(("stride", strides), "i32", strides[0] // unit)

    def access(self, a: Access, key: Hashable, place: Place) -> Hashable:
        return (
            self.once(key, f"*{a.dtype}", place),
            self.stride(a.strides),
            a.offset,
            a.dtype,
            a.node,
        )

    def attributes(self, op: str, dtype: str, attrs: dict[str, object]) -> Hashable:
        """A node's attributes, of which a constant's number and a stream's may be parameters."""
        value = attrs.get("value")
        if op == "const" and is_parameter(value, dtype):
            return self.once(
                ("const", repr(value), dtype), register_dtype(dtype), float(str(value))
            )
        if op == "random":
            stream = signed(int(str(attrs["stream"])))
            return attrs["kind"], self.once(("stream", stream), "i32", stream)
        return tuple(sorted((name, repr(v)) for name, v in attrs.items()))


def parts(group: Sequence[Member], device: Device) -> Iterator[slice]:
    """The launches that members of one text take: runs whose parameters fit, of one length but for the last."""
    first = group[0].parameters
    columns = [
        (p.kind, *(m.parameters[n].value for m in group)) for n, p in enumerate(first)
    ]  # those that are equal in all members are passed once
    varying = sum(len(set(column[1:])) > 1 for column in set(columns))
    most = max(1, (device.parameters - 8 * (len(first) + 2)) // (4 + 8 * varying))
    length = cdiv(len(group), cdiv(len(group), most))
    for start in range(0, len(group), length):
        yield slice(start, min(start + length, len(group)))


def choose_merged(group: Sequence[Member], device: Device) -> Choice:
    """How a launch runs: in blocks with loads enough for each thread, if there are elements enough."""
    k = group[0].k
    if not k.sizes:
        return Choice("merged", warps=1)
    moved = sum(TensorType((), a.dtype).itemsize for a in k.loads if any(a.strides))
    total = sum(m.k.numel for m in group)
    block, threads = _BLOCK, WARP * _WARPS
    while (
        block < _MOST_BLOCK
        and 2 * block * moved <= device.in_flight * threads
        and total >= 2 * block * busy(device)
    ):
        block *= 2
    return Choice("merged", block=(block,), warps=_WARPS)
