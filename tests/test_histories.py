"""A share of the histories: random sessions, in which a user changes things between calls."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle.histories.judge import judge, minimized
from oracle.histories.session import KINDS, Action, Session, draw, from_json, to_json
from oracle.histories.world import run

import gflow as flow

FINDS = sorted((Path(__file__).parent / "oracle" / "histories" / "finds").glob("*.json"))


def test_random_sessions() -> None:
    verdict = judge(draw(3))
    assert verdict.status in ("ok", "rounding"), verdict


@pytest.mark.parametrize("find", FINDS, ids=lambda p: p.stem)
def test_earlier_finds(find: Path) -> None:
    """Sessions that once showed an error, minimized."""
    verdict = judge(from_json(find.read_text()))
    assert not verdict.is_find, verdict


def _call(**changed: object) -> Action:
    usual = {
        "values": 1, "size": 4, "layout": "plain", "share": "", "form": "tensor", "target": "", "how": "by position",
        "number": None, "dtype": "", "requires_grad": False, "context": "", "thread": False, "backward": True,
    }  # fmt: skip
    return Action("call", {**usual, **changed})


def _session(*actions: Action, entry: str = "train") -> Session:
    optimizers = (("SGD", {"lr": 0.1}),) if entry == "train" else ()
    return Session(1, entry, ("linear",), optimizers=optimizers, actions=actions)


def test_sessions_are_data() -> None:
    sessions = {seed: draw(seed) for seed in (5, 3, 9)}
    for seed, session in sorted(sessions.items()):
        assert draw(seed) == session
        assert to_json(from_json(to_json(session))) == to_json(session)


def test_every_action_can_be_taken() -> None:
    """In eager mode, with any of its arguments, PyTorch is as before afterwards."""
    draw(0)
    rng = random.Random(1)
    before = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    for name, kind in KINDS.items():
        actions = [_call(), *(Action(name, kind.drawn(rng)) for _ in range(3)), _call()]
        blocks = ("chosen", "plain", "batch norm")
        seen = run(replace(_session(*actions), blocks=blocks), "eager")
        wrong = [e for e in seen.errors.values() if isinstance(e, (NameError, AttributeError))]
        assert not wrong, (name, wrong)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_default_dtype(), torch.is_grad_enabled())


def test_an_error_is_found_and_minimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that keeps the program of its first call."""
    find = flow.nn.Graph._program

    def first(self: flow.nn.Graph, args: object, kwargs: object) -> object:
        plans = [p for v in self._state.plans.values() for p in v]
        call, plan, step = find(self, args, kwargs)
        return call, plans[0] if plans else plan, None if plans else step

    monkeypatch.setattr(flow.nn.Graph, "_program", first)
    change = Action("state", {"what": "scale", "value": 2.0, "seed": 1})
    seed = Action("random state", {"how": "seed", "seed": 1})
    session = replace(
        _session(_call(), seed, _call(), change, seed, _call(), entry="graph"), reads=("scale",)
    )
    verdict = judge(session)
    assert verdict.status == "mismatch", verdict
    small = minimized(session, verdict, 20)
    assert [a.name for a in small.actions] == ["call", "state", "call"]


def test_a_call_that_raises_is_undone() -> None:
    """In both runs: what a call has changed before its error is as it was."""
    raises = Action("raises", {"when": "last"})
    for entry in ("train", "graph"):
        session = _session(_call(), raises, _call(values=2), entry=entry)
        session = replace(session, blocks=("batch norm",), reads=("raises",))
        assert not judge(session).is_find
        seen = run(session, "eager")
        assert list(seen.errors) == [1]
        name = "buffer blocks.0.running_mean"
        assert torch.equal(seen.steps[0][name], seen.steps[1][name])
