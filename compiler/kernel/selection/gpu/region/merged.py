"""Horizontal fusion: pointwise kernels that share a launch.

Each program of a merged kernel finds its member by its program id. The addresses and sizes of all members are kernel
arguments. Members must have the same source, and all arguments must fit into a launch:

    exp of 4,096, of 4,097 … elements    →    one source; addresses and sizes differ: three arguments for each member
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

#: the fewest and the most elements of a program; its warps
_BLOCK, _MOST_BLOCK, _WARPS = 1024, 4096, 4
#: the most elements of a member: larger ops do not gain from sharing a launch
_MOST = 1 << 26


class Parameter(NamedTuple):
    """A kernel argument: its type, and its value."""

    kind: str
    value: int | float | Place


@record
class Member:
    """A kernel of a launch.

    Attributes:
        k: the kernel.
        text: a key of its source; members of a launch have equal ones.
        parameters: the arguments that a launch of this kernel alone would have.
    """

    k: Kernel
    text: Hashable
    parameters: tuple[Parameter, ...]


def is_flat(k: Kernel) -> bool:
    """Whether a kernel can be a member: elementwise, over one dimension or one position, without complex numbers."""
    if len(k.sizes) > 1 or any(n.op == "reduce" for n in k.nodes):
        return False
    if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
        return False
    return tiling_of(k) in (Tiling((), 0, ()), Tiling((), -1, ()))


def member_of(k: Kernel, loads: Sequence[Place], stores: Sequence[Place]) -> Member | None:
    """A kernel as a member of a launch; None if it must run alone, or is too large to gain.

    loads, stores: addresses by number of operand and result.
    """
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
    """Collects the kernel arguments of a member. Equal arguments are one; they are numbered in order of use."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.numbers: dict[Hashable, int] = {}

    def once(self, key: Hashable, kind: str, value: int | float | Place) -> int:
        """The number of the argument for `key`, which is added if it is new."""
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.parameters.append(Parameter(kind, value))
        return self.numbers[key]

    def stride(self, strides: tuple[int, ...]) -> Hashable:
        """The key of a stride. 0 and 1 are literals, and so is a factor 8 or 4 of strides that 16 does not divide.

        Triton specializes integer arguments that are multiples of 16; the literal factor tells it of the others.
        """
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
        """The key of a node's attributes; numbers of constants and of random streams may be arguments."""
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
    """Slices of members with the same source, each of which is one launch whose arguments fit.

    All have the same length except the last.
    """
    first = group[0].parameters
    columns = [
        (p.kind, *(m.parameters[n].value for m in group)) for n, p in enumerate(first)
    ]  # arguments that are equal in all members are passed once
    varying = sum(len(set(column[1:])) > 1 for column in set(columns))
    most = max(1, (device.parameters - 8 * (len(first) + 2)) // (4 + 8 * varying))
    length = cdiv(len(group), cdiv(len(group), most))
    for start in range(0, len(group), length):
        yield slice(start, min(start + length, len(group)))


def choose_merged(group: Sequence[Member], device: Device) -> Choice:
    """The choice for a merged launch: the block grows while loads in flight allow it and enough programs remain."""
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
