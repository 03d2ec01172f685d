"""The table of shares names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from shares import ONE_IN


@pytest.mark.parametrize("name", ONE_IN)
def test_named(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (Path(__file__).parent / file).read_text(), name
