"""Which steps run on all threads: those that take longer than starting the threads.

Starting the threads takes microseconds (`Common.start`), and several times that if they sleep or other programs use the
CPU. A step that takes less than twice that time runs on the calling thread alone. With a dynamic dimension the decision
depends on the size.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypedDict

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import Count, N, Piece, current
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from ...description import Kernel

#: nodes of a kernel that cost nothing
_FREE = frozenset(("load", "const", "index"))

#: the value of an integer of the IR at some size of the dynamic dimension
At = Callable[[int], int]


def pays(nanoseconds: float) -> bool:
    """Whether a step that takes `nanoseconds` on one thread should run on all threads."""
    return nanoseconds >= 2 * ANY.start


def shared_from(nanoseconds: Callable[[At], float]) -> tuple[bool, int]:
    """Whether all threads run a step, and the least size at which they do.

    With two dynamic dimensions the second number is the product of both sizes; without any it is 0.

    nanoseconds: the time on one thread at a size; it grows with the size.
    """
    symbol = current()
    if symbol is None:
        return pays(nanoseconds(lambda value: value)), 0

    second = symbol.second

    def pays_at(n: int) -> bool:
        own: N = n if second is None else (max(n // second.most, 1), min(n, second.most))
        return pays(nanoseconds(lambda value: symbol.at(value, own)))

    low, high = symbol.least, symbol.most
    if second is not None:
        low, high = low * second.least, high * second.most
    if not pays_at(high):
        return False, 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if pays_at(middle) else (middle + 1, high)
    return True, low


class Sharing(TypedDict):
    """The fields of a choice that say whether all threads run a kernel."""

    threads: str
    from_size: int


def sharing(nanoseconds: Callable[[At], float]) -> Sharing:
    """`shared_from` as fields of `gflow.kernel`. nanoseconds: the time on one thread at a size."""
    shared, from_size = shared_from(nanoseconds)
    return {"threads": "all" if shared else "one", "from_size": from_size}


def of_kernel(k: Kernel) -> Callable[[At], float]:
    """The time of a region's kernel on one thread, in nanoseconds."""
    operations = sum(OPS[n.op].cost if n.op in OPS else n.op not in _FREE for n in k.nodes)
    moved = sum(TensorType((), a.dtype).itemsize for a in (*k.loads, *k.stores))
    each = operations / ANY.operations + moved / ANY.bytes
    return lambda at: prod(map(at, k.sizes)) * each


def of_quantized(m: int, n: int, k: int, bits: int) -> Callable[[At], float]:
    """The time of a product [m, k] × [n, k]ᵀ with weights of `bits` bits on one thread, in nanoseconds."""
    return lambda at: n * k * max(at(m) / ANY.widened, bits / 8 / ANY.weights)


def of_windows(positions: Count, taps: int, channels: int) -> Callable[[At], float]:
    """The time of a kernel that reads taps × channels elements a position (im2col, depthwise), in nanoseconds."""

    def nanoseconds(at: At) -> float:
        count = positions.limit if isinstance(positions, Piece) else at(positions)
        return 4 * count * taps * channels / ANY.copied

    return nanoseconds


def of_product(batch: int, m: Count, n: Count, k: Count) -> Callable[[At], float]:
    """The time of a float32 product on one thread, in nanoseconds: the greater of arithmetic and memory traffic."""

    def nanoseconds(at: At) -> float:
        rows, columns, inner = (s.limit if isinstance(s, Piece) else at(s) for s in (m, n, k))
        moved = 4 * (rows * inner + inner * columns + rows * columns)
        return at(batch) * max(rows * columns * inner / ANY.products, moved / ANY.bytes)

    return nanoseconds
