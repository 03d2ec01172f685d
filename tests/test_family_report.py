"""What scripts/family_report.py calls wrong: updates that eager's own rounding does not explain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import family_report
from family_report import Trained, _trained_apart


def _found(update: float, loss: float = 1.0) -> Trained:
    return Trained(torch.tensor([loss]), {"weight": torch.tensor([update, 1.0])})


def test_updates_that_rounding_does_not_explain_are_wrong() -> None:
    drawn: list[float] = []

    def others() -> Iterator[Trained]:
        for update in (0.01, 0.05, 0.9):
            drawn.append(update)
            yield _found(update)

    assert _trained_apart(_found(0.01), _found(0.0), others()) == ""
    assert not drawn
    assert _trained_apart(_found(0.2), _found(0.0), others()) == ""
    assert drawn == [0.01, 0.05]
    told = _trained_apart(_found(5.0), _found(0.0), others())
    assert told == "update of weight: relative error 5.0e+00 (by rounding alone 9.0e-01)"
    nan = float("nan")
    assert _trained_apart(_found(nan), _found(nan), iter(())) == ""
    assert "nan" in _trained_apart(_found(nan), _found(0.0), others())
    assert "nan" in _trained_apart(_found(0.0), _found(nan), others())
    assert "loss" in _trained_apart(_found(0.0, loss=1.01), _found(0.0), others())


def test_eager_with_other_rounding_includes_float64() -> None:
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(4, 3), {"input": torch.randn(2, 4)}
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def fresh() -> torch.nn.Module:
        model.load_state_dict(start)
        return model

    want = family_report._trained(fresh(), lambda: family_report.train(model, model, inputs))
    found = list(family_report._other_rounding(fresh, inputs))
    assert len(found) == family_report._NUDGED + 1
    for other in found:
        assert _trained_apart(other, want, iter(())) == ""
    assert all(p.dtype is torch.float32 for p in model.parameters())


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways that a family did not reach in its time are told of, and a family that ran twice counts once."""
    ok = {"first": 1.0, "ratio": 0.5, "wrong": ""}
    ran = {"name": "a", "library": "timm", **dict.fromkeys(family_report.WAYS, ok)}
    late = {"name": "b", "library": "timm", "late": 60.0, family_report.WAYS[0]: ok}
    left = {"name": "c", "library": "timm", "unbuilt": "ValueError: a | b"}
    wrong = {**ran, "name": "d", family_report.WAYS[3]: {"wrong": "loss"}}
    found = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    found[0].write_text("\n".join(map(json.dumps, (ran, late, left))))
    found[1].write_text("\n".join(map(json.dumps, (ran, wrong))))
    monkeypatch.setattr(family_report, "families", lambda library: [None] * 7)
    family_report.write(found, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert (
        "| timm | 7 | 4 | 3 | 3 of 3 (100%) | 2 of 3 (67%) | 2 of 3 (67%) | 1 of 3 (33%) | 1 |"
        in text
    )
    assert (
        "| b | yes | takes more than 60 s in all | not reached | not reached | 1.00 | 0.50 |"
        in text
    )
    assert "| timm | c | ValueError: a \\| b |" in text
