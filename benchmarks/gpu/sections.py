"""The sections whose rows are functions: each row in turn, in a process that may crash or hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.gpu.record import Row
from benchmarks.gpu.rows import bandwidth, contractions, numerics
from benchmarks.gpu.setting import Setting

Rows = Callable[[Setting], Iterator[tuple[str, Callable[[], Row]]]]


@dataclass(frozen=True)
class Section:
    """rows: by name, in order. seconds: that one may take before its process is ended."""

    rows: Rows
    seconds: float


SECTIONS = {
    "numerics": Section(numerics.rows, 60.0),
    "models": Section(numerics.models, 90.0),
    "bandwidth": Section(bandwidth.rows, 60.0),
    "contractions": Section(contractions.rows, 120.0),
}
