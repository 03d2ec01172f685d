"""What surrounds ops in programs: contexts, checkpoints, functions and hooks of the author's, torch.func, control flow.

A program calls these by name (`K.wrapped(x, y, "checkpoint", "in place")`), so that its text stays one call a line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Body = Callable[[Tensor, Tensor], Tensor]

# -- what is surrounded: functions of x and of y, which broadcasts to it


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z.mul_(y)
    return z.sin()


def _through_view(x: Tensor, y: Tensor) -> Tensor:
    z = x + 0
    part = z.reshape(-1)[::2] if z.is_contiguous() else z[..., :1]
    part.mul_(0.5)
    return z * y


def _kept(x: Tensor, y: Tensor) -> Tensor:
    """Two tensors that a backward keeps, one of them a view of what is written before."""
    z = torch.sigmoid(x)
    w = z.detach().clone()
    w += z
    return (w * y).exp().clamp(max=4.0) * z


def _reduced(x: Tensor, y: Tensor) -> Tensor:
    return x - (x * y).mean() + x.sum(-1, keepdim=True) if x.dim() else x * y


def _rows(x: Tensor, y: Tensor) -> Tensor:
    """Row by row, as a Python loop over a tensor."""
    if not x.dim():
        return x + y
    made = [row * (i + 1) for i, row in enumerate(x[:3])]
    return torch.cat([torch.stack(made), x[3:]]) + y


BODIES: dict[str, Body] = {
    "product": lambda x, y: (x * y).tanh() + x,
    "square": lambda x, y: x * x * 0.5 + y,
    "in place": _in_place,
    "through view": _through_view,
    "kept": _kept,
    "reduced": _reduced,
    "rows": _rows,
    "itself": lambda x, y: x,
    "view": lambda x, y: x.transpose(0, -1) if x.dim() else x,
    "constant": lambda x, y: x * torch.tensor(2.0, dtype=x.dtype) + 1,
}

# -- functions of the author's


class Scaled(torch.autograd.Function):
    """Another gradient than that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * 2 + y

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        return (None, None) if g is None else (g * 3 * x, (g * y).sum_to_size(y.shape))


class Both(torch.autograd.Function):
    """Two results, of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y)
        positive = (x + y) > 0
        ctx.mark_non_differentiable(positive)
        return x * y, positive

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y * 2, None


class Written(torch.autograd.Function):
    """Writes into its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 5


def _both(body: Body, x: Tensor, y: Tensor) -> Tensor:
    product, positive = Both.apply(x, y)
    return torch.where(positive, product, body(x, y))


def _written(body: Body, x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    return body(Written.apply(z), y) + z


# -- what surrounds


def _hooked(body: Body, x: Tensor, y: Tensor) -> Tensor:
    z = body(x * 1, y) * 1
    if z.requires_grad:
        z.register_hook(lambda g: g * 2)
        z.register_hook(lambda g: None)
    return z + x


def _without_gradients(body: Body, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        z = body(x, y) * 1
        with torch.enable_grad():
            w = x * y
        z += 1
    return z + w


def _statistics(body: Body, x: Tensor, y: Tensor) -> Tensor:
    """A running average, updated without gradients and read with them."""
    average = torch.zeros_like(x)
    for k in range(2):
        with torch.no_grad():
            average.mul_(0.5).add_(body(x, y) * 1, alpha=0.5)
        x = x - average * (k + 1)
    return x * average


def _detached(body: Body, x: Tensor, y: Tensor) -> Tensor:
    z = body(x, y) * 1
    w = z.detach()
    w += 1
    return z * y + w


def _saved(body: Body, x: Tensor, y: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2):
        return body(x, y) * x


def _derivative(body: Body, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.grad(lambda a: body(a, y).sum())(x) * y


def _mapped(body: Body, x: Tensor, y: Tensor) -> Tensor:
    if not x.dim():
        return body(x, y)
    return torch.vmap(lambda a, b: body(a, b), in_dims=(0, 0))(x, y.expand(x.shape))


def _mapped_last(body: Body, x: Tensor, y: Tensor) -> Tensor:
    if not x.dim():
        return body(x, y)
    return torch.vmap(lambda a: body(a, a * 2), in_dims=-1, out_dims=-1)(x)


def _cond(body: Body, x: Tensor, y: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():  # eager's own compiles, and takes no noise
        return body(x, y) * 1
    return torch.cond(
        torch.ones((), dtype=torch.bool),
        lambda a, b: body(a, b) * 1,
        lambda a, b: a * 1 + b,
        (x, y),
    )


def _second(body: Body, x: Tensor, y: Tensor) -> Tensor:
    z = body(x, y)
    if not z.requires_grad or not x.requires_grad:
        return z
    (g,) = torch.autograd.grad(z.sum(), x, create_graph=True, allow_unused=True)
    return z if g is None else g * y + x


def _first(body: Body, x: Tensor, y: Tensor) -> Tensor:
    """A gradient that is a value."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        z = body(leaf, y)
        (g,) = torch.autograd.grad(z.sum(), leaf, allow_unused=True)
    return z.detach() if g is None else z.detach() + g


def _autocast(inner: bool) -> Callable[[Body, Tensor, Tensor], Tensor]:
    def run(body: Body, x: Tensor, y: Tensor) -> Tensor:
        z = body(x, y)
        flat = z.reshape(1, -1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = flat @ flat.t() if flat.is_floating_point() else flat
            with torch.autocast("cpu", enabled=False) if inner else nullcontext():
                wide = flat.to(z.dtype) * 2
        return wide.reshape(z.shape) + narrow.to(z.dtype).sum() * 0.01

    return run


def _checkpoint(reentrant: bool) -> Callable[[Body, Tensor, Tensor], Tensor]:
    def run(body: Body, x: Tensor, y: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return checkpoint(body, x, y, use_reentrant=reentrant)

    return run


def _twice(body: Body, x: Tensor, y: Tensor) -> Tensor:
    inner = _checkpoint(False)
    return inner(lambda a, b: inner(body, a, b) * b, x, y)


WRAPPERS: dict[str, Callable[[Body, Tensor, Tensor], Tensor]] = {
    "plain": lambda body, x, y: body(x, y),
    "no grad": _without_gradients,
    "statistics": _statistics,
    "detached": _detached,
    "hooked": _hooked,
    "scaled": lambda body, x, y: Scaled.apply(body(x, y), y),
    "both": _both,
    "written": _written,
    "saved": _saved,
    "checkpoint": _checkpoint(False),
    "checkpoint, reentrant": _checkpoint(True),
    "checkpoints": _twice,
    "autocast": _autocast(False),
    "no autocast": _autocast(True),
    "grad": _derivative,
    "vmap": _mapped,
    "vmap, last": _mapped_last,
    "cond": _cond,
    "second": _second,
    "first": _first,
}


def wrapped(x: Tensor, y: Tensor, around: str, body: str) -> Tensor:
    """A body, surrounded."""
    return WRAPPERS[around](BODIES[body], x, y)


# -- results and arguments that share memory


def _updated_later(x: Tensor) -> tuple[Tensor, ...]:
    part = x[:1] if x.dim() else x.view(1)
    row = part.view(-1)
    x.mul_(2)
    return part, row, x


ALIASES: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "parts": lambda x: (x.view(-1)[1:], x.view(-1)[:-1], x),
    "detached": lambda x: (x.detach(), x.detach().view(-1)),
    "views of views": lambda x: (
        (x.t(), x.t()[:1], x.t()[:1].unsqueeze(0)) if x.dim() == 2 else (x, x)
    ),
    "updated later": _updated_later,
    "expanded": lambda x: (x.unsqueeze(0).expand(2, *x.shape), x),
    "real": lambda x: (x.real, x.flatten()),
}


def aliases(x: Tensor, how: str) -> tuple[Tensor, ...]:
    """Results that lie in one memory."""
    return ALIASES[how](x)


def formed(x: Tensor, y: Tensor, form: str) -> Tensor:
    """In a memory format, and what reads it."""
    formats = {"last": torch.channels_last, "last, 3d": torch.channels_last_3d,
               "rows": torch.contiguous_format, "as it is": torch.preserve_format}  # fmt: skip
    z = x.clone(memory_format=formats[form])
    z.add_(y)
    return z.flatten() if form == "as it is" else z


def by_sizes(x: Tensor, how: str) -> Tensor:
    """Arithmetic on sizes."""
    n, m = x.shape[0], x.shape[-1]
    if how == "half":
        return x[: n // 2 + n % 2]
    if how == "padded":
        return torch.cat([x, x.new_zeros((-n % 4, *x.shape[1:]))])
    if how == "joined":
        return x.reshape(-1, m) if x.dim() > 1 else x.reshape(n, 1)
    if how == "scaled":
        return x * (n * m) / max(n, m) + min(n, 3)
    if how == "range":
        return x + torch.arange(m, dtype=x.dtype) / x.numel() if x.numel() else x
    return x.narrow(0, n - 1, 1).expand(n + 1, *x.shape[1:])


SIZES = ("half", "padded", "joined", "scaled", "range", "last")
