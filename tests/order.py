"""Files of long tests run first.

A file goes to one worker as a whole (`--dist loadfile`), and pytest-xdist starts those with the most tests first
(`--loadscope-reorder`). Those that take longest have few tests, and many of them wait for processes of their own: last,
one of them would keep a worker busy while the others have nothing left.
"""

from __future__ import annotations

import pytest

#: names of files, the longest first
LONGEST = (
    "examples",
    "data_parallel",
    "lit",
    "docs_extending",
    "transformers",
    "reduce",
    "isolation",
    "mesh",
    "oracle",
    "cpu_isa",
    "gpu_check",
    "interrupts",
    "hip",
    "global",
    "packaging",
    "pieces",
    "dynamo_sizes",
    "state_dict",
    "ranks",
    "beside_torch",
    "passthrough",
    "histories",
    "benchmarks",
    "docs_site",
    "exchange",
    "pipeline",
    "faults",
)
_PLACES = {f"test_{name}": place for place, name in enumerate(LONGEST)}


def longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests: those of the files above first, all others in the order in which they were collected."""
    items.sort(key=lambda item: _PLACES.get(item.path.stem, len(LONGEST)))
