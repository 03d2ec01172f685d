"""The first state of optimizers: from a step that computes nothing as from a real one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gflow.tracing.optimizers import state


class KeepsParameters(torch.optim.Optimizer):
    """Its state begins with what a parameter is, a slice of other memory, and a norm."""

    def __init__(self, params: Any, kind: str) -> None:
        super().__init__(params, {"lr": 0.1})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                entry = self.state[p]
                if not entry and self.kind == "copy":
                    entry["slow"] = p.clone()
                elif not entry and self.kind == "slice":
                    entry["slow"] = torch.zeros(2, *p.shape)[1]
                elif not entry and self.kind == "written":
                    entry["slow"] = torch.ones_like(p).mul_(3)
                elif not entry and self.kind == "number":
                    entry["slow"] = torch.full_like(p, float(p.norm()))
                elif not entry:
                    entry["slow"] = torch.ones_like(p)
                    entry["count"] = 0
                entry["slow"].lerp_(p, 0.5)
                p.sub_(p.grad + entry["slow"], alpha=group["lr"])


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, torch.tensor(0.1)),
    "foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    **{
        kind: lambda p, kind=kind: KeepsParameters(p, kind)
        for kind in ("copy", "slice", "written", "number", "ones")
    },
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_that_of_a_real_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    computed: list[bool] = []
    probe = state._probe

    def counted(*args: Any) -> Any:
        whole = len(args[1]) == 5
        made = probe(*args)
        computed.append(whole and len(args) == 4)
        return made

    for least in (1 << 40, 0):
        monkeypatch.setattr(state, "_LARGE", least)
        if not least:
            monkeypatch.setattr(state, "_probe", counted)
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.Linear(4, 5)
        )
        scale = nn.Parameter(torch.tensor(2.0))
        parameters = [*net.parameters(), scale]
        optimizer = OPTIMIZERS[name](parameters)
        known = state.prepare_state(optimizer, parameters)
        entries = [dict(optimizer.state.get(p, {})) for p in parameters]
        found.append((known, entries))
    (known, wanted), (again, got) = found
    assert again == known
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert type(mine[key]) is type(value)
            if isinstance(value, Tensor):
                assert (mine[key].dtype, mine[key].stride()) == (value.dtype, value.stride())
                assert mine[key].equal(value)
            else:
                assert mine[key] == value
    if name in ("Adam", "AdamW", "RMSprop", "ones"):
        assert not any(computed)
    if name in ("copy", "slice", "written", "number", "foreach"):
        assert any(computed)


class WritesOthers(torch.optim.SGD):
    """Its step writes to a parameter that is kept in an attribute."""

    kept: nn.Parameter

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.kept.add_(1)
        assert self.kept.add_(1) is self.kept
        super().step()


def test_probing_steps_write_to_copies_of_parameters_without_gradients() -> None:
    trained, kept = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    optimizer = WritesOthers([trained, kept], 0.1, momentum=0.9)
    optimizer.kept = kept
    assert state.prepare_state(optimizer, [trained])
    assert torch.equal(kept, torch.ones(2))
    assert kept._version == 0
    assert torch.equal(optimizer.state[trained]["momentum_buffer"], torch.zeros(3))
