"""gflow-split-softmax: cross-entropy of a linear layer and its gradients, in the interpreter, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ir_interpreter import run_module
from torch import Tensor, nn
from torch.nn import functional as F
from triton_interpreter import run_program

import gflow
from gflow.compiler import CompileOptions
from gflow.compiler.driver.compile import compile_module
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.emit.triton.accesses import accesses
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.runtime.cuda.fake import dry_run

pytest.importorskip("triton")

SMALL = "gflow-split-softmax{least-columns=2 least-bytes=0}"
PIPELINE = pipeline_for("cuda:90").replace("gflow-split-softmax", SMALL)
WITHOUT = pipeline_for("cuda:90").replace("gflow-split-softmax,", "")

Loss = Callable[[Tensor, Tensor], Tensor]


class Head(nn.Module):
    """Scores of classes, from values that depend on a parameter."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.25 * torch.randn(width))
        self.linear = nn.Linear(width, classes, bias=False)
        self.register_buffer("mask", torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale) + self.mask


class Train(gflow.nn.Graph):
    def __init__(self, model: nn.Module, loss: Loss, pipeline: str) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.config.compile_options = CompileOptions(target="cuda:90", pipeline=pipeline)
        # the buffers of the momentum are the gradients
        self.sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
        self.add_optimizer(self.sgd)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(self.model(x).float(), y)
        loss.backward()
        return loss


def step(
    model: Head, loss: Loss, x: Tensor, y: Tensor, pipeline: str
) -> tuple[dict[str, Tensor], Any]:
    """The loss and the gradients of a step, from the same parameters each time; and the program."""
    kept = {n: v.clone() for n, v in model.state_dict().items()}
    graph = Train(model, loss, pipeline)
    found = {"loss": graph(x, y).double()}
    for n, p in model.named_parameters():
        found[n] = graph.sgd.state[p]["momentum_buffer"].double()
    model.load_state_dict(kept)
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    return found, plan.compiled.program


def exact(model: Head, loss: Loss, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The loss and the gradients in float64, from the hidden values in half precision that all of them have."""
    wide = Head(model.linear.in_features, model.linear.out_features).double()
    wide.load_state_dict({n: v.double() for n, v in model.state_dict().items()})
    hidden = (x * model.scale).detach().double() / wide.scale.detach()
    found = loss(wide(hidden), y)
    found.backward()
    return {"loss": found.detach(), **{n: p.grad for n, p in wide.named_parameters()}}


def weighted(x: Tensor, y: Tensor) -> Tensor:
    """Rows with weights of their own, of which one is 0."""
    weights = torch.linspace(0.0, 2.0, len(y), dtype=x.dtype)
    return (F.cross_entropy(x, y, reduction="none") * weights).sum() / len(y)


#: a loss, and the standard deviation of the scores
CASES: dict[str, tuple[Loss, float]] = {
    "mean": (F.cross_entropy, 1.0),
    "large scores": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), 40.0),
    "ignored rows": (lambda x, y: F.cross_entropy(x, y, ignore_index=3), 4.0),
    "weights of rows": (weighted, 2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are at most those of a softmax over whole rows, and of the rounding of results."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    loss, deviation = CASES[case]
    torch.manual_seed(0)
    rows, width, classes = 36, 16, 150
    model = Head(width, classes).to(torch.bfloat16)
    model.linear.weight.data = (torch.randn(classes, width) * deviation / width**0.5).bfloat16()
    x, y = torch.randn(rows, width).bfloat16(), torch.randint(classes, (rows,))
    y[:5] = 3
    want = exact(model, loss, x, y)
    found, program = step(model, loss, x, y, PIPELINE)
    whole, before = step(model, loss, x, y, WITHOUT)
    assert program.ir.count('"gflow.scaled_matmul"') == 2
    assert dry_run(program, accesses(program), calls=1).runs == 1
    assert "softmax_runs" not in before.ir

    def error(of: dict[str, Tensor], name: str) -> float:
        return float((of[name] - want[name]).norm() / want[name].norm())

    assert error(found, "loss") <= error(whole, "loss") + 1e-5
    for name in ("scale", "linear.weight"):
        assert error(found, name) <= 1.05 * error(whole, name) + 2**-10, name


def test_certain_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient at the target is 1 less a probability next to 1: it is not rounded before the difference."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    width = classes = 130
    model = Head(width, classes).to(torch.bfloat16)
    model.scale.data.fill_(1)
    model.linear.weight.data = 12 * torch.eye(classes).bfloat16()
    y = torch.randperm(classes)[:20]
    x = F.one_hot(y, classes).bfloat16()
    want = exact(model, F.cross_entropy, x, y)
    found, _ = step(model, F.cross_entropy, x, y, PIPELINE)
    for name in ("scale", "linear.weight"):
        torch.testing.assert_close(found[name], want[name], rtol=2**-6, atol=0.0)


def test_infinite_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that are left out by -inf, a whole run among them; and a row with NaN, which spreads as in eager."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    torch.manual_seed(0)
    model = Head(16, 300).to(torch.bfloat16)
    model.mask[100:270] = -torch.inf
    x, y = torch.randn(20, 16).bfloat16(), torch.randint(100, (20,))
    want = exact(model, F.cross_entropy, x, y)
    found, program = step(model, F.cross_entropy, x, y, PIPELINE)
    assert "softmax_runs" in program.ir
    torch.testing.assert_close(found["loss"], want["loss"], rtol=1e-3, atol=0.0)
    torch.testing.assert_close(found["linear.weight"], want["linear.weight"], rtol=2**-6, atol=1e-4)
    assert not found["linear.weight"][100:270].any()
    x[3, 5] = torch.nan
    found, _ = step(model, F.cross_entropy, x, y, PIPELINE)
    assert found["loss"].isnan()
    assert found["linear.weight"][:100].isnan().all()


KEPT: dict[str, Loss] = {
    "smoothed labels": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "another use of scores": lambda x, y: F.cross_entropy(x, y) + (x**2).mean(),
    "probabilities": lambda x, y: F.cross_entropy(x, F.one_hot(y, x.shape[1]).float()),
}


@pytest.mark.parametrize("case", KEPT)
def test_other_losses_are_kept(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    model = Head(16, 40).to(torch.bfloat16)
    _, program = step(model, KEPT[case], torch.randn(4, 16).bfloat16(), torch.arange(4), PIPELINE)
    assert "softmax_runs" not in program.ir


CONTEXT = make_context()

TEXT = """
func.func @f(%x: tensor<37x50xbf16>, %w: tensor<50x21xbf16>, %s: tensor<{scale}xf32>) -> tensor<37x21xbf16> {{
  %0 = "gflow.scaled_matmul"(%x, %w, %s) {{along = "{along}", run = {run} : i64}}
      : (tensor<37x50xbf16>, tensor<50x21xbf16>, tensor<{scale}xf32>) -> tensor<37x21xbf16>
  return %0 : tensor<37x21xbf16>
}}
"""


@pytest.mark.parametrize(("along", "run", "scale"), [
    ("columns", 64, (1, 37)), ("columns", 7, (8, 37)), ("rows", 128, (1, 50)), ("rows", 5, (8, 50)),
])  # fmt: skip
def test_scaled_products(along: str, run: int, scale: tuple[int, int]) -> None:
    """Runs that a block lies within, and runs that it crosses."""
    torch.manual_seed(0)
    text = TEXT.format(along=along, run=run, scale="x".join(map(str, scale)))
    args = [torch.randn(37, 50).bfloat16(), torch.randn(50, 21).bfloat16(), torch.rand(scale)]
    with CONTEXT:
        module = ir.Module.parse(text)
        (want,) = run_module(module, args)
        program = compile_module(module, CompileOptions(target="cuda:90"))
    (found,) = run_program(program, args)
    torch.testing.assert_close(found, want, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("in_place", [True, False])
def test_put(in_place: bool) -> None:
    """Elements of rows, at columns of which some are none; over its operand where that is not read again."""
    torch.manual_seed(0)
    last = "%1" if in_place else "%0, %1"
    results = "tensor<9x600xf32>" if in_place else "tensor<9x600xf32>, tensor<9x600xf32>"
    text = f"""
func.func @f(%x: tensor<9x600xf32>, %i: tensor<9xi32>, %s: tensor<9xf32>) -> ({results}) {{
  %0 = "gflow.exp"(%x) : (tensor<9x600xf32>) -> tensor<9x600xf32>
  %p = "gflow.put"(%0, %i, %s) : (tensor<9x600xf32>, tensor<9xi32>, tensor<9xf32>) -> tensor<9x600xf32>
  %1 = "gflow.neg"(%p) : (tensor<9x600xf32>) -> tensor<9x600xf32>
  return {last} : {results}
}}
"""
    index = torch.tensor([0, 599, 600, -1, 5, 5, 300, -100, 17], dtype=torch.int32)
    args = [torch.randn(9, 600), index, torch.randn(9)]
    with CONTEXT:
        module = ir.Module.parse(text)
        want = run_module(module, args)
        program = compile_module(module, CompileOptions(target="cuda:90"))
    (source,) = [k.source for k in program.triton.values() if "put" in k.name]
    assert ("old = " in source) != in_place
    for found, expected in zip(run_program(program, args), want):
        torch.testing.assert_close(found, expected)
