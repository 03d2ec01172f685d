"""Sizes that vary from call to call with engines: one program, results as those of eager; files with names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ir_interpreter import DTYPES
from safetensors import safe_open
from stablehlo_interpreter import interpret
from test_engines import Block, calls_of
from torch import Tensor

import gflow as flow
from gflow import nn
from gflow.dialects.dialect import make_context
from gflow.dialects.extents import Extent
from gflow.dialects.mlir import PassManager, ir, stablehlo
from gflow.dialects.program import EngineStep
from gflow.dialects.types import TensorType
from gflow.runtime.engines.handed import handed_over
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

SWITCHES = {"xla": "enable_xla_jit", "onnxruntime": "enable_onnxruntime", "openvino": "enable_openvino"}  # fmt: skip


class Predict(nn.Graph):
    def __init__(self, model: nn.Module, engine: str) -> None:
        super().__init__()
        self.model = model
        if engine:
            getattr(self.config, SWITCHES[engine])()

    def build(self, x: Tensor) -> Any:
        return self.model(x)


class Causal(nn.Module):
    """Positions, a causal mask, running sums and positions of maxima, along a length that varies."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.project = nn.Linear(32, 96)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = self.project(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.cumsum(2), y.argmax(-1), x.mean() + tokens.shape[1]


class Rest(nn.Module):
    """Of two rows none are left: maxima, sums and results without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(512, 512), nn.LayerNorm(512)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm(self.project(x[2:]))
        return y, (y > 0).any(0), y.sum(0)


class Positions(nn.Module):
    """Ops that take sizes as numbers, along two dimensions that vary."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, m = x.shape
        scores = torch.softmax(x + torch.arange(m), 1)[: n - 1]
        return scores.reshape(-1), nn.functional.pad(x.mean(0) * n, (1, m))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3),
                         nn.MaxPool2d((2, 1)))  # fmt: skip


Call = tuple[Callable[[], nn.Module], Callable[..., Tensor], tuple[int, ...], list[tuple[int, ...]]]
CASES: dict[str, Call] = {
    "batch": (Block, lambda n: torch.randint(0, 50, (n, 12)), (0,), [(3,), (16,)]),
    "batch of images": (convolutions, lambda n: torch.randn(n, 3, 12, 12), (0,), [(2,), (5,)]),
    "height": (convolutions, lambda n: torch.randn(2, 3, n, 12), (2,), [(8,), (12,)]),
    "length": (Causal, lambda n: torch.randint(0, 50, (4, n)), (1,), [(3,), (8,), (16,)]),
    "small": (Positions, lambda n, m: torch.randn(n, m), (0, 1), [(3, 5), (8, 4)]),
    "empty": (Rest, lambda n: torch.randn(n, 512), (0,), [(6,), (2,), (5,), (2,)]),
    "both": (Causal, lambda n, m: torch.randint(0, 50, (n, m)), (0, 1), [(3, 5), (8, 4)]),
}


def marked(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for n, dim in enumerate(dims):  # with ranges of their own, two are two sizes
        x = flow.dynamic_dim(x, dim, min=2 + n, max=16)
    return x


@pytest.mark.parametrize(
    ("name", "engine"),
    [("both", "onnxruntime"), ("empty", "onnxruntime"), ("empty", "openvino"), ("both", "xla")],
)
def test_one_program_for_all_sizes(name: str, engine: str) -> None:
    check(name, engine)


@pytest.mark.sweep
@pytest.mark.parametrize("engine", list(SWITCHES))
@pytest.mark.parametrize("name", list(CASES))
def test_more_programs(name: str, engine: str) -> None:
    check(name, engine)


def check(name: str, engine: str) -> None:
    if not available(engine):
        pytest.skip(f"{engine} is not installed")
    make, data, dims, sizes = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    graph = Predict(model, engine)
    with torch.no_grad():
        for size in sizes:
            x = data(*size)
            torch.testing.assert_close(graph(marked(x, dims)), model(x), rtol=1e-4, atol=1e-5)
    assert len(graph.explain_recompiles()) == 1
    calls = calls_of(graph)
    assert calls
    # XLA has code for each size, the others have one model
    assert all(bool(c.step.numbers) == (engine == "xla") for c in calls)
    assert all(r.read < 1 << 30 for r in graph.explain().engines)  # at the largest size


class Train(nn.Graph):
    def __init__(self, xla: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        if xla:
            self.config.enable_xla_jit()

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")
def test_training_and_a_saved_graph(tmp_path: Path) -> None:
    """Losses of batches of several sizes are those of our kernels; a graph that is loaded goes on alike."""
    torch.manual_seed(1)
    batches = [(torch.randn(n, 16), torch.randint(0, 4, (n,))) for n in (5, 8, 5)]
    losses = []
    for xla in (False, True):
        graph = Train(xla)
        torch.manual_seed(2)  # of dropout
        losses.append([float(graph(marked(x, (0,)), marked(y, (0,)))) for x, y in batches])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    flow.save(graph, tmp_path / "step")
    loaded = flow.load(tmp_path / "step")
    x, y = torch.randn(11, 16), torch.randint(0, 4, (11,))  # a size that was not there
    torch.manual_seed(3)
    want = float(graph(marked(x, (0,)), marked(y, (0,))))
    torch.manual_seed(3)
    assert float(loaded(x, y)) == pytest.approx(want, rel=1e-4)


def test_an_onnx_file_has_names_of_sizes(tmp_path: Path) -> None:
    """Both engines' own tools run it at sizes that no call had."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    openvino = pytest.importorskip("openvino")
    model = Causal().eval()
    graph, path = Predict(model, ""), tmp_path / "model.onnx"
    with torch.no_grad():
        graph(marked(torch.randint(0, 50, (3, 5)), (0, 1)))
        flow.save(graph, path, format="onnx")
    onnx.checker.check_model(str(path), full_check=True)
    (given,) = onnx.load(path).graph.input  # the sizes are no inputs
    names = [d.dim_param for d in given.type.tensor_type.shape.dim]
    assert all(names)
    assert len(set(names)) == 2
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    run = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = torch.randint(0, 50, (7, 16))
    with torch.no_grad():
        want = model(x)
    for found in (session.run(None, {"x": x.numpy()}), [*run([x.numpy()]).values()]):
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(torch.from_numpy(a.copy()).to(b.dtype), b, rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("name", ["small"])
def test_a_stablehlo_file_has_dynamic_dimensions(name: str, tmp_path: Path) -> None:
    check_file(name, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("name", list(CASES))
def test_more_stablehlo_files(name: str, tmp_path: Path) -> None:
    check_file(name, tmp_path)


def check_file(name: str, folder: Path) -> None:
    """Run at a size that no call had: as it is by the reference interpreter, refined by JAX's own code by XLA, and read
    back."""
    make, data, dims, sizes = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    graph, path = Predict(model, ""), folder / "model.mlir"
    x = data(*sizes[-1])
    with torch.no_grad():
        graph(marked(data(*sizes[0]), dims))
        want = model(x)
        flow.save(graph, path, format="stablehlo")
    values, metadata = tensors_of(path)
    assert metadata["dimensions"].keys() == {"x"}
    args = [x if n == "x" else values[n] for n in metadata["arguments"]]
    text = path.read_text()
    assert "?" in text.split("{", 2)[1]
    run = [by_reference, by_jax] if available("xla") else [by_reference]
    for found in (f(text, args) for f in run):
        expected = list(want) if isinstance(want, tuple) else [want]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if name != "batch of images":  # a maximum over windows is not read
        read = flow.from_stablehlo(text, shapes=[a.shape for a in args])
        with torch.no_grad():
            torch.testing.assert_close(read(*args), want, rtol=1e-4, atol=1e-4)


def tensors_of(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(f"{path}.safetensors", "pt") as file:
        metadata = {key: json.loads(value) for key, value in file.metadata().items()}
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def by_reference(text: str, args: list[Tensor]) -> list[Tensor]:
    """Dynamic ops run as they stand; the interpreter has no assertions."""
    with parsed(text) as module:
        for op in list(module.body.operations[0].regions[0].blocks[0].operations):
            if op.operation.name == "stablehlo.custom_call":
                op.operation.erase()
        return interpret(module, args)


def by_jax(text: str, args: list[Tensor]) -> list[Tensor]:
    """Refined, assertions checked, by JAX; compiled by XLA."""
    mlir = pytest.importorskip("jax.extend.mlir")
    names = {dtype: name for name, dtype in DTYPES.items()}
    with parsed(text) as module:
        types = [str(TensorType(tuple(a.shape), names[a.dtype]).mlir()) for a in args]
        stablehlo().register_stablehlo_passes()
        passes = f"builtin.module(stablehlo-refine-arguments{{types={','.join(types)}}})"
        PassManager.parse(passes).run(module.operation)
        results = len(ir.FunctionType(module.body.operations[0].type).results)
        code = load_code("xla", mlir.refine_polymorphic_shapes(str(module).encode()))
    return code.run(args, [None] * results)


@contextmanager
def parsed(text: str) -> Iterator[ir.Module]:
    context = make_context()
    stablehlo().register_dialect(context)
    with context, ir.Location.unknown():
        yield ir.Module.parse(text)


@pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")
def test_a_stablehlo_file_trains_at_other_sizes(tmp_path: Path) -> None:
    """Steps of the file at sizes of the range are steps of the graph; at others JAX refuses it, and so do we."""
    graph, path = Train(False), tmp_path / "step.mlir"
    graph.model.to(nn.Module).eval()  # no dropout
    batches = [(torch.randn(n, 16), torch.randint(0, 4, (n,))) for n in (5, 8, 11)]
    x, y = batches[0]
    graph(marked(x, (0,)), marked(y, (0,)))
    flow.save(graph, path, format="stablehlo")
    values, metadata = tensors_of(path)
    assert metadata["sizes"] == {"n": [2, 16]}
    for x, y in batches:
        values |= {"x": x, "y": y}
        made = by_jax(path.read_text(), [values[n] for n in metadata["arguments"]])
        torch.testing.assert_close(
            made[0], graph(marked(x, (0,)), marked(y, (0,))), rtol=1e-5, atol=1e-6
        )
        values |= {
            r["updates"]: t.clone() for r, t in zip(metadata["results"], made) if r["updates"]
        }
    for n, m, jax, own in ((20, 20, "n must be 2 to 16", "n must be 2 to 16, and is 20"),
                           (5, 6, "refinement failed", "cannot be read for these shapes")):  # fmt: skip
        values |= {"x": torch.randn(n, 16), "y": torch.zeros(m, dtype=torch.long)}
        args = [values[n] for n in metadata["arguments"]]
        with pytest.raises(RuntimeError, match=jax):
            by_jax(path.read_text(), args)
        with pytest.raises(flow.GraphError, match=own):
            flow.from_stablehlo(path.read_text(), shapes=[a.shape for a in args])


class Tanh(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.config.enable_xla_jit()

    def build(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


@pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")
def test_a_result_stays_in_memory_of_xla_for_sizes_at_which_it_is_dense() -> None:
    """Strides that are row-major at both ends of the range, and not between."""
    graph = Tanh()
    graph(flow.dynamic_dim(torch.randn(8, 65536), 0, min=2, max=10))
    program = graph._checked().latest.compiled.program
    assert program is not None
    (step,) = (s for s in program.steps if isinstance(s, EngineStep))
    (output,) = step.outputs
    row = Extent((65556, -12, 1))  # 65536 at both ends
    other = replace(step, outputs=(replace(output, strides=(row, 1)),))
    changed = replace(program, steps=[other if s is step else s for s in program.steps])
    for n in (2, 5, 10):
        assert len(handed_over(program, n)) == 1
        assert len(handed_over(changed, n)) == (n != 5)
