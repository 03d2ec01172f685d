"""How launches are chosen by measuring, with a timer that is made up, and with the interpreter's clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gflow
from gflow.compiler.driver import options as defaults
from gflow.compiler.driver.compile import generate_planned
from gflow.compiler.emit.triton.library_calls import Instead, library_calls
from gflow.compiler.emit.triton.race_order import Expected, expected_of
from gflow.compiler.emit.triton.toolchain.autotune import SPILLED, contenders, tune
from gflow.compiler.emit.triton.toolchain.compile import key_of
from gflow.compiler.emit.triton.winners import with_winners
from gflow.dialects.program import (
    AtenStep,
    DeviceCode,
    LaunchStep,
    Place,
    Program,
    Race,
    TritonConfig,
    TritonKernel,
)
from gflow.dialects.program.form import packed, seal
from gflow.execution.executor import programs_for
from gflow.execution.tuning import tuned
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice
from gflow.runtime.cuda.timing import StepTimer
from gflow.runtime.steps.aten_step import AtenCall
from gflow.runtime.stored.program_io import from_bytes, to_bytes
from gflow.runtime.tensors import DTYPES

CODE = DeviceCode(packed(b""), "k", 0, 4)
GRID = ("cdiv(n, BLOCK)",)


def program(
    sizes: tuple[int, ...] = (1000, 1000, 5), blocks: tuple[int, ...] = (64, 128, 256)
) -> Program:
    configs = tuple(TritonConfig({"BLOCK": b}, 4, 2) for b in blocks)
    kernel = TritonKernel("k", "text", {"x": "*fp32", "n": "i32"}, {}, ("x",), configs, GRID)
    found = Program("p", "", [], [], [], {}, {}, 1 << 16, target="cuda:90", triton={"k": kernel})
    found.device_code = {key_of("k", c): CODE for c in range(len(blocks))}
    found.steps = [
        LaunchStep(
            "k", (Place("arena", 0, 64 * i), n), 0, (-(-n // blocks[0]), 1, 1), f"op {i}", (4 * n,)
        )
        for i, n in enumerate(sizes)
    ]
    return found


class Timer:
    """Seconds by the number of programs; counts what it is asked."""

    def __init__(self, library: float = math.inf) -> None:
        self.asked: list[Any] = []
        self.library = library

    def __call__(self, step: LaunchStep | AtenStep, best: float) -> float:
        self.asked.append(step)
        if isinstance(step, AtenStep):
            return self.library
        (_, n), (x, _, _) = step.args, step.grid
        return abs(x - n // 128) + 1.0


def test_each_problem_is_measured_once_and_the_fastest_config_runs():
    timer = Timer()
    found = tune(program(), timer, "a GPU")
    assert [s.config for s in found.steps] == [1, 1, 0]
    assert [s.grid for s in found.steps] == [(8, 1, 1), (8, 1, 1), (1, 1, 1)]
    own = [(s.args, s.label, s.reach) for s in program().steps]
    assert [(s.args, s.label, s.reach) for s in found.steps] == own
    assert len(timer.asked) == 6  # three configs of two sizes
    race = found.races[0]
    assert (race.step, race.label, race.device) == (0, "op 0", "a GPU")
    assert next(iter(race.seconds)) == "BLOCK=128, 4 warps, 2 stages"
    assert list(race.seconds.values()) == sorted(race.seconds.values())
    sealed = replace(found, seal=seal(found))
    assert from_bytes(to_bytes(sealed)) == sealed


def test_only_what_is_compiled_is_tried_and_what_cannot_run_loses():
    given = program((1000,))
    del given.device_code[key_of("k", 1)]
    timer = Timer()
    assert tune(given, timer, "a GPU").steps[0].config == 2
    assert {s.config for s in timer.asked} == {0, 2}
    fails = lambda step, best: math.inf if step.config == 1 else Timer()(step, best)  # noqa: E731
    found = tune(program((1000,)), fails, "a GPU")
    assert found.steps[0].config == 2
    assert len(found.races[0].seconds) == 2
    none = tune(program((1000,)), lambda step, best: math.inf, "a GPU")
    assert none.steps == program((1000,)).steps
    assert none.races == []


def test_what_spills_much_is_not_tried():
    given = program((1000,))
    given.device_code[key_of("k", 1)] = replace(CODE, spills=SPILLED)
    timer = Timer()
    assert tune(given, timer, "a GPU").steps[0].config == 2
    assert {s.config for s in timer.asked} == {0, 2}
    given.device_code = {key: replace(CODE, spills=SPILLED) for key in given.device_code}
    assert tune(given, Timer(), "a GPU").steps[0].config == 1


def test_a_library_wins_only_if_it_is_faster():
    call = AtenStep("aten.relu.default", "[[], {}]", (), (), "op 0")
    slower = tune(program((1000,)), Timer(2.5), "a GPU", calls={0: Instead(1, {"library": call})})
    assert slower.steps[0].config == 1
    assert "library" in slower.races[0].seconds
    same = tune(program((1000,)), Timer(1.99), "a GPU", calls={0: Instead(1, {"library": call})})
    assert isinstance(same.steps[0], LaunchStep)
    faster = tune(program((1000,)), Timer(0.5), "a GPU", calls={0: Instead(1, {"library": call})})
    assert faster.steps[0] is call
    assert next(iter(faster.races[0].seconds)) == "library"


def test_a_call_may_replace_several_launches():
    call = AtenStep("aten.relu.default", "[[], {}]", (), (), "op 0")
    calls = {0: Instead(2, {"library (a)": call})}
    kept = tune(program(), Timer(4.5), "a GPU", calls=calls)
    assert len(kept.steps) == 3
    found = tune(program(), Timer(3.5), "a GPU", calls=calls)
    assert found.steps[0] is call
    assert [s.label for s in found.steps] == ["op 0", "op 2"]
    assert [(r.step, next(iter(r.seconds))) for r in found.races] == [
        (0, "library (a)"),
        (1, "BLOCK=64, 4 warps, 2 stages"),
    ]
    assert found.races[0].seconds["kernels"] == 4.0
    fails = tune(program(), Timer(), "a GPU", calls=calls)
    assert len(fails.races) == 3


@pytest.mark.parametrize("causal", [False, True])
def test_library_calls_of_attention_fit_their_schemas(causal):
    """Shapes only: the libraries are on GPUs."""

    class Attend(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.add_optimizer(torch.optim.SGD([self.weight], lr=0.1))

        def build(self, x):
            q = (x * self.weight.bfloat16()).unflatten(-1, (2, 32)).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
            y.float().sum().backward()
            return y

    graph = Attend()
    graph(torch.randn(2, 24, 64, dtype=torch.bfloat16))
    plan: Any = graph._state.latest
    (found,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    calls = [i for i in library_calls(found).values() if "library (cuDNN)" in i.calls]
    assert len(calls) == 2
    for instead in calls:
        for step in instead.calls.values():
            call = AtenCall(step)
            call.bind(
                lambda r: torch.empty_strided(
                    r.type.shape, r.strides, dtype=DTYPES[r.type.dtype], device="meta"
                )
            )
            call.run()


def test_answers_are_kept_for_a_device():
    files: dict[Any, bytes] = {}
    store = (lambda *name: files.get(name), lambda kind, name, data: files.update({(kind, name): data}))  # fmt: skip
    first, again, other = Timer(), Timer(), Timer()
    found = tune(program(), first, "a GPU", store=store)
    assert tune(program(), again, "a GPU", store=store) == found
    assert not again.asked
    tune(program(), other, "another GPU", store=store)
    assert len(other.asked) == len(first.asked)
    for name in files:
        files[name] = b"damaged"
    assert tune(program(), Timer(), "a GPU", store=store) == found


def test_what_a_race_needs_compiled():
    assert [c for _, c in contenders(program())] == [0, 1, 2]
    assert [c for _, c in contenders(program(), most=2)] == [0, 1]


def test_within_its_time_a_race_takes_what_is_expected_to_take_longest():
    """Ways of four launches, products first; the time ends after two comparisons of three ways."""
    given = program((1000, 2000, 3000, 4000))
    given.device_code = {}
    now, jobs, files = 0.0, [], {}

    def measure(step: LaunchStep | AtenStep, best: float) -> float:
        nonlocal now
        now += 1.0
        return Timer()(step, best)

    def compiled(wanted: Sequence[Any]) -> dict[str, DeviceCode]:
        jobs.extend(c for _, c in wanted)
        return {key_of(k.name, c): CODE for k, c in wanted}

    expected = {n: Expected(s, n == 3) for n, s in enumerate((4.0, 1.0, 6.0, 2.0))}
    options: Any = {
        "compiled": compiled, "expected": lambda: expected, "clock": lambda: now, "seconds": 6.0,
        "store": (lambda *name: files.get(name), lambda kind, name, data: files.update({(kind, name): data})),
    }  # fmt: skip
    found = tune(given, measure, "a GPU", **options)
    assert [bool(race.seconds) for race in found.races] == [False, False, True, True]
    assert [s.config for s in found.steps] == [0, 0, 1, 1]
    assert jobs == [0, 1, 2]
    assert tune(given, measure, "a GPU", **{**options, "seconds": 0}).races == found.races
    jobs.clear()
    given.device_code = {}
    again = tune(given, measure, "a GPU", **options)  # goes on where the first one ended
    assert [s.config for s in again.steps] == [1, 1, 1, 1]
    kept = replace(given, device_code={})
    tune(kept, measure, "a GPU", **options)
    assert kept.device_code.keys() == {key_of("k", 1)}  # of the winners only


class Infer(gflow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(32, 16)), nn.Conv2d(3, 4, 3, bias=False)

    def build(self, x, y):
        return x @ self.a, self.b(y)


def test_library_calls_compute_the_same():
    graph, x, y = Infer(), torch.randn(8, 32), torch.randn(2, 3, 6, 6)
    want = graph(x, y)
    plan: Any = graph._state.latest
    (found,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    calls = library_calls(found)
    known = [c for i in calls.values() for c in i.calls.values()]
    assert any(c.overload == "aten.matmul.default" for c in known)
    pytest.importorskip("triton")
    timer = StepTimer(found, InterpreterDevice(), runs=2, warm_up=1)
    only_calls = lambda s, best: timer(s) if isinstance(s, AtenStep) else math.inf  # noqa: E731
    chosen = tune(found, only_calls, "cpu", calls=calls)
    assert {s.overload for s in chosen.steps if isinstance(s, AtenStep)} >= {"aten.matmul.default"}
    args = list(plan.arguments)
    for position, leaf in plan.input_slots:
        args[position] = (x, y)[leaf]
    for result, expected in zip(Executable(chosen, InterpreterDevice())(args), want):
        torch.testing.assert_close(result, expected)


class Clocked(InterpreterDevice):
    """A device that runs nothing, with a host and a stream that take made-up seconds for a step.

    waits: whether the host waits for the step's end. steps: how many were begun.
    """

    def __init__(self, host: float, device: float, waits: bool = False) -> None:
        super().__init__()
        self.host, self.device, self.waits, self.steps = host, device, waits, 0
        self.now = self.free = 0.0  # the host's time; when the stream has done what was put into it

    def begin(self, run: Any, item: Any) -> None:
        self.steps += 1
        self.now += self.host
        self.free = max(self.free, self.now) + self.device
        if self.waits:
            self.now = self.free

    def delay(self, seconds: float) -> None:
        self.free = max(self.free, self.now) + seconds

    def mark(self) -> float:
        self.now += 1e-6
        return max(self.free, self.now)

    def reached(self, mark: float) -> bool:
        return mark <= self.now

    def seconds(self, begin: float, end: float) -> float:
        self.now = max(self.now, end)
        return end - begin


def timed(monkeypatch: pytest.MonkeyPatch, device: Clocked, best: float = math.inf) -> float:
    """The time of a launch by a `StepTimer`."""
    graph = Infer()
    graph(torch.randn(8, 32), torch.randn(2, 3, 6, 6))
    plan: Any = graph._state.latest
    (found,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    monkeypatch.setattr("gflow.runtime.cuda.timing.time.perf_counter", lambda: device.now)
    step = next(s for s in found.steps if isinstance(s, LaunchStep))
    return StepTimer(found, device)(step, best)


@pytest.mark.parametrize("host", [1e-6, 1e-4, 3e-3])
def test_the_time_of_a_step_is_the_device_s_alone(monkeypatch, host):
    assert timed(monkeypatch, Clocked(host, 2e-5)) == pytest.approx(2e-5, abs=2e-6)


def test_a_step_that_waits_for_the_device_is_timed(monkeypatch):
    assert timed(monkeypatch, Clocked(1e-4, 2e-5, waits=True)) >= 2e-5


@pytest.mark.parametrize(
    ("seconds", "best", "samples"), [(1e-4, 9e-5, 15), (1e-4, 5e-5, 3), (1e-2, 1e-2, 3)]
)
def test_long_and_hopeless_steps_get_few_samples(monkeypatch, seconds, best, samples):
    device = Clocked(1e-5, seconds)
    assert timed(monkeypatch, device, best) == pytest.approx(seconds, abs=2e-6)
    assert device.steps == 2 + 1 + samples


@pytest.fixture
def raced() -> tuple[Program, Program, dict[int, Instead]]:
    """A program, and what is left of it when the second way of each kernel wins, and a library's product."""

    class Net(Infer):
        def build(self, x, y):
            product, image = super().build(x, y)
            return product, image, torch.softmax(x, 1), x.sum(0), torch.cumsum(x, 1)

    graph = Net()
    graph(torch.randn(3000, 32), torch.randn(2, 3, 6, 6))
    plan: Any = graph._state.latest
    (given,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    kernels = given.triton.values()
    given.device_code = {key_of(k.name, c): CODE for k in kernels for c in range(len(k.configs))}
    calls = library_calls(given)

    def measure(step: LaunchStep | AtenStep, best: float) -> float:
        if isinstance(step, AtenStep):
            return 0.5 if "matmul" in step.overload else 9.0
        return 1.0 if step.config == 1 else 2.0

    found = tune(given, measure, "a GPU", calls=calls)
    return given, with_winners(given, found, calls, "a GPU"), calls


def test_what_won_is_in_the_ir(raced):
    """Code of the IR runs as the tuned program does, and has nothing left to race."""
    given, found, calls = raced
    assert found.ir.count('tuned = "a GPU"') >= 4
    expected = expected_of(given)
    contractions = {n for n, e in expected.items() if e.contraction}
    assert contractions >= calls.keys()
    assert 0 < len(contractions) < len(given.steps) == len(expected)
    assert all(e.seconds > 0 for e in expected.values())
    again = generate_planned(found.ir, "cuda:90", 1)
    assert len(again.steps) == len(found.steps)
    for now, then in zip(again.steps, found.steps):
        if isinstance(then, AtenStep):
            assert now == then
            continue
        assert isinstance(now, LaunchStep)
        raced_kernel, kernel = found.triton[then.kernel], again.triton[now.kernel]
        assert kernel.configs[0] == raced_kernel.configs[then.config]
        assert now.grid == then.grid
        assert len(kernel.configs) == 1 or len(raced_kernel.configs) == 1
    assert any(isinstance(s, AtenStep) for s in again.steps)
    assert any(s.config == 1 for s in found.steps if isinstance(s, LaunchStep))
    assert not library_calls(again) or library_calls(again).keys() < calls.keys()
    assert tune(again, Timer(), "a GPU", calls=library_calls(again)).races == []


def test_an_artifact_keeps_what_won(raced):
    _, found, _ = raced
    sealed = replace(found, seal=seal(found))
    assert 'tuned = "a GPU"' in from_bytes(to_bytes(sealed)).ir


def test_explain_says_who_won_and_by_how_much():
    graph = Infer()
    graph(torch.randn(8, 32), torch.randn(2, 3, 6, 6))
    plan: Any = graph._state.latest
    plan.compiled.program.races.append(
        Race(0, "matmul net.py:3", "a GPU", {"BLOCK=64": 2e-5, "library": 3e-5})
    )
    plan.compiled.program.races.append(Race(0, "convolution", "a GPU", {}))
    text = str(graph.explain())
    assert "Chosen by measuring on a GPU (1 steps)" in text
    assert "1 more by the model" in text
    assert "20.0 us  BLOCK=64  library  50.0 %  matmul" in " ".join(text.split("\n"))
    assert "CUDA graph" not in text  # it is on the CPU


def test_explain_says_what_spills():
    graph = Infer()
    graph(torch.randn(8, 32), torch.randn(2, 3, 6, 6))
    plan: Any = graph._state.latest
    other = program((1000, 5))
    other.steps[1] = replace(other.steps[1], config=1)
    other.device_code[key_of("k", 1)] = replace(CODE, spills=8)
    for name in ("triton", "device_code"):
        getattr(plan.compiled.program, name).update(getattr(other, name))
    plan.compiled.program.steps += other.steps
    text = " ".join(str(graph.explain()).split())
    assert "8 BLOCK=128, 4 warps, 2 stages BLOCK=64, 4 warps, 2 stages k" in text


def test_a_graph_is_tuned_where_it_is_compiled(monkeypatch):
    device = InterpreterDevice()
    monkeypatch.setattr("gflow.execution.tuning.gpu_for", lambda target, where: device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: "a GPU")

    class Scale(gflow.nn.Graph):
        def build(self, x):
            return torch.tanh(x) * 2

    graph = Scale()
    graph(torch.randn(5000))
    plan: Any = graph._state.latest
    (found,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    options = replace(plan.compiled.options, target="cuda:90", timing={})
    assert tuned(found, options, device.where) is found  # tests have no default time
    monkeypatch.setattr(defaults, "TUNE_SECONDS", 1e-9)
    late = tuned(found, options, device.where)
    assert [race.seconds for race in late.races] == [{}]
    assert "tuned" not in late.ir
    monkeypatch.setattr(defaults, "TUNE_SECONDS", 30.0)
    torch.use_deterministic_algorithms(True)
    try:
        assert tuned(found, options, device.where) is found
    finally:
        torch.use_deterministic_algorithms(False)
    chosen = tuned(found, options, device.where)
    assert options.timing["tune"] > 0
    assert len(chosen.triton[chosen.steps[0].kernel].configs) > 1
    assert chosen.races[0].device == "a GPU"
    (step,) = chosen.steps
    assert list(chosen.device_code) == [key_of(step.kernel, step.config)]
    assert 'tuned = "a GPU"' in chosen.ir
    full = lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory"))  # noqa: E731
    monkeypatch.setattr("gflow.runtime.cuda.timing.StepTimer", full)
    assert tuned(found, options, device.where) is found
