"""Other architectures, and the many ways of holding and using parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from .case import Case, Function, Tensor, adamw, class_loss


class Bag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8, mode=mode), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


class Recommender(nn.Module):
    """Factorization with embeddings and offsets bags (DLRM-like)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(2))
        self.dense = nn.Linear(5, 8)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        parts = torch.stack([self.dense(dense), *(t(ids, offsets) for t in self.tables)], 1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))
        i, j = torch.tril_indices(3, 3, offset=-1)
        return pairs[:, i, j]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = x + self.tokens(self.norms[0](x).mT).mT
        x = x + self.channels(self.norms[1](x))
        return self.head(x.mean(1))


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(16, 3), "size": nn.Linear(16, 1)})

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.trunk(batch["x"])
        return {name: head(x) for name, head in self.heads.items()}


def multi_task(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    out = model(batch)
    kind = F.cross_entropy(out["kind"], batch["kind"])
    size = F.smooth_l1_loss(out["size"].squeeze(1), batch["size"])
    return kind + 0.5 * size, {"kind": kind, "size": size, "logits": out["kind"], "none": None}


def task_batch() -> tuple[Any, ...]:
    return ({"x": torch.randn(4, 6), "kind": torch.randint(3, (4,)), "size": torch.randn(4)},)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6), nn.Linear(6, 6)
        self.decode.weight = self.encode.weight
        self.again = self.encode

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.decode(torch.tanh(self.encode(x)))))


class TransposeTied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x @ self.weight.T) @ self.weight


def frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    for p in [*model[0].parameters(), model[3].bias]:
        p.requires_grad_(False)
    return model


class Unused(nn.Module):
    """A parameter that no loss depends on: its gradient stays None."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Average(nn.Module):
    """Buffers that build() computes: a running mean, a counter, a queue (MoCo style)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("queue", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training:
            with torch.no_grad():
                self.count += 1
                self.mean.lerp_(y.mean(0), 0.1)
                self.queue = torch.cat([y, self.queue[: -y.shape[0]]])
                self.queue[0] *= 0.5
        return y - self.mean + self.queue.mean() / self.count.clamp(min=1)


class Teacher(nn.Module):
    """An exponential moving average of the student (BYOL style)."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for t, s in zip(self.teacher.parameters(), self.student.parameters()):
                    t.mul_(0.9).add_(s, alpha=0.1)
        with torch.no_grad():
            target = self.teacher(x)
        return F.normalize(self.student(x), dim=-1) - F.normalize(target, dim=-1)


def quantize_program(model: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """VQ: nearest code, straight-through gradient, commitment loss."""
    codes = model.w
    index = torch.cdist(x, codes).argmin(-1)
    chosen = codes[index]
    through = x * codes.mean() + (chosen - x).detach()
    return through.square().mean() + F.mse_loss(chosen, x) + 0.25 * F.mse_loss(
        x, chosen.detach()
    ), index


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * 2.0


class Graphs(nn.Module):
    """A graph network: messages by index_add over an edge list, attention by scatter softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.att = nn.Linear(6, 8), nn.Linear(16, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.fc(x)
        score = F.leaky_relu(self.att(torch.cat([h[source], h[target]], -1))).squeeze(-1)
        top = torch.full((x.shape[0],), -torch.inf, dtype=x.dtype).scatter_reduce(
            0, target, score, "amax"
        )
        weight = torch.exp(score - top[target])
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, weight)
        weight = weight / total[target]
        return torch.zeros_like(h).index_add_(0, target, h[source] * weight[:, None])


class Mlp(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda m: m) -> None:
        super().__init__()
        self.layers = nn.Sequential(wrap(nn.Linear(6, 8)), nn.Tanh(), wrap(nn.Linear(8, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def penalty(model: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """L1 and L2 of the parameters in the loss, and a gradient norm that build() reports."""
    out = model(x)
    loss = out.square().mean()
    loss = loss + 1e-2 * sum(p.abs().sum() for p in model.parameters())
    norm = torch.stack([p.detach().norm() for p in model.parameters()]).norm()
    return loss, {"out": out, "norm": norm}


def gradient_penalty(model: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """WGAN-GP: a gradient with respect to the input inside the loss (double backward)."""
    x = x.clone().requires_grad_(True)
    out = model(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.mean() + (grad.norm(dim=1) - 1).square().mean(), grad


class ScaleGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ctx.scale * (x > 0), None


class CustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return ScaleGrad.apply(self.fc(x), -0.5)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Mlp(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        return self.b(checkpoint(self.a, x, use_reentrant=False))


def rows(width: int = 6, batch: int = 4) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, width),)


def bag_inputs() -> tuple[Any, ...]:
    return torch.randn(3, 5), torch.randint(20, (7,)), torch.tensor([0, 2, 5])


BF16 = (torch.bfloat16,)

CASES: list[Case] = [
    Case("EmbeddingBag mean", lambda: Bag("mean"), lambda: (torch.randint(20, (4, 5)),)),
    Case("EmbeddingBag max", lambda: Bag("max"), lambda: (torch.randint(20, (4, 5)),), slow=True),
    Case("DLRM", Recommender, bag_inputs),
    Case("MLP-Mixer", Mixer, lambda: (torch.randn(2, 3, 16, 16), torch.randint(5, (2,))), class_loss),
    Case("multi-task dicts", MultiTask, task_batch, multi_task, adamw),
    Case("tied weights", Tied, rows()),
    Case("tied by transpose", TransposeTied, rows()),
    Case("frozen parameters", frozen, lambda: (*rows()(), torch.randint(3, (4,))), class_loss),
    Case("unused parameters", Unused, rows(), optimizer=adamw),
    Case("buffers computed", Average, rows()),
    Case("EMA teacher", Teacher, rows()),
    Case("vector quantization", lambda: Function(lambda w, x: x, 5, 6), rows(), quantize_program),
    Case("LoRA", Lora, rows(), optimizer=adamw),
    Case("graph attention", Graphs, lambda: (torch.randn(5, 6), torch.randint(5, (2, 12)))),
    Case("norms in the loss", Mlp, rows(), penalty),
    Case("gradient penalty", Mlp, rows(), gradient_penalty, infer=False),
    Case("autograd.Function", CustomFunction, rows()),
    Case("utils.checkpoint", Checkpointed, rows()),
    Case("weight_norm", lambda: Mlp(parametrizations.weight_norm), rows()),
    Case("spectral_norm", lambda: Mlp(parametrizations.spectral_norm), rows(), slow=True),
    Case("orthogonal", lambda: Mlp(parametrizations.orthogonal), rows(), slow=True),
    Case("Bilinear", lambda: nn.Bilinear(6, 6, 3), lambda: (torch.randn(4, 6), torch.randn(4, 6))),
    Case("zero-size batch", Mlp, rows(batch=0),
         lambda m, x: (m(x).sum() + m.layers[0].weight.square().sum(), m(x))),
    Case("batch of one row", Mlp, rows(batch=1)),
    Case("rows of a transposed input", Mlp, lambda: (torch.randn(6, 4).t(),)),
    Case("strided input", Mlp, lambda: (torch.randn(8, 12)[::2, ::2],)),
    Case("expanded input", Mlp, lambda: (torch.randn(1, 6).expand(4, 6),)),
    Case("bfloat16 parameters", Mlp, rows(), dtypes=BF16),
    Case("bfloat16 convolutions", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8),
         nn.SiLU()), lambda: (torch.randn(2, 3, 8, 8),), dtypes=BF16),
    Case("float16 parameters", Mlp, rows(), dtypes=(torch.float16,)),
]  # fmt: skip
