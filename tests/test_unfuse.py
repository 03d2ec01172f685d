"""gflow-unfuse: contractions apart from their epilogues compute the same, and run so where that was faster."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from test_join_columns import Residual
from torch import Tensor, nn

import gflow
from gflow.compiler import CompileOptions
from gflow.compiler.driver.group_races import UNFUSED, Device, race_groups
from gflow.compiler.driver.pipelines import PipelineOptions
from gflow.compiler.driver.unfused import first_steps, groups_of, split_program
from gflow.compiler.emit.triton.toolchain.compile import key_of
from gflow.dialects.program import AtenStep, DeviceCode, LaunchStep, Program
from gflow.dialects.program.form import packed

pytest.importorskip("triton")

TARGET = "cuda:90"
CODE = DeviceCode(packed(b""), "k", 0, 4)


class Block(nn.Module):
    """What follows attention in a transformer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.wide, self.back = nn.Linear(16, 24), nn.Linear(24, 16)
        self.act, self.drop = nn.GELU(approximate="tanh"), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.drop(self.back(self.act(self.wide(self.norm(x)))))
        return y


class Train(gflow.nn.Graph):
    def __init__(self, model: nn.Module, unfused: tuple[str, ...] = (), amp: bool = False) -> None:
        super().__init__()
        self.model = model
        passes = PipelineOptions(unfused=unfused, amp="bf16" if amp else "")
        self.config.compile_options = CompileOptions(target=TARGET, passes=passes)
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def build(self, x: Tensor) -> Tensor:
        loss = (self.model(x).float() ** 2).sum()
        loss.backward()
        return loss

    def program(self) -> Program:
        (plan,) = [p for plans in self._state.plans.values() for p in plans]
        found: Program = plan.compiled.program
        return found


def eager(model: nn.Module, x: Tensor, amp: bool = False) -> dict[str, Tensor]:
    """Parameters after an eager step, in float64."""
    model = copy.deepcopy(model).to(x.dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        y = model(x)
    (y.to(x.dtype) ** 2).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
    return {n: t.double() for n, t in model.state_dict().items()}


def images() -> nn.Module:
    return nn.Sequential(Residual(8, 16), nn.Conv2d(8, 8, 1), nn.ReLU())


CASES: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool, int]] = {
    "GELU and residual": (Block, (32, 16), False, 3),
    "mixed precision": (Block, (32, 16), True, 3),
    "batch norms": (images, (4, 8, 4, 4), False, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_compute_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step with all groups split, beside eager and float64."""
    make, shape, amp, least = CASES[case]
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    exact, own = eager(model, x.double()), eager(model, x, amp)
    whole = traced(Train(copy.deepcopy(model), amp=amp), x)
    names = [group.name for group in groups_of(whole)]
    assert len(names) >= least
    graph = Train(model, tuple(names), amp)
    graph(x)
    program = graph.program()
    assert not groups_of(program)
    assert first_steps(program).keys() >= {*names}
    assert len(program.steps) > len(whole.steps)
    for name, found in model.state_dict().items():
        want = exact[name]
        allowed = 2 * (own[name] - want).abs().max() + 2e-6 * (want.abs().max() + 1)
        assert (found.double() - want).abs().max() <= allowed, name


def test_equal_layers_are_one_group() -> None:
    """Random numbers of other streams make no other group, and a group that is split leaves the others alone."""
    graph = Train(nn.Sequential(*(Block(0.1) for _ in range(4))))
    program = traced(graph, torch.randn(32, 16))
    counts = {group.name: group.count for group in groups_of(program)}
    assert any("dropout" in g.split or "random" in g.split for g in groups_of(program))
    assert max(counts.values()) >= 3
    (first, *others) = counts
    again = traced(Train(graph.model, (first,)), torch.randn(32, 16))
    assert {g.name for g in groups_of(again)} == {*others}


def traced(graph: Train, x: Tensor) -> Program:
    """The program of a graph for the GPU, without code."""
    from benchmarks.workloads.cuda_steps import trace_of
    from gflow.execution.executor import program_of

    found: Program = program_of(trace_of(graph, (x,)), graph.config.resolved())
    return found


class Timer:
    """Seconds of steps by what they are; counts what it is asked."""

    def __init__(self, fused: float) -> None:
        self.fused, self.asked = fused, 0

    def __call__(self, program: Program) -> Callable[[LaunchStep | AtenStep, float], float]:
        def measure(step: LaunchStep | AtenStep, best: float) -> float:
            self.asked += 1
            if isinstance(step, AtenStep):
                return 2.0
            own = not step.kernel.startswith("matmul")
            bare = step.kernel.removeprefix("matmul_").count("_") == 0
            return 1.0 if own else 3.0 if bare else self.fused

        return measure


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have code that does nothing."""

    def compiled(jobs: Any, *_: Any, **__: Any) -> dict[str, DeviceCode]:
        return {key_of(kernel.name, config): CODE for kernel, config in jobs}

    monkeypatch.setattr("gflow.compiler.driver.group_races.compile_kernels", compiled)
    monkeypatch.setattr("gflow.compiler.emit.triton.toolchain.compile.compile_kernels", compiled)


@pytest.mark.usefixtures("no_code")
@pytest.mark.parametrize("libraries", [True, False])
def test_a_group_is_compared_once(libraries: bool) -> None:
    graph = Train(nn.Sequential(Block(), Block()))
    program = traced(graph, torch.randn(32, 16))
    options = CompileOptions(target=TARGET, tune_libraries=libraries)
    files: dict[Any, bytes] = {}
    store = (lambda *name: files.get(name), lambda kind, name, data: files.update({(kind, name): data}))  # fmt: skip
    timer = Timer(3.5)
    races = race_groups(program, options, Device("a GPU", timer, store))
    assert races.keys() == {group.name for group in groups_of(program)}
    for seconds in races.values():
        assert seconds["fused"] == 3.5
        assert seconds["unfused"] == (3.0 if libraries else 4.0)
        assert next(iter(seconds)) == ("unfused" if libraries else "fused")
    again = Timer(9.0)
    assert race_groups(program, options, Device("a GPU", again, store)) == races
    assert not again.asked
    race_groups(program, options, Device("another GPU", again, store))
    assert again.asked
    assert race_groups(program, options, Device("a third GPU", Timer(math.inf))) == {}


def test_a_part_has_the_layout_of_its_operands() -> None:
    """The weight of a linear layer is read transposed, and so it is where the group is compared."""
    program = traced(Train(nn.Sequential(Block(), Block())), torch.randn(32, 16))
    group = max(groups_of(program), key=lambda g: "tanh" in g.split)
    alone = split_program(group, CompileOptions(target=TARGET))
    assert any(a.strides[0] == 1 for a in alone.arguments if a.type.rank == 2)
    assert len(alone.steps) == 2


@pytest.mark.usefixtures("no_code")
@pytest.mark.parametrize("fused", [9.0, 2.5])
def test_a_graph_runs_what_was_faster(
    fused: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """From the first call to a saved graph, with a timer that is made up."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gflow.execution.tuning._seconds_of_races", lambda *_: 60.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: "a GPU")
    timer = Timer(fused)
    monkeypatch.setattr(
        "gflow.runtime.cuda.timing.StepTimer", lambda program, device: timer(program)
    )
    torch.manual_seed(0)
    model, x = Block(), torch.randn(32, 16)
    want, own = eager(model, x.double()), eager(model, x)
    graph = Train(model)
    graph(x)
    program = graph.program()
    races = [race for race in program.races if UNFUSED in race.seconds]
    assert len(races) == len(groups_of(traced(Train(copy.deepcopy(model)), x))) >= 3
    split = fused > 3.0
    for race in races:
        assert next(iter(race.seconds)) == ("unfused" if split else "fused")
        assert race.seconds["fused"] == fused
        assert program.steps[race.step].label == race.label  # type: ignore[union-attr]
        assert isinstance(program.steps[race.step], AtenStep) == split
    assert bool(groups_of(program)) != split
    marked = [line for line in program.ir.splitlines() if "gflow.group" in line]
    assert any('kind = "pytorch"' in line and "tuned" in line for line in marked) == split
    text = " ".join(str(graph.explain()).split())
    assert "unfused fused" in text if split else "fused unfused" in text
    gflow.save(graph, tmp_path / "net")
    loaded = gflow.load(tmp_path / "net")
    for name, found in model.state_dict().items():
        allowed = 2 * (own[name] - want[name]).abs().max() + 2e-6 * (want[name].abs().max() + 1)
        assert (found.double() - want[name]).abs().max() <= allowed, name
    asked = timer.asked
    again = Train(copy.deepcopy(model))
    torch.testing.assert_close(loaded(x), again(x))
    assert again.program().ir == program.ir
    assert [race.seconds for race in again.program().races] == [r.seconds for r in program.races]
    assert timer.asked == asked
