"""The code in docs/graph.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOC = Path(__file__).parents[1] / "docs" / "graph.md"


def test_code(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOC.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "graph"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == 4
    for block in blocks:
        before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * before + block[1], str(DOC), "exec"), names)
    assert "input 'x' is a tensor of shape [3, 4]" in capsys.readouterr().out
    assert names["prediction"].shape == (32, 1)
    assert names["net"][0].weight.grad is not None
