"""Programs on tensors that networks are made of: views, indexing, in-place writes, sorting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .case import Case, Function, Tensor


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def in_place(w: Tensor, x: Tensor) -> Any:
    y = x * w
    y.add_(1).mul_(2).clamp_(-2, 2)
    y[:, 0] = 3.0
    y[1:3, ::2] += w[:3]
    y[y.shape[0] - 1].zero_()
    return F.relu(y, inplace=True)


def masked_writes(w: Tensor, x: Tensor) -> Any:
    y = x * w
    y[x > 0.5] = 0.0
    y.masked_fill_(x < -1, 2.0)
    return torch.where(x > 0, y, w), y.masked_scatter(x > 1, (x * w).flatten())


def views(w: Tensor, x: Tensor) -> Any:
    y = (x * w).view(2, 2, 6)
    a, b = y.split([2, 4], dim=-1)
    flat = y.transpose(0, 1).reshape(-1)
    diagonal = torch.diagonal(x @ x.T)
    windows = x.unfold(1, 3, 2)
    strided = torch.as_strided(x * w, (3, 3), (6, 2))
    return a, b.movedim(0, 2), flat[3:], diagonal, windows * w[0], strided, y.narrow(2, 1, 2)


def view_writes(w: Tensor, x: Tensor) -> Any:
    y = x * w
    left, right = y[:, :3], y.narrow(1, 3, 3)
    left.mul_(2)
    right.copy_(left.flip(0))
    y.diagonal().fill_(0.5)
    y.view(-1)[::5] = w[0]
    return y


def indexing(w: Tensor, x: Tensor, i: Tensor) -> Any:
    y = x * w
    return {
        "rows": y[i], "pairs": y[i % 4, i % 6], "gather": y.gather(1, i[None, :3].expand(4, 3)),
        "take": torch.take_along_dim(y, y.argsort(1), 1), "select": y.index_select(1, i),
        "none": y[:, None, i, ...], "negative": y[-1, -2:],
    }  # fmt: skip


def scattering(w: Tensor, x: Tensor, i: Tensor) -> Any:
    y, z = x * w, torch.zeros_like(x)
    index = i[None, :6].expand(4, 6)
    return (
        z.scatter(1, index.sort(1)[0][:, :1], y[:, :1]), z.scatter_add(1, index, y),
        z.index_add(0, i[:4] % 4, y), z.index_copy(1, torch.tensor([2, 0]), y[:, :2]),
        z.index_put((i[:4] % 4, i[:4]), y[:, 0], accumulate=True), z.slice_scatter(y[:2], 0, 1, 3),
        z.select_scatter(y[0], 0, 2), torch.zeros(5, dtype=x.dtype).scatter_reduce(0, i[:6] % 5, y[0], "mean"),
    )  # fmt: skip


def sorting(w: Tensor, x: Tensor) -> Any:
    y = x * w
    values, index = y.sort(dim=1, descending=True)
    return {
        "sort": values, "index": index, "topk": torch.topk(y, 2, 0), "median": y.median(1),
        "kth": y.kthvalue(2, 1), "max": y.max(0), "min": y.min(1, keepdim=True), "mode": y.cummax(1),
        "argmax": y.argmax(), "unique": torch.bucketize(x, torch.linspace(-1, 1, 4, dtype=x.dtype)),
        "search": torch.searchsorted(values.flip(1).contiguous(), x), "quantile": y.quantile(0.3, 1),
    }  # fmt: skip


def reductions(w: Tensor, x: Tensor) -> Any:
    y = x * w
    return [
        y.sum(), y.mean((0, 1)), y.prod(1), y.var(0), y.std(1, unbiased=False), y.amax(1), y.amin(),
        y.norm(), y.norm(p=1, dim=1), torch.logsumexp(y, 1), y.cumsum(0), y.cumprod(1), (y > 0).any(1),
        (y < 9).all(), y.abs().max(), torch.linalg.vector_norm(y, 3, 0), y.softmax(0),
        y.log_softmax(1), torch.logcumsumexp(y, 1), torch.var_mean(y, 1), y.nanmean(), y.count_nonzero(),
    ]  # fmt: skip


def arithmetic(w: Tensor, x: Tensor) -> Any:
    y = x * w
    p = y.abs() + 0.5
    return [
        y / p, y.detach() // 2, y % 3, torch.fmod(y, 0.7), y**2, p**0.5, 2**y, p**y, -y, y.abs(), p.log(),
        p.log1p(), p.log2(), y.exp(), y.expm1(), p.sqrt(), p.rsqrt(), y.sin(), y.cos(), y.tan(),
        y.atan(), y.sinh(), y.tanh(), y.erf(), torch.erfinv(y.tanh() * 0.9), y.floor(), y.ceil(),
        y.round(), y.trunc(), y.frac(), y.sign(), torch.atan2(y, p), torch.hypot(y, p), p.lgamma(),
        torch.maximum(y, w), torch.minimum(y, w), y.clamp(max=w.max()), torch.lerp(y, w, 0.3),
        torch.addcmul(y, w, w, value=0.5), torch.addcdiv(y, w, p), y.sigmoid(), y.logit(eps=0.1),
        torch.nan_to_num(y / 0), torch.xlogy(p, p), torch.copysign(y, w), y.digamma(), y.square(),
        p.reciprocal(), torch.logaddexp(y, p), torch.special.entr(p), y.sinc(), y.deg2rad(),
        y.detach().heaviside(w.detach()),
    ]  # fmt: skip


def logic(w: Tensor, x: Tensor, i: Tensor) -> Any:
    y = x * w
    both = (y > 0) & (x < 1) | ~(y != x) ^ (i[None, :6] >= 2)
    return (
        both,
        i & 3,
        i | 4,
        i << 1,
        ~i,
        (i // 2).float() * w[0].float(),
        i % 3 == 1,
        i.to(torch.int32),
        (both.to(x.dtype) * y),
        torch.isclose(x, y),
        x.isnan().logical_not(),
        i.bool(),
        -i,
        i.clamp(1, 3),
        i.cumsum(0),
    )


def contractions(w: Tensor, x: Tensor) -> Any:
    y = x * w
    cube = y.view(2, 2, 6)
    return [
        y @ y.T, torch.mv(y, w), torch.dot(w, y[0]), torch.bmm(cube, cube.mT), torch.outer(w, w),
        torch.einsum("ij,kj->ik", y, x), torch.einsum("bij,bkj,j->bik", cube, cube, w),
        torch.einsum("ii->i", y @ y.T), torch.tensordot(cube, cube, ([1, 2], [1, 2])),
        torch.addmm(y[:, :4], y, y.T, beta=0.5, alpha=2), torch.baddbmm(cube[:, :, :2], cube, cube.mT),
        torch.kron(y[:2, :2], y[2:, :2]), torch.cdist(y, x), torch.linalg.multi_dot([y.T, y, y.T]),
        torch.matmul(w, cube.mT), torch.cross(cube[..., :3], cube[..., 3:], dim=-1), torch.trace(y @ y.T),
        torch.tril(y @ y.T, -1), torch.triu(y), torch.block_diag(y, y),
    ]  # fmt: skip


def shapes(w: Tensor, x: Tensor) -> Any:
    y = x * w
    return [
        torch.cat([y, x]), torch.stack([y, x], -1), y.repeat(2, 1), y.tile((2,)), y.repeat_interleave(2, 0),
        y.flip(0, 1), y.roll((1, -1), (0, 1)), y.rot90(), F.pad(y, (1, 2, 0, 1), value=0.5), y.squeeze(),
        y[None].unsqueeze(-1), y.unflatten(1, (2, 3)), y.flatten(), torch.hstack([y, x]), y.expand(2, 4, 6),
        F.pad(y[None], (1, 1), mode="reflect"), torch.meshgrid(w, w[:2], indexing="ij"), y.T, y.swapaxes(0, 1),
        torch.broadcast_to(w, (3, 6)), torch.atleast_3d(y), F.one_hot(torch.tensor([0, 2]), 3), y.diff(dim=1),
        torch.tensor_split(y, 4, dim=1), F.unfold(y.view(1, 1, 4, 6), 2), y.unbind(0)[1], torch.diag_embed(w),
    ]  # fmt: skip


def creation(w: Tensor, x: Tensor) -> Any:
    n = x.shape[0]
    options = {"dtype": x.dtype}
    return [
        torch.arange(n, **options) * w[0], torch.linspace(0, 1, 6, **options) * w, torch.eye(6, **options) * w,
        torch.full((6,), 2.5, **options) * w, torch.ones_like(x) * w, x.new_tensor([1.0, 2.0]) * w[:2],
        torch.zeros(2, 6, **options) + w, x.new_full((6,), 3) * w, torch.tensor([[1.0, 2.0]], **options) * w[:2],
        torch.tril(torch.ones(6, 6, **options)) * w, torch.logspace(0, 1, 6, **options) * w, w.clone(), torch.empty(0),
    ]  # fmt: skip


def mixed_types(w: Tensor, x: Tensor, i: Tensor) -> Any:
    return [
        i[:6] * w, w + 1, w * True, (w > 0) * w, i[:6] / 2, w.half().to(w.dtype), w.to(torch.bfloat16),
        torch.mean(i.to(w.dtype)) * w, w.int() + i[:6], i.sum() * w, torch.tensor(2) * w, w * torch.tensor(0.5),
        i.float().mean(), torch.sum(i, dtype=w.dtype) * w, (x > 0).sum() * w, (x > 0).to(w.dtype).mean(),
    ]  # fmt: skip


def fourier(w: Tensor, x: Tensor) -> Any:
    spectrum = torch.fft.rfft(x * w, dim=1)
    return torch.fft.irfft(spectrum * 0.5, n=6, dim=1), spectrum.abs()


def linear_algebra(w: Tensor, x: Tensor) -> Any:
    a = (x * w) @ (x * w).T + torch.eye(4, dtype=x.dtype)
    lower = torch.linalg.cholesky(a)
    return {
        "solve": torch.linalg.solve(a, x), "det": torch.linalg.slogdet(a), "inverse": torch.linalg.inv(a),
        "lower": lower, "triangular": torch.linalg.solve_triangular(lower, x, upper=False),
        "eigenvalues": torch.linalg.eigvalsh(a), "singular": torch.linalg.svdvals(x * w),
    }  # fmt: skip


def loops(w: Tensor, x: Tensor) -> Any:
    """Python control flow on shapes and numbers is fine."""
    total = torch.zeros_like(w)
    for k, row in enumerate(x):
        total = total + row * w if k % 2 == 0 else total - row
    while total.ndim < 3:
        total = total[None]
    return total if x.shape[0] > 2 else w


def nested(w: Tensor, x: Tensor) -> Any:
    pair = Pair(x * w, w.sum())
    return OrderedDict(a=pair, b=(x, [w, {"c": None, "d": 3, "e": "text"}]), same=pair.left)


def _two(function: Callable[..., Any]) -> Any:
    return lambda: Function(function, 6)


def _careful(parameters: Any) -> torch.optim.Optimizer:
    """Steps so small that high powers stay finite."""
    return torch.optim.SGD(parameters, lr=1e-7, momentum=0.9)


def _plain() -> tuple[Any, ...]:
    return (torch.randn(4, 6),)


def _indexed() -> tuple[Any, ...]:
    return torch.randn(4, 6), torch.randint(4, (9,))


_PLAIN = [
    in_place, masked_writes, views, view_writes, sorting, reductions, arithmetic, contractions, shapes,
    creation, fourier, linear_algebra, loops, nested,
]  # fmt: skip
_SLOW = {fourier, linear_algebra}

CASES: list[Case] = [
    *[Case(f.__name__.replace("_", " "), _two(f), _plain, optimizer=_careful, slow=f in _SLOW) for f in _PLAIN],
    *[Case(f.__name__.replace("_", " "), _two(f), _indexed, optimizer=_careful)
      for f in (indexing, scattering, logic, mixed_types)],
]  # fmt: skip
