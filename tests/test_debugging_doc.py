"""The session in docs/debugging.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOC = Path(__file__).parents[1] / "docs" / "debugging.md"


@pytest.mark.filterwarnings("ignore:Using a target size")  # the mistake that the session finds
def test_session(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOC.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) > 8
    names: dict[str, object] = {"__name__": "session"}
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(DOC), "exec"), names)
    out = capsys.readouterr().out
    # what the prose says of the output
    assert "aten.sort.default: the dialect has no op for it" in out
    assert re.search(r"forward:model \S*debugging\.md:\d+", out)
    assert all(line.strip() in out for line in re.findall(r"^  \(INPUT.*$", text, re.MULTILINE))
    pairs = [
        line for line in out.splitlines() if "size=(256,)" in line and "size=(256, 256)" in line
    ]
    assert pairs
    assert all("OPERATOR" in line and "location=" in line for line in pairs)
