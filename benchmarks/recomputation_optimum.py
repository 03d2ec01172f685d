"""Memory budgets beside proven bounds, and beside blocks that are marked by hand: predicted times of training steps.

    python -m benchmarks.checkpointing --optimum [--models decoder,unet] [--seconds 60] [--json FILE]

The budgets of a model lie between the least arena that the compiler finds and the arena without recomputation. For
each one, the real pipeline compiles the step. Its predicted time and its planned arena stand beside a lower bound of
the time, which a solver proves for the same kernels, sizes and budget (`benchmarks/recomputation_bound.py`).
Recomputed kernels are fused with their readers afterwards, which the bound does not include: a time may be below it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gflow as flow
from benchmarks.recomputation_bound import lower_bound
from benchmarks.workloads.items import loss_of
from benchmarks.workloads.networks import Decoder, ResNet18, UNet
from examples.mobilenet_v2 import MobileNetV2
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.passes.recomputation.problem import read_problem
from gflow.compiler.passes.recomputation.statistics import store_statistics
from gflow.compiler.targets import DEVICES, parse_target
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir

#: the budgets, as shares of the way from the least arena to the arena without recomputation
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)

#: a model, its input and target, and the modules that are marked by hand
Made = tuple[nn.Module, Tensor, Tensor, list[nn.Module]]


def _decoder() -> Made:
    model = Decoder(12, 256, 4, 4096, 128)
    tokens = torch.randint(4096, (2, 4, 128))
    return model, tokens[0], tokens[1], [*model.layers]


def _resnet() -> Made:
    model = ResNet18(10)
    return model, torch.randn(32, 3, 64, 64), torch.randint(10, (32,)), [*model.blocks]


def _mobilenet() -> Made:
    model = MobileNetV2(10, dropout=0.0)
    blocks = [m for m in model.modules() if type(m).__name__ == "InvertedResidual"]
    return model, torch.randn(64, 3, 32, 32), torch.randint(10, (64,)), blocks


def _unet() -> Made:
    model = UNet()
    return (
        model,
        torch.randn(4, 3, 64, 64),
        torch.randint(8, (4, 64, 64)),
        [*model.down, *model.join],
    )


MODELS: dict[str, Callable[[], Made]] = {
    "decoder": _decoder,
    "resnet18": _resnet,
    "mobilenet_v2": _mobilenet,
    "unet": _unet,
}


class Training(flow.nn.Graph):
    """A training step with AdamW, without recomputation apart from marked modules."""

    def __init__(self, model: nn.Module, marked: list[nn.Module]) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
        blocks: list[Any] = [*marked]
        for block in blocks:
            block.to(flow.nn.graph.GraphModule).activation_checkpointing = True
        self.config.set_recomputation_time(0)

    def build(self, x: Tensor, target: Tensor) -> Tensor:
        loss = loss_of(self.model(x), target)
        loss.backward()
        return loss


def _traced(make: Callable[[], Made], marked: bool) -> str:
    torch.manual_seed(0)
    model, x, target, blocks = make()
    graph = Training(model, blocks if marked else [])
    graph(x, target)
    return graph.ir("traced", generic=True)


def _function(module: ir.Module) -> func.FuncOp:
    function: func.FuncOp = module.body.operations[0].operation.opview
    return function


def _predicted(module: ir.Module) -> float:
    ops = _function(module).regions[0].blocks[0].operations
    return sum(seconds(cost_of(view.operation), DEVICES["cpu"]) for view in ops)


def _compiled(text: str, budget: int = 0) -> tuple[float, int]:
    """The predicted seconds of a step, and its planned arena in bytes."""
    options = PipelineOptions(memory_budget=budget, recomputation_time=0.0)
    pipeline = pipeline_for("cpu", options)
    front, _, rest = pipeline.partition(",gflow-materialize")
    module = ir.Module.parse(text)
    run_pipeline(module, f"{front}))")
    predicted = _predicted(module)
    run_pipeline(module, f"builtin.module(func.func(gflow-materialize{rest}")
    return predicted, ir.IntegerAttr(_function(module).attributes["gflow.arena_size"]).value


def _scheduled(text: str) -> ir.Module:
    """The program that the search reads."""
    pipeline = pipeline_for("cpu", PipelineOptions(recomputation_time=0.0))
    module = ir.Module.parse(text)
    run_pipeline(module, pipeline.partition(",gflow-materialize")[0] + "))")
    store_statistics(_function(module))
    return module


def _least(text: str) -> int:
    """The least arena that the compiler finds, in bytes, from its error for a budget of one byte."""
    try:
        _compiled(text, 1)
    except PipelineError as error:
        found = re.search(r"the least that was found is ([0-9]+) bytes", str(error))
        if found is None:
            raise
        return int(found[1])
    raise AssertionError("a budget of one byte was met")


def measure(name: str, limit_s: float) -> dict[str, Any]:
    """The rows of a model. limit_s: the solver's time limit for each budget."""
    text, by_hand = (_traced(MODELS[name], marked) for marked in (False, True))
    with make_context(), ir.Location.unknown():
        plain, whole = _compiled(text)
        marked, marked_arena = _compiled(by_hand)
        least = _least(text)
        scheduled = _scheduled(text)
        problem = read_problem(_function(scheduled), "cpu", parse_target("cpu"))
        kernels = sum(bool(made) for made in problem.makes)
        print(f"{name}: {kernels} kernels, {whole / 1e6:.1f} MB, least {least / 1e6:.1f} MB")
        rows = []
        budgets = [(f"{share:.0%}", int(least + share * (whole - least))) for share in SHARES]
        for label, budget in [*budgets, ("as marked", marked_arena)]:
            start = time.process_time()
            ours, arena = _compiled(text, budget)
            took = time.process_time() - start
            bound = lower_bound(problem, budget, seconds=limit_s)
            row = {
                "budget": budget,
                "arena": arena,
                "more": ours / plain - 1,
                "bound": bound.seconds / plain,
                "above_bound": ours / (plain + max(bound.seconds, 0.0)) - 1,
                "compile_s": took,
            }
            rows.append({"label": label, **row})
            print(
                f"  {label:>9}: budget {budget / 1e6:.2f} MB, arena {arena / 1e6:.2f} MB, "
                f"time +{row['more']:.2%}, bound +{row['bound']:.2%}: at most {row['above_bound']:.2%} "
                f"above the optimum ({took:.1f} s of processor time to compile)",
                flush=True,
            )
        print(
            f"  by hand: arena {marked_arena / 1e6:.2f} MB, time +{marked / plain - 1:.2%}",
            flush=True,
        )
    return {
        "kernels": kernels,
        "predicted_s": plain,
        "arena": whole,
        "least_arena": least,
        "by_hand": {"arena": marked_arena, "more": marked / plain - 1},
        "budgets": rows,
    }
