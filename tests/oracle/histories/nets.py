"""Small networks of many kinds of modules. Each block takes and gives rows of `WIDTH` features."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from ..tensors import default_dtype

Tensor = torch.Tensor

WIDTH = 6


class Style(enum.Enum):
    """A choice that a forward makes."""

    TANH = "tanh"
    SINE = "sine"


class Reshaped(nn.Module):
    """A module on rows of another shape."""

    def __init__(self, inner: nn.Module, *shape: int) -> None:
        super().__init__()
        self.inner, self.shape = inner, shape

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x.reshape(x.shape[0], *self.shape))
        return (out[0] if isinstance(out, tuple) else out).reshape(x.shape[0], WIDTH)


class Plain(nn.Module):
    """Reads Python state of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.power, self.flag, self.kind = 1.0, 1, False, "tanh"
        self.style = Style.TANH
        self.options = {"shift": 0.0, "deep": {"gain": 1.0}}
        self.items = [1.0, 0.5]
        self.pair = (1.0, 2)
        self.extra: Tensor | None = None
        self.hidden = [nn.Linear(WIDTH, WIDTH)]  # no submodule
        self.function: Callable[[Tensor], Tensor] = torch.sin

    def forward(self, x: Tensor) -> Tensor:
        out = x * self.factor + self.options["shift"] * self.options["deep"]["gain"]
        for item in self.items:
            out = out + item * torch.cos(out)
        if self.flag:
            out = -out
        if self.kind == "tanh":
            out = torch.tanh(out)
        if self.style is Style.SINE:
            out = torch.sin(out) + self.pair[0]
        if self.extra is not None:
            out = out + self.extra
        if len(self.hidden) > 1:
            out = out + self.hidden[1].to(out.dtype)(out)
        return self.function(out) ** self.power


class Statistics(nn.Module):
    """Buffers that a forward in training mode updates in several ways."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=persistent)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=persistent)
        self.register_buffer("last", None)
        self.momentum = 0.9
        self.peak = torch.zeros(WIDTH)  # a tensor that is no buffer

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(self.momentum).add_(x.mean(0), alpha=1 - self.momentum)
                self.steps += 1
                self.peak = torch.maximum(self.peak.to(x), x.detach().abs().amax(0))
        return x - self.mean + 0.01 * self.steps + 0.1 * self.peak.to(x)


class Recurrent(nn.Module):
    """Carries its state over from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.register_buffer("state", torch.zeros(1, WIDTH), persistent=False)
        self.keep = True

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x.mean(0, keepdim=True), self.state)
        if self.keep:
            self.state = state.detach()
        return x + state


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) + functional.linear(x, self.first.weight.t())


class Words(nn.Module):
    """Rows of an embedding, chosen by the features."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(7, WIDTH // 2, **options)
        self.limit = 7

    def forward(self, x: Tensor) -> Tensor:
        rows = (x.detach()[:, :2].abs() * 4).long() % self.limit
        return x + self.table(rows).reshape(x.shape[0], WIDTH)


class Chosen(nn.Module):
    """Branches by a key, a loop over a list of modules, a parameter of its own, lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Tanh()})
        self.loop = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.1)])
        self.which, self.depth = "a", 9
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH))])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(1))})

    def forward(self, x: Tensor) -> Tensor:
        x = self.branches[self.which](x) * self.scale
        for layer in self.loop[: self.depth]:
            x = layer(x)
        for shift in self.shifts:
            x = x + shift
        return x + self.named["bias"]


class Again(nn.Module):
    """Recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=False)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor * 0.5, None


class Own(nn.Module):
    """A `Function` with a derivative of its own, by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return _Scaled.apply(x, self.factor)


class Dropped(nn.Module):
    """Dropout that drops nothing or all, beside what it drops from."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.p = nn.Dropout(0.0), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.sin(x)) + functional.dropout(torch.cos(x), self.p, self.training)


class Centred(nn.Module):
    """A parametrization of a weight."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, weight: Tensor) -> Tensor:
        return (weight - weight.mean()) * self.gain


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def _parametrized() -> nn.Module:
    layer = _linear()
    parametrize.register_parametrization(layer, "weight", Centred())
    return layer


def _pruned() -> nn.Module:
    return prune.l1_unstructured(_linear(), "weight", 0.3)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    return Reshaped(layer, 1, WIDTH)


#: name → how a block is made
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": _linear,
    "mlp": lambda: nn.Sequential(_linear(), nn.LeakyReLU(0.1), _linear()),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm, average": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "batch norm, untracked": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "instance norm": lambda: Reshaped(
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True), 2, 3
    ),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "conv": lambda: Reshaped(nn.Conv1d(1, 1, 3, padding=1), 1, WIDTH),
    "images": lambda: Reshaped(
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)), 2, 3, 1
    ),
    "prelu": lambda: nn.PReLU(),
    "lstm": lambda: Reshaped(nn.LSTM(2, 2, batch_first=True), 3, 2),
    "gru": lambda: Reshaped(nn.GRU(2, 2, batch_first=True), 3, 2),
    "attention": _encoder,
    "plain": Plain,
    "statistics": functools.partial(Statistics, True),
    "statistics, not saved": functools.partial(Statistics, False),
    "recurrent": Recurrent,
    "tied": Tied,
    "words": Words,
    "words, padded": functools.partial(Words, padding_idx=1),
    "words, sparse": functools.partial(Words, sparse=True),
    "words, bounded": functools.partial(Words, max_norm=0.5),
    "chosen": Chosen,
    "recomputed": Again,
    "own derivative": Own,
    "dropped": Dropped,
    "lazy": lambda: nn.LazyLinear(WIDTH),
    "parametrized": _parametrized,
    "weight norm": lambda: parametrizations.weight_norm(_linear()),
    "weight norm by hooks": lambda: nn.utils.weight_norm(_linear()),
    "spectral norm": lambda: parametrizations.spectral_norm(_linear()),
    "spectral norm by hooks": lambda: nn.utils.spectral_norm(_linear()),
    "orthogonal": lambda: parametrizations.orthogonal(_linear(), orthogonal_map="cayley"),
    "pruned": _pruned,
}  # fmt: skip
#: blocks that few sessions have: a refusal there says little about the rest
RARE = ("lazy", "orthogonal", "words, bounded", "words, sparse")


class Net(nn.Module):
    """Blocks one after the other, and a head."""

    def __init__(self, blocks: Sequence[str]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BLOCKS[name]() for name in blocks)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.gain, self.residual = 1.0, True
        self.register_buffer("offset", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            new = block(x)
            x = x + 0.5 * new if self.residual else new
        return self.head(x) * self.gain + self.offset


def make_net(blocks: Sequence[str], seed: int, dtype: torch.dtype) -> Net:
    """A network with its own values, made without a trace in PyTorch's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with default_dtype(dtype):  # plain tensors in modules, too
            return Net(blocks)
