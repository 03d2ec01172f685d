"""Graphs of modules on `cuda`, beside eager on the CPU: on the stand-in for CUDA (`scripts/cuda_standin.sh`), or on a
GPU where there is one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gflow as flow
from gflow.runtime.cuda import driver
from gflow.runtime.device import DeviceError

from . import standin

nn = torch.nn
if standin.active():
    standin.install()
elif not torch.cuda.is_available():
    pytest.skip("they are run by scripts/cuda_standin.sh, or on a GPU", allow_module_level=True)

torch.backends.cudnn.allow_tf32 = False  # as on the CPU


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing went wrong in a launch, and no work was left to PyTorch's kernels."""
    torch.manual_seed(0)
    standin.errors.clear()
    standin.own.clear()
    yield
    assert not standin.errors, standin.errors[0]
    assert not standin.own


def to_cuda(module: nn.Module, **kwargs: Any) -> nn.Module:
    """A copy on the device, which has no kernels but to move it there, and no cuDNN, which would join an
    LSTM's weights."""
    with torch.backends.cudnn.flags(enabled=False):
        return copy.deepcopy(module).to(**kwargs).to("cuda")


def through_pytorch(graph: flow.nn.Graph) -> bool:
    return "Through PyTorch (ATen): nothing." not in str(graph.explain())


class Train(flow.nn.Graph):
    def __init__(self, model: nn.Module, loss: Callable[..., Any], optimizer: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.add_optimizer(optimizer)

    def build(self, *args: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.model, *args)
        loss.backward()
        return loss


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return (y[0] if isinstance(y, tuple) else y).square().mean()


def train(
    reference: nn.Module,
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    loss: Callable[..., Any] = square,
    optimizer: Callable[..., torch.optim.Optimizer] = sgd,
    tolerance: float = 1e-5,
    native: bool = True,
    setup: Callable[[flow.nn.Graph], None] | None = None,
    **to: Any,
) -> None:
    """Three steps: the first step by step, the second captured, the third a launch of the CUDA graph."""
    model = to_cuda(reference, **to)
    graph = Train(model, loss, optimizer(model.parameters()))
    if setup is not None:
        setup(graph)
    eager = optimizer(reference.parameters())
    graphs = standin.launched["graph"]
    for _ in range(3):
        args = inputs()
        got = graph(*[a.to("cuda") for a in args])
        eager.zero_grad()
        want = loss(reference, *args)
        want.backward()
        eager.step()
        assert got.device.type == "cuda"
        torch.testing.assert_close(got.cpu(), want.detach(), rtol=tolerance, atol=tolerance)
    assert "As one CUDA graph: yes" in str(graph.explain())
    if standin.active():
        assert standin.launched["graph"] == graphs + 2
    assert not (native and through_pytorch(graph))
    wanted = reference.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            value.cpu(), wanted[name], rtol=tolerance, atol=tolerance, msg=f"{name} differs"
        )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 8), torch.randint(0, 3, (5,))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 12, 12), torch.randint(0, 3, (2,))


def adam(**kwargs: Any) -> Callable[..., torch.optim.Optimizer]:
    def make(parameters: Any) -> torch.optim.Optimizer:
        found, given = list(parameters), dict(kwargs)
        if not found[0].is_cuda:
            given.pop("capturable", None)  # eager PyTorch takes it on a GPU only
        return torch.optim.AdamW(found, lr=0.01, **given)

    return make


@pytest.mark.parametrize(
    "optimizer",
    [
        adam(),
        adam(capturable=True),
        adam(fused=True),
        adam(foreach=False),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
        sgd,
    ],
    ids=["adamw", "capturable", "fused", "foreach", "rmsprop", "adagrad", "sgd"],
)
def test_optimizers(optimizer: Any) -> None:
    train(mlp(), rows, cross_entropy, optimizer, 1e-4)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convnet(layout: torch.memory_format) -> None:
    train(convnet(), images, cross_entropy, memory_format=layout)


class Last(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        n, t, c = h.shape
        q, k, v = self.qkv(self.norm(h)).view(n, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + y.transpose(1, 2).reshape(n, t, c)).flatten(0, 1)


def test_decoder() -> None:
    tokens = lambda: (torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (12,)))  # noqa: E731
    train(Decoder(), tokens, cross_entropy)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: Last(nn.LSTM(4, 5, batch_first=True)), (2, 3, 4)),
        (lambda: Last(nn.GRU(4, 5, batch_first=True)), (2, 3, 4)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 4, 8)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), (2, 3, 6, 6)),
        (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.RMSNorm(16)), (5, 8)),
    ],
    ids=["lstm", "gru", "encoder", "group norm", "transposed", "rms norm"],
)
def test_layers(module: Any, shape: tuple[int, ...]) -> None:
    train(module(), lambda: (torch.randn(shape),))
    for name in [n for n in standin.own if "gru" in n or "reduce" in n]:
        del standin.own[
            name
        ]  # PyTorch has no shape rule for a GRU's cell: tracing runs its kernels


class Attention(nn.Module):
    def __init__(self, dtype: torch.dtype, mask: str, grouped: bool) -> None:
        super().__init__()
        self.weight, self.dtype, self.mask, self.grouped = nn.Linear(16, 16), dtype, mask, grouped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        h = self.weight(x).to(self.dtype)
        q = h.view(n, t, 2, 8).transpose(1, 2)
        k = h[..., :8].reshape(n, t, 1, 8).transpose(1, 2) if self.grouped else q * 0.5
        mask = None
        if self.mask == "bool":
            mask = torch.ones(t, t, device=x.device, dtype=torch.bool).tril()
        if self.mask == "bias":
            mask = torch.arange(t, device=x.device).to(self.dtype).expand(t, t) * 0.1
        causal = self.mask == "causal"
        y = F.scaled_dot_product_attention(q, k, k + 1, mask, 0.0, causal, enable_gqa=self.grouped)
        return y.transpose(1, 2).reshape(n, t, 16).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", ["", "causal", "bool", "bias", "grouped"])
def test_attention(dtype: torch.dtype, mask: str) -> None:
    """PyTorch has another kernel for each of these on a GPU; the graph has one op."""
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    module = Attention(dtype, "causal" if mask == "grouped" else mask, mask == "grouped")
    train(module, lambda: (torch.randn(2, 8, 16),), tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype):
            return F.cross_entropy(model(x), y)

    train(mlp(), rows, loss, tolerance=2e-2)


def test_mixed_precision_with_a_scaler() -> None:
    def setup(graph: flow.nn.Graph) -> None:
        graph.config.enable_amp(True, dtype=torch.float16)
        graph.set_grad_scaler(torch.amp.GradScaler("cuda"))

    train(mlp(), rows, cross_entropy, tolerance=2e-2, setup=setup)


def test_tensors_made_in_build() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = model(x) + torch.arange(3, device=x.device) + torch.ones(3).to(x.device)
        return torch.where(y.cumsum(0) > 0, y, 0.1).square().mean()

    train(nn.Linear(8, 3), lambda: (torch.randn(5, 8),), loss)


class Call(flow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model(x), x.mean()


def test_inference_and_artifact(tmp_path: Path) -> None:
    reference = convnet().eval()
    graph = Call(to_cuda(reference))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 12, 12)
            y, mean = graph(x.to("cuda"))
            torch.testing.assert_close(y.cpu(), reference(x))
            torch.testing.assert_close(mean.cpu(), x.mean())
        flow.save(graph, tmp_path / "saved")
        loaded = flow.load(tmp_path / "saved")
        torch.testing.assert_close(loaded(x.to("cuda"))[0].cpu(), reference(x))


def test_random_numbers_differ_from_call_to_call() -> None:
    graph = Call(nn.Dropout(0.5))
    x = torch.ones(64, device="cuda")
    masks = [tuple(graph(x)[0].tolist()) for _ in range(4)]
    assert len(set(masks)) == 4
    assert {v for mask in masks for v in mask} == {0.0, 2.0}


def test_state_resumes() -> None:
    graphs = []
    for _ in range(2):
        model = to_cuda(mlp())
        graphs.append(Train(model, cross_entropy, torch.optim.AdamW(model.parameters(), lr=0.1)))
    args = [t.to("cuda") for t in rows()]
    graphs[0](*args)
    graphs[1].load_state_dict(copy.deepcopy(graphs[0].state_dict()))
    found = [[g(*args).item() for _ in range(3)] for g in graphs]
    assert found[0] == found[1]


@pytest.mark.parametrize("compiler", [flow.compile, lambda m: torch.compile(m, backend="gflow")])
def test_compiled_modules(compiler: Any) -> None:
    reference = mlp()
    model = to_cuda(reference)
    compiled = compiler(model)
    for _ in range(3):
        x, dy = torch.randn(5, 8), torch.randn(5, 3)
        for module, call in ((reference, reference), (model, compiled)):
            module.zero_grad()
            device = next(module.parameters()).device
            y = call(x.to(device))
            y.backward(dy.to(device))
        torch.testing.assert_close(y.detach().cpu(), reference(x).detach())
        for mine, theirs in zip(model.parameters(), reference.parameters()):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


class Several(flow.nn.Graph):
    """Several results, and a buffer that each call updates."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Module()
        self.module.register_buffer("calls", torch.zeros(3, device="cuda"))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.module.calls.add_(1)
        return several(x, y, self.module.calls)


def several(x: torch.Tensor, y: torch.Tensor, calls: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.tanh(x * 2 + y)
    return z, z.sum(0), x[1:] - y[1:], calls * 2


REFUSED = {
    "captured_node": "the driver does not tell the graph's node of",
    "kernel_node": "the graph's node of",
    "set_kernel_node": "refused",
}


def refuse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver refuse what changes the addresses in a graph."""

    def refused(*args: Any) -> None:
        if name == "set_kernel_node":
            raise DeviceError("refused")

    if name:
        monkeypatch.setattr(driver.driver(), name, refused)


@pytest.mark.parametrize("refused", ["", *REFUSED])
def test_results_stay_what_they_were(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs move, and the caller keeps results, parts of results, and drops others, over many calls; a call on another
    stream, and one step by step, in between."""
    refuse(refused, monkeypatch)
    graph, kept, x = Several(), [], torch.empty(0)
    before = standin.updates() if standin.active() else 0
    for n in range(1, 13):
        if n % 4 != 2:  # else the inputs are those of the previous call, at the same place
            x, y = torch.randn(4, 3), torch.randn(4, 3)
            on_gpu = [x.to("cuda"), y.to("cuda")]
            if n % 5 == 0:
                on_gpu[0] = torch.empty(13, device="cuda")[1:].view(4, 3).copy_(x)  # misaligned
        stream = torch.cuda.Stream() if n == 8 else torch.cuda.current_stream()
        calls = graph.module.calls.cpu() + 1
        with torch.cuda.stream(stream):
            found = graph(*on_gpu)
        stream.synchronize()
        if n == 9:
            graph.profile(*on_gpu)
        want = several(x, y, calls)
        if n % 3:
            kept.append((found, want))
        else:
            kept.append((tuple(f[-1:] for f in found), tuple(w[-1:] for w in want)))
    for found, want in kept:
        for f, w in zip(found, want):
            torch.testing.assert_close(f.cpu(), w)
    told = "no, step by step: copies of its results" if refused else "yes."
    assert f"As one CUDA graph: {told}" in str(graph.explain())
    if standin.active():
        assert (standin.updates() > before) == (not refused)


@pytest.mark.parametrize("refused", REFUSED)
def test_results_are_copied_where_a_graph_keeps_addresses(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(refused, monkeypatch)
    reference = mlp()
    model = to_cuda(reference)
    graph, eager = Train(model, cross_entropy, sgd(model.parameters())), sgd(reference.parameters())
    losses = []
    for _ in range(6):
        args = rows()
        got = graph(*[a.to("cuda") for a in args])
        eager.zero_grad()
        want = cross_entropy(reference, *args)
        want.backward()
        eager.step()
        losses.append((got, want.detach()))
    for got, want in losses:
        torch.testing.assert_close(got.cpu(), want)
    told = f"As one CUDA graph: yes; 1 of {len(graph._state.latest.compiled.program.results)} results are copied"
    assert f"{told} out of it: {REFUSED[refused]}" in str(graph.explain())


def test_tensors_on_two_devices_are_an_error() -> None:
    with pytest.raises(flow.errors.GraphInputError, match="input 'x' is on cpu, but parameter"):
        Call(to_cuda(mlp()))(torch.randn(5, 8))
    with pytest.raises(flow.errors.GraphInputError, match="input 'x' is on cuda:0, but parameter"):
        Call(mlp())(torch.randn(5, 8).to("cuda"))
