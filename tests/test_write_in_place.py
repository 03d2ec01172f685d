"""gflow-write-in-place: parts of a concatenation are written where they belong, with eager's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ir_interpreter import run_module
from random_ir import random_args
from torch import nn
from triton_interpreter import run_program

import gflow as flow
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.emit.triton.accesses import accesses
from gflow.compiler.memory.plan_check import problems
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.execution.executor import programs_for
from gflow.runtime.cuda.fake import dry_run

PARTS = (Path(__file__).parents[1] / "lit_tests/write-in-place/parts.mlir").read_text()
HALVES = PARTS.split("// A part that")[0]


def test_halves_and_their_transpose() -> None:
    with make_context():
        module = ir.Module.parse(HALVES)
        args = [torch.randn(2, 4, 8, 64), torch.randn(512, 8)]
        (expected,) = run_module(module, args)
        program = compile_module(module, CompileOptions(target="cuda:90"))
    assert program.ir.count("gflow.in_place") == 2
    (found,) = run_program(program, args)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert dry_run(program, accesses(program), calls=2).runs == 2


@pytest.mark.parametrize("name", ["bucket", "shifted"])
def test_products_and_sums(name: str) -> None:
    (text,) = [part for part in PARTS.split("\nfunc.func") if part.startswith(f" @{name}(")]
    with make_context():
        module = ir.Module.parse("func.func" + text)
        args = [torch.randn(32, 16), torch.randn(32, 24), torch.randn(408, 8)]
        (expected,) = run_module(module, args)
        program = compile_module(module, CompileOptions(target="cuda:90"))
    assert program.ir.count("gflow.in_place") == (name == "bucket")
    (found,) = run_program(program, args)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def planned() -> ir.Module:
    module = ir.Module.parse(HALVES)
    run_pipeline(module, pipeline_for("cuda:90"))
    return module


def test_a_plan_with_a_value_over_parts_is_refused() -> None:
    with make_context():
        module = planned()
        (function,) = module.body.operations
        assert not list(problems(function))
        block = function.operation.regions[0].blocks[0]
        first = next(op.operation for op in block.operations if "gflow.fused" in op.operation.name)
        planned_at = {"gflow.buffers": ir.ArrayAttr.get([ir.StringAttr.get("arena:0")])}
        with (
            ir.InsertionPoint(first),
            first.location,
        ):  # a value that is read after the parts are written
            x = block.arguments[1]
            early = ir.Operation.create("gflow.neg", [x.type], [x], planned_at)
        product = next(op.operation for op in block.operations if "matmul" in op.operation.name)
        with ir.InsertionPoint(product), first.location:
            ir.Operation.create("gflow.neg", [x.type], [early.results[0]], planned_at)
        found = [text for text, _ in problems(function)]
        assert "overwrites result 0 of gflow.neg" in found[0]


ROTATION = (Path(__file__).parents[1] / "lit_tests/sink-concatenations/sink.mlir").read_text()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_parts_of_elementwise_ops(number: int) -> None:
    text = "func.func" + ROTATION.split("\nfunc.func")[number + 1]
    with make_context():
        module = ir.Module.parse(text)
        args = random_args(module)
        expected = run_module(module, args)
        run_pipeline(module, "builtin.module(func.func(gflow-sink-concatenations))")
        for found, wanted in zip(run_module(module, args), expected, strict=True):
            assert torch.equal(found, wanted)


class Attention(nn.Module):
    """Queries, keys and values of one product; positions turned, and keys shared by two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 64)
        self.out = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split((32, 16, 16), dim=2)
        q, k, v = (t.unflatten(2, (-1, 8)).transpose(1, 2) for t in (q, k, v))
        one, two = q.chunk(2, dim=-1)
        q = q * 0.5 + torch.cat((-two, one), dim=-1) * 0.25
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Step(flow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.mark.filterwarnings("ignore")
def test_gradients_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    model, eager = Attention(), Attention()
    eager.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    graph = Step(model)
    graph.config.compile_options = CompileOptions(target="cuda:90")
    for _ in range(2):
        x = torch.randn(2, 10, 32)
        loss = eager(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x), loss.detach(), rtol=1e-4, atol=1e-5)
    for found, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    plan = graph._state.latest
    (program,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    assert program.ir.count("gflow.in_place") >= 4  # both rotations, and gradients of the three
    assert dry_run(program, accesses(program), calls=2).runs == 2


def test_a_part_that_cannot_lie_there() -> None:
    text = HALVES.replace("{dim = 3 : i64,", "{dim = 3 : i64, gflow.in_place,").replace(
        '"gflow.concatenate"(%2, %3)', '"gflow.concatenate"(%2, %2)'
    )
    with make_context():
        module = ir.Module.parse(text)
        with pytest.raises(PipelineError, match="cannot lie in the result"):
            run_pipeline(module, "builtin.module(func.func(gflow-plan-memory))")
