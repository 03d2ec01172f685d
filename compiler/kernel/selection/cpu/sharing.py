"""Which steps all threads run: those that take longer than starting the threads does.

Starting them takes microseconds (`Common.start`), and several times that where they sleep, or where other programs use
the processor. So a step is for the calling thread alone below twice that; of a program with a size, for the sizes at
which it is.
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

#: an integer of the IR at some size
At = Callable[[int], int]


def pays(nanoseconds: float) -> bool:
    """Whether all threads run a step that takes so long on one."""
    return nanoseconds >= 2 * ANY.start


def shared_from(nanoseconds: Callable[[At], float]) -> tuple[bool, int]:
    """Whether all threads run a step, and of a program with a size from which one on; of two, from which product.

    nanoseconds: what it takes on one thread, which grows with the size.
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
    """Whether all threads run a kernel, as `gflow.kernel` has it. nanoseconds: as `shared_from` takes them."""
    shared, from_size = shared_from(nanoseconds)
    return {"threads": "all" if shared else "one", "from_size": from_size}


def of_kernel(k: Kernel) -> Callable[[At], float]:
    """Nanoseconds of a kernel over an index space."""
    operations = sum(OPS[n.op].cost if n.op in OPS else n.op not in _FREE for n in k.nodes)
    moved = sum(TensorType((), a.dtype).itemsize for a in (*k.loads, *k.stores))
    each = operations / ANY.operations + moved / ANY.bytes
    return lambda at: prod(map(at, k.sizes)) * each


def of_quantized(m: int, n: int, k: int, bits: int) -> Callable[[At], float]:
    """Nanoseconds of a product with weights [n, k] of so many bits."""
    return lambda at: n * k * max(at(m) / ANY.widened, bits / 8 / ANY.weights)


def of_windows(positions: Count, taps: int, channels: int) -> Callable[[At], float]:
    """Nanoseconds of what each position reads `taps` times for each channel: patches, depthwise convolutions."""

    def nanoseconds(at: At) -> float:
        count = positions.limit if isinstance(positions, Piece) else at(positions)
        return 4 * count * taps * channels / ANY.copied

    return nanoseconds


def of_product(batch: int, m: Count, n: Count, k: Count) -> Callable[[At], float]:
    """Nanoseconds of a product of float32: of many rows its arithmetic, of few what it reads."""

    def nanoseconds(at: At) -> float:
        rows, columns, inner = (s.limit if isinstance(s, Piece) else at(s) for s in (m, n, k))
        moved = 4 * (rows * inner + inner * columns + rows * columns)
        return at(batch) * max(rows * columns * inner / ANY.products, moved / ANY.bytes)

    return nanoseconds
