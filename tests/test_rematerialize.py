"""A memory budget is met, by computing values again that come out the same."""

from __future__ import annotations

import copy
import math
import random
import re
from itertools import product
from typing import Any

import pytest
import torch
from call_count import calls
from ir_interpreter import run_module
from random_ir import LARGE, random_args, random_module
from test_checkpointing import Attention, Block, ConvBlock, Training, sequence, train

import gflow as flow
from benchmarks.recomputation_bound import lower_bound
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.memory.liveness import lives_of
from gflow.compiler.passes.recomputation.choose import choose, gap_of
from gflow.compiler.passes.recomputation.improve import search
from gflow.compiler.passes.recomputation.problem import read_problem
from gflow.compiler.passes.recomputation.replay import replay
from gflow.compiler.targets import DEVICES
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.errors import GraphError

CONTEXT = make_context()
BEFORE = (
    "builtin.module(func.func(gflow-simplify,cse,gflow-assign-layout,gflow-simplify,cse,"
    "gflow-fuse,gflow-schedule))"
)
PLAN = "builtin.module(func.func(gflow-materialize,gflow-repeat-copies,gflow-plan-memory))"
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: sequence(Block, 6), (256, 32)),
    "attention": (lambda: sequence(Attention, 6), (8, 32, 32)),
    "convolutions": (lambda: sequence(ConvBlock, 5), (4, 8, 16, 16)),
}


def scheduled(text: str) -> ir.Module:
    with CONTEXT:
        module = ir.Module.parse(text)
        run_pipeline(module, BEFORE)
    return module


def budget(module: ir.Module, options: str) -> ir.Module:
    with CONTEXT:
        run_pipeline(module, f"builtin.module(func.func(gflow-rematerialize{{{options}}}))")
    return module


def number(module: ir.Module | str, name: str) -> int:
    found = re.search(rf"{name} = ([0-9]+)", str(module))
    assert found is not None, name
    return int(found[1])


def traced(name: str, depth: int | None = None) -> str:
    make, shape = MODELS[name]
    model = sequence(Block, depth) if depth else make()
    graph = Training(model)
    graph(torch.randn(shape))
    return graph.ir("traced", generic=True)


@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_met(name: str) -> None:
    text = str(scheduled(traced(name)))
    with CONTEXT:
        whole = ir.Module.parse(text)
        run_pipeline(whole, PLAN)
    before = number(whole, "gflow.arena_size")
    seconds = [0.0]
    for fraction in (0.8, 0.6):
        with CONTEXT:
            module = ir.Module.parse(text)
            budget(module, f"fraction={fraction}")
            assert module.operation.verify()
            assert "gflow.recomputed" in str(module)
            run_pipeline(module, PLAN)
        arena = number(module, "gflow.arena_size")
        assert arena <= fraction * before
        assert (number(module, "arena_before"), number(module, "arena_after")) == (before, arena)
        found = re.search(r"seconds = ([0-9.eE+-]+)", str(module))
        assert found is not None
        seconds.append(float(found[1]))
    assert 0 < seconds[1] < seconds[2]  # less memory takes more time


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_the_same(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    plain = make()
    model = copy.deepcopy(plain)
    x = torch.randn(shape)
    want, got = Training(plain), Training(model)
    want.config.set_recomputation_time(0)
    share = 0.8 if name == "convolutions" else 0.6  # scratch of products counts
    got.config.set_memory_budget(share)
    for a, b in zip(train(want, x, 2), train(got, x, 2), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)
    for (key, a), b in zip(plain.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-7, msg=key)
    assert number(got.ir(generic=True), "gflow.arena_size") <= share * number(
        want.ir(generic=True), "gflow.arena_size"
    )
    assert "gflow.recomputed" in got.ir(generic=True)


@pytest.mark.parametrize("act", [torch.nn.GELU, torch.nn.SiLU])
def test_cheap_values_are_recomputed_without_a_budget(act: Any) -> None:
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(64, 256), act(), torch.nn.Linear(256, 64))
        for _ in range(4)
    ]
    plain = torch.nn.Sequential(*layers)
    model = copy.deepcopy(plain)
    x = torch.randn(512, 64)
    kept, graph = Training(plain), Training(model)
    kept.config.set_recomputation_time(0)
    graph.config.set_recomputation_time(0.1)
    for a, b in zip(train(kept, x, 2), train(graph, x, 2), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)
    before, after = kept.ir(generic=True), graph.ir(generic=True)
    assert "gflow.recomputed" in after
    assert "gflow.recomputed" not in before
    assert number(after, "gflow.arena_size") < 0.85 * number(before, "gflow.arena_size")
    assert "config.set_recomputation_time()" in str(graph.explain())


def test_marks_and_a_budget_together() -> None:
    torch.manual_seed(0)
    plain = sequence(Block, 6)
    model = copy.deepcopy(plain)
    x = torch.randn(256, 32)
    want, got = Training(plain), Training(model, lambda m: [*m][:3])
    got.config.set_memory_budget(0.7)
    for a, b in zip(train(want, x, 2), train(got, x, 2), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)
    assert "gflow.recomputed" in got.ir(generic=True)
    assert "optimization_barrier" in got.ir(generic=True)


def test_marks_by_hand_are_not_better() -> None:
    """With the memory of a step whose blocks are all marked, a budget takes no more predicted time."""
    make, shape = MODELS["attention"]
    by_hand = Training(make(), lambda m: [*m])
    by_hand(torch.randn(shape))
    programs: list[tuple[float, int]] = []
    for text in (by_hand.ir("traced", generic=True), traced("attention")):
        most = programs[0][1] if programs else 0
        with CONTEXT:
            module = ir.Module.parse(text)
            options = PipelineOptions(memory_budget=most, recomputation_time=0.0)
            front, _, rest = pipeline_for("cpu", options).partition(",gflow-materialize")
            run_pipeline(module, f"{front}))")
            ops = module.body.operations[0].operation.regions[0].blocks[0].operations
            time = sum(seconds(cost_of(op.operation), DEVICES["cpu"]) for op in ops)
            run_pipeline(module, f"builtin.module(func.func(gflow-materialize{rest}")
        programs.append((time, number(module, "gflow.arena_size")))
    assert programs[1][0] <= programs[0][0]
    assert programs[1][1] <= programs[0][1]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    """Whatever is recomputed: the program gives the same results."""
    with CONTEXT, ir.Location.unknown():
        module = random_module(CONTEXT, 900 + seed, 60, LARGE, updates=True)
        run_pipeline(module, "builtin.module(func.func(gflow-fuse,gflow-schedule))")
        function = module.body.operations[0].operation.opview
        args = random_args(module, seed)
        want = run_module(module, args)
        problem = read_problem(function, "cpu")
        peak = replay(problem, {}).peak
        for share in (0.9, 0.7, 0.5):
            choice = choose(problem, int(share * peak))
            assert choice.result.peak <= peak
        least = choose(problem, 0).result.peak
        if least > 0.7 * peak:
            return
        budget(module, "fraction=0.85 fuse={}")
        assert module.operation.verify()
        for a, b in zip(want, run_module(module, args), strict=True):
            torch.testing.assert_close(b, a, equal_nan=True)


def random_step(seed: int, forward: int) -> str:
    """A random DAG of products and elementwise ops, and a way back that reads its values from the last to the first."""
    rng = random.Random(seed)
    shape, wide = "tensor<64x64xf32>", "tensor<64x192xf32>"
    lines, values = [], [("%x", shape)]

    def add(op: str, operands: list[str], types: list[str], result: str) -> str:
        name = f"%v{len(lines)}"
        lines.append(
            f'{name} = "gflow.{op}"({", ".join(operands)}) : ({", ".join(types)}) -> {result}'
        )
        return name

    for _ in range(forward):
        a, kind = values[-1] if rng.random() < 0.7 else rng.choice(values)
        if rng.random() < 0.5:
            new = add(rng.choice(["tanh", "exp"]), [a], [kind], kind), kind
        else:
            w, result = ("%u", wide) if kind == shape and rng.random() < 0.4 else ("%w", shape)
            if kind == wide:
                w, result = "%d", shape
            of = {"%u": "tensor<64x192xf32>", "%w": shape, "%d": "tensor<192x64xf32>"}[w]
            new = add("matmul", [a, w], [kind, of], result), result
        values.append(new)
    gradient = "%g"
    for a, kind in reversed(values[1:]):
        if kind == wide:
            a = add("matmul", [a, "%d"], [wide, "tensor<192x64xf32>"], shape)
        gradient = add("mul", [gradient, a], [shape, shape], shape)
        gradient = add("matmul", [gradient, "%w"], [shape, shape], shape)
    arguments = f"%x: {shape}, %g: {shape}, %w: {shape}, %u: {wide}, %d: tensor<192x64xf32>"
    body = "\n".join(lines)
    return f"func.func @step({arguments}) -> {shape} {{\n{body}\nreturn {gradient} : {shape}\n}}"


@pytest.mark.parametrize("seed", range(6))
def test_search_beside_all_choices(seed: int) -> None:
    """The search finds the least time of all choices, and no bound of the solver is above it."""
    with CONTEXT, ir.Location.unknown():
        module = ir.Module.parse(random_step(seed, 9))
        run_pipeline(module, "builtin.module(func.func(gflow-fuse,gflow-schedule))")
        problem = read_problem(module.body.operations[0].operation.opview, "cpu")
        whole = replay(problem, {}).peak
        gaps = {v: g[0] for v in range(len(problem.size)) if (g := gap_of(problem, v)) is not None}
        assert 3 <= len(gaps) <= 9
        every = []
        for chosen in product((False, True), repeat=len(gaps)):
            result = replay(problem, {v: t for (v, t), on in zip(gaps.items(), chosen) if on})
            every.append((result.peak, result.seconds))
        least = min(peak for peak, _ in every)
        assert least < whole
        for share in (0.0, 0.3, 0.6):
            limit = int(least + share * (whole - least))
            optimum = min(time for peak, time in every if peak <= limit)
            found = search(problem, limit).result
            assert found.peak <= limit
            assert found.seconds <= optimum * (1 + 1e-9)
            bound = lower_bound(problem, limit, intervals=100)
            assert bound.seconds <= found.seconds * (1 + 1e-6)
            assert bound.seconds >= 0.0


@pytest.mark.parametrize("name", MODELS)
def test_live_bytes_are_those_of_the_planner(name: str) -> None:
    """A replay without second runs sees the bytes that memory planning sees."""
    module = scheduled(traced(name))
    with CONTEXT:
        function = module.body.operations[0].operation.opview
        found = replay(read_problem(function, "cpu"), {})
        assert found.peak == lives_of(function).lower_bound
        assert not found.runs


def test_an_infeasible_budget_says_the_least() -> None:
    graph = Training(sequence(Block, 4))
    graph.config.set_memory_budget(1000)
    with pytest.raises(GraphError) as caught:
        graph(torch.randn(256, 32))
    message = str(caught.value)
    assert "the memory budget of 1000 bytes cannot be met" in message
    assert len(caught.traceback) < 4  # none of the compiler's frames
    found = re.search(r"the least that was found is ([0-9]+) bytes, and ([0-9]+) bytes", message)
    assert found is not None
    least, needed = int(found[1]), int(found[2])
    assert 1000 < least < needed
    assert message.endswith(f"config.set_memory_budget({least})")
    again = Training(sequence(Block, 4))
    again.config.set_memory_budget(least)
    again(torch.randn(256, 32))
    assert number(again.ir(generic=True), "gflow.arena_size") <= least


@pytest.mark.parametrize("name", MODELS)
def test_budgets_for_a_gpu(name: str) -> None:
    """Every budget that is met has kernels for a GPU, too."""
    text = traced(name)
    for fraction in (0.8, 0.6):
        options = CompileOptions(target="cuda:90", passes=PipelineOptions(memory_fraction=fraction))
        with CONTEXT:
            module = ir.Module.parse(text)
        try:
            program = compile_module(module, options)
        except PipelineError as error:
            if "cannot be met" in str(error):
                continue
            raise
        assert program.steps
        assert "gflow.recomputed" in program.ir


def test_budgets_as_users_write_them() -> None:
    class Graph(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    graph = Graph()
    for given, want in {
        "2GB": (2_000_000_000, 0.0),
        "512MiB": (512 * 2**20, 0.0),
        "1.5 kb": (1500, 0.0),
        "4096": (4096, 0.0),
        12345: (12345, 0.0),
        0.5: (0, 0.5),
        1.0: (0, 1.0),
        2e9: (2_000_000_000, 0.0),
    }.items():
        graph.config.set_memory_budget(given)  # type: ignore[arg-type]
        passes = graph.config.resolved().passes
        assert (passes.memory_budget, passes.memory_fraction) == want
    for wrong in ("2 gigs", "", 0, -1, 0.0, True, None, "0.5XB"):
        with pytest.raises(flow.GraphError, match=r"set_memory_budget\(\) takes bytes"):
            graph.config.set_memory_budget(wrong)  # type: ignore[arg-type]
    graph.config.set_memory_budget("1GB")
    torch.testing.assert_close(graph(torch.ones(3)), torch.ones(3).exp())


@pytest.mark.sweep
def test_search_grows_with_the_program() -> None:
    """By the number of functions called: eight times the depth, under the square of the work."""

    def work(depth: int) -> tuple[int, int]:
        module = scheduled(traced("mlp", depth))
        with CONTEXT:
            problem = read_problem(module.body.operations[0].operation.opview, "cpu")
            limit = int(0.5 * replay(problem, {}).peak)
            return len(problem.reads), calls(lambda: choose(problem, limit))

    small, large = work(6), work(48)
    assert math.log(large[1] / small[1]) / math.log(large[0] / small[0]) < 1.9
