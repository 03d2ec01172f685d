"""StableHLO, op by op: what is written runs on the reference interpreter and on XLA as the op does in eager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from codegen_harness import Arg, b, make
from engine_cases import EngineCase, all_cases, check
from safetensors import safe_open
from stablehlo_interpreter import interpret

import gflow as flow
from gflow import nn
from gflow.compiler.engines.form import NOWHERE, ON_RANKS, EngineError
from gflow.compiler.engines.forms import FORMS
from gflow.compiler.engines.stablehlo.write import portable, write_function
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

needs_xla = pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")


def written(case: EngineCase) -> ir.Module:
    return write_function(entry_function(case.module)).module


def by_xla(case: EngineCase) -> list[torch.Tensor]:
    module = written(case)  # held: what lies in a module goes with it
    results = len(module.body.operations[0].type.results)
    return load_code("xla", portable(module)).run(case.args, [None] * results)


def test_every_op_has_a_case() -> None:
    assert set(OPS) - {case.op for case in all_cases()} == (set(NOWHERE) | set(ON_RANKS)) - {"aten"}


def test_share_of_the_dialect() -> None:
    form = FORMS["stablehlo"]
    ops = {name for name in OPS if NOWHERE.get(name) != "part of programs for GPUs"}
    assert len(ops - set(NOWHERE) - set(form.without)) >= 0.95 * len(ops)


def test_interpreter() -> None:
    check(all_cases(), lambda case: interpret(written(case), case.args))


@needs_xla
def test_xla() -> None:
    check(all_cases()[::12], by_xla)


@needs_xla
@pytest.mark.sweep
def test_xla_with_all() -> None:
    check(all_cases(), by_xla)


def test_what_has_no_form_is_named() -> None:
    case = make("f", [Arg((4, 4))], lambda x: [_cholesky(x)])
    with pytest.raises(EngineError, match=r"(?s)cannot be written as StableHLO:.*gflow\.aten"):
        write_function(entry_function(case.module))


def _cholesky(x: ir.Value) -> ir.Value:
    from gflow.dialects import builder

    attrs = {"overload": "aten.linalg_cholesky.default", "args": '[[{"t": 0}], {}]'}
    return builder.build_op("aten", [x], attrs, [TensorType((4, 4), "f32")]).results[0]


def test_the_function_stays_as_it_is() -> None:
    case = make("f", [Arg((4, 8))], lambda x: [b("erf", x)])
    before = str(case.module)
    write_function(entry_function(case.module))
    assert str(case.module) == before


class Train(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        self.loss = nn.CrossEntropyLoss()
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-2))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


@needs_xla
def test_saved_step_trains(tmp_path: Path) -> None:
    """Three steps of the file, by XLA alone, are three steps of the graph."""
    graph = Train()
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    graph(x, y)
    flow.save(graph, tmp_path / "step.stablehlo", format="stablehlo")
    flow.save(graph, tmp_path / "step.mlir", format="stablehlo")
    assert (tmp_path / "step.mlir").read_text().startswith("module")
    with safe_open(tmp_path / "step.stablehlo.safetensors", "pt") as file:
        names, results = (json.loads(file.metadata()[k]) for k in ("arguments", "results"))
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    values |= {"x": x, "y": y}
    code = load_code("xla", (tmp_path / "step.stablehlo").read_bytes())
    for _ in range(3):
        made = code.run([values[n] for n in names], [None] * len(results))
        values |= {r["updates"]: t.clone() for r, t in zip(results, made) if r["updates"]}
        torch.testing.assert_close(made[0], graph(x, y), rtol=1e-5, atol=1e-6)
    for name, parameter in graph.model.named_parameters():
        torch.testing.assert_close(
            values[f"model.{name}"], parameter.detach(), rtol=1e-4, atol=1e-6
        )


def test_save_refuses(tmp_path: Path) -> None:
    graph = Train()
    with pytest.raises(flow.GraphError, match="call it once"):
        flow.save(graph, tmp_path / "x", format="stablehlo")
    with pytest.raises(flow.GraphError, match="takes format="):
        flow.save(graph, tmp_path / "x", format="tflite")
    with pytest.raises(TypeError, match="format is for graphs"):
        flow.save({}, tmp_path / "x", format="stablehlo")
