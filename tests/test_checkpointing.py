"""Activation checkpointing by marks: what is recomputed changes no number, and saves memory."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gflow as flow
from gflow import nn

Tensor = torch.Tensor
Module = torch.nn.Module


class Block(Module):
    """A residual block with a layer norm and dropout."""

    def __init__(self, width: int = 32, p: float = 0.3) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Attention(Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, w))


class ConvBlock(Module):
    """Batch norms with running statistics, an activation in place, and a shortcut."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)


class Twice(Module):
    """One block called twice, and a wrapper around blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.more = torch.nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self.block(self.block(x)))


class Training(nn.Graph):
    def __init__(self, model: Module, marks: Callable[[Any], list[Any]] | None = None) -> None:
        super().__init__()
        self.model = model
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.add_optimizer(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        for module in marks(self.model) if marks else ():
            module.to(nn.graph.GraphModule).activation_checkpointing = True

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def arena(graph: nn.Graph) -> int:
    found = re.search(r"gflow\.arena_size = (\d+)", graph.ir(generic=True))
    assert found is not None
    return int(found[1])


def train(graph: nn.Graph, x: Tensor, steps: int = 3) -> list[Tensor]:
    torch.manual_seed(3)
    return [graph(x) for _ in range(steps)]


def sequence(kind: type[Module], count: int = 4) -> Module:
    return torch.nn.Sequential(*(kind() for _ in range(count)))


def freeze(model: Any) -> Any:
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], Callable[[Any], list[Any]]]] = {
    "dropout": (lambda: sequence(Block), (64, 32), list),
    "some of them": (lambda: sequence(Block), (64, 32), lambda m: [m[1], m[3].drop]),
    "the whole model": (lambda: sequence(Block), (64, 32), lambda m: [m]),
    "attention": (lambda: sequence(Attention), (4, 16, 32), list),
    "batch norm": (lambda: sequence(ConvBlock), (4, 8, 9, 9), list),
    "a convolution alone": (
        lambda: sequence(ConvBlock, 2),
        (4, 8, 9, 9),
        lambda m: [m[0].conv2, m[1].bn1],
    ),
    "nested": (lambda: sequence(Block), (64, 32), lambda m: [m, *m, m[1].down, m[2].norm]),
    "shared": (Twice, (64, 32), lambda m: [m.block, m.more]),
    "frozen": (lambda: freeze(sequence(Block)), (64, 32), list),
    "a norm by itself": (
        lambda: torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), Block()),
        (64, 32),
        lambda m: [m[1]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_stay_the_same(case: str) -> None:
    make, shape, marks = CASES[case]
    torch.manual_seed(0)
    plain = make()
    model = copy.deepcopy(plain)
    x = torch.randn(shape)
    want, got = Training(plain), Training(model, marks)
    # sums over batches may be split differently where other kernels surround them
    exact = case not in ("batch norm", "a convolution alone", "shared")
    close = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-6}
    for a, b in zip(train(want, x), train(got, x), strict=True):
        torch.testing.assert_close(b, a, **close)
    for (name, a), b in zip(plain.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(b, a, **close, msg=name)
    assert "optimization_barrier" in got.ir(generic=True)
    assert "gflow.scope" not in got.ir(generic=True)
    assert "gflow.phase" not in got.ir(generic=True)


@pytest.mark.parametrize("kind", [Attention, ConvBlock])
def test_against_eager(kind: type[Module]) -> None:
    torch.manual_seed(0)
    model = sequence(kind)
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn((4, 16, 32) if kind is Attention else (4, 8, 9, 9))
    graph = Training(model, list)
    for _ in range(3):
        optimizer.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x), loss.detach(), rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(eager.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-5, msg=name)
        if name.endswith("num_batches_tracked"):
            assert b.item() == 3


@pytest.mark.parametrize(("kind", "shape"), [(Block, (256, 32)), (Attention, (8, 32, 32))])
def test_memory_of_a_deep_model_grows_with_inputs_of_blocks(
    kind: type[Module], shape: tuple[int, ...]
) -> None:
    def needs(depth: int, marks: Any) -> int:
        graph = Training(sequence(kind, depth), marks)
        graph.config.set_recomputation_time(0)
        graph(torch.randn(shape))
        return arena(graph)

    plain = needs(8, None) - needs(4, None)
    marked = needs(8, list) - needs(4, list)
    values = torch.Size(shape).numel() * 4
    # a block keeps its input, and gradients of what is updated late
    assert marked <= 1.5 * 4 * values
    assert plain >= 3 * marked


def test_inference_and_eval_mode_compute_nothing_twice() -> None:
    class Inference(nn.Graph):
        def __init__(self, model: Module) -> None:
            super().__init__()
            self.model = model
            self.model[0].config.activation_checkpointing = True  # type: ignore[union-attr]

        def build(self, x: Tensor) -> Tensor:
            return self.model(x)

    model = sequence(Block).eval()
    graph = Inference(model)
    x = torch.randn(8, 32)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))
    assert "barrier" not in graph.ir(generic=True)
    assert "gflow.scope" not in graph.ir(generic=True)
    training = Training(model)
    training(x)  # the mark belongs to the module
    assert training.ir(generic=True).count("optimization_barrier") == 1


# -- torch.utils.checkpoint


class Checkpointed(Module):
    """Blocks that the model's own code runs under `torch.utils.checkpoint`."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_torch_checkpoint(reentrant: bool) -> None:
    torch.manual_seed(0)
    plain = Checkpointed(None)
    model = Checkpointed(reentrant)
    model.load_state_dict(plain.state_dict())
    x = torch.randn(64, 32)
    want, got = Training(plain), Training(model)
    for a, b in zip(train(want, x), train(got, x), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(plain.parameters(), model.parameters()):
        assert torch.equal(a, b)
    assert got.ir(generic=True).count("optimization_barrier") == 3
    assert arena(got) < 0.7 * arena(want)
    model(x.requires_grad_()).sum().backward()  # and as it was, outside of graphs


def test_hugging_face_gradient_checkpointing() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=3, n_head=2, use_cache=False
    )

    class LanguageModel(Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = transformers.GPT2LMHeadModel(config)
            if again:
                self.body.gradient_checkpointing_enable()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.body(tokens).logits

    tokens = torch.randint(0, 64, (2, 16))
    plain, model = LanguageModel(False).train(), LanguageModel(True).train()
    want, got = Training(plain), Training(model)
    for a, b in zip(train(want, tokens), train(got, tokens), strict=True):
        assert torch.equal(a, b)
    assert (
        got.ir(generic=True).count("optimization_barrier")
        >= 3
        > want.ir(generic=True).count("optimization_barrier")
    )


# -- how authors mark modules


def test_the_older_spelling() -> None:
    class Inner(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Block()
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            for layer in self.layers:
                x = layer(x)
            return x

    class Older(flow.nn.Graph):
        def __init__(self, model: Module) -> None:
            super().__init__()
            self.model: Any = model
            self.parts: list[Any] = [Block()]
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            self.model.layer.config.activation_checkpointing = True
            self.model.layers[1].config.activation_checkpointing = True
            self.parts[0].config.activation_checkpointing = True

        def build(self, x: Tensor) -> Tensor:
            loss = self.parts[0](self.model(x)).square().mean()
            loss.backward()
            return loss

    model = Inner()
    assert not hasattr(model, "config")
    before = (set(vars(model.layer)), list(model.state_dict()))
    graph = Older(model)
    graph(torch.randn(64, 32))
    assert graph.ir(generic=True).count("optimization_barrier") == 3
    assert before == (set(vars(model.layer)), list(model.state_dict()))
    assert type(model.layer) is Block
    assert model.layer.to(flow.nn.graph.GraphModule).activation_checkpointing


def test_eager_modules_stay_as_they_are() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    assert not hasattr(model, "config")
    assert not hasattr(torch.nn.Linear, "config")
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'config'"):
        _ = model.config
    graph = Training(model, lambda m: [m[0]])
    assert graph.model.to(torch.nn.Module) is model
    model.to(torch.float64).to("cpu").to(dtype=torch.float32)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert not hasattr(again, "config")
    assert not hasattr(copy.deepcopy(model), "config")
    torch.jit.script(model)
    model.config = 3  # type: ignore[assignment]
    assert model.config == 3


def test_modules_with_a_config_of_their_own() -> None:
    class Settings:
        activation_checkpointing = False

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.config: Any = Settings()
            self.linear = torch.nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.linear(x))

    model = Model()
    graph = Training(model)
    assert isinstance(model.config, Settings)
    model.config.activation_checkpointing = True
    with pytest.raises(flow.GraphError, match=r"model\.to\(nn\.graph\.GraphModule\)"):
        graph(torch.randn(4, 32))
    model.to(nn.graph.GraphModule).activation_checkpointing = True
    graph(torch.randn(4, 32))
    assert "optimization_barrier" in graph.ir(generic=True)


def test_submodules_and_wrappers_named_config() -> None:
    class Named(Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = torch.nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.config(x)

    class Forwarding(Module):
        def __init__(self, inner: Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = Named()
    wrapper = Forwarding(model)
    graph = Training(wrapper)
    graph(torch.randn(4, 32))
    assert model.config is wrapper.config
    assert isinstance(model.config, torch.nn.Linear)


def test_wrong_settings() -> None:
    block = Block().to(nn.graph.GraphModule)  # type: ignore[call-overload]
    with pytest.raises(flow.GraphError, match=r"no setting 'activation_checkpoint'; known: act"):
        block.activation_checkpoint = True
    with pytest.raises(flow.GraphError, match="activation_checkpointing is a bool; got 1"):
        block.activation_checkpointing = 1


def test_a_mark_set_later_compiles_again() -> None:
    model = sequence(Block)
    graph = Training(model)
    x = torch.randn(64, 32)
    graph(x)
    assert "optimization_barrier" not in graph.ir(generic=True)
    before = arena(graph)
    for block in model:  # type: ignore[attr-defined]
        block.to(nn.graph.GraphModule).activation_checkpointing = True
    graph(x)
    assert arena(graph) < before
    marked = graph.ir(generic=True)
    sequence(Block)[0].to(nn.graph.GraphModule).activation_checkpointing = True  # type: ignore[index]
    graph(x)  # another module's mark changes nothing
    assert graph.ir(generic=True) == marked
    assert sum(len(p) for p in graph._state.plans.values()) == 2
