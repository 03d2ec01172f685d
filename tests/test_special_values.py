"""Functions and their gradients where numbers end: NaN, infinities, zeros of both signs, the largest and the
smallest numbers, kinks and their neighbours, ties. As eager: NaN and infinities in the same places, exact values and
signs of zeros where a function is exact, else within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gflow as flow

KINKS = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0)
OTHERS = (1e-4, 0.3, 0.7, 1.7, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0, 1e3, 1e4)


def numbers(dtype: torch.dtype) -> Tensor:
    """Every special value and its negative, often enough that vectors of them are full."""
    info = torch.finfo(dtype)
    kinks = torch.tensor(KINKS, dtype=dtype)
    far = torch.tensor(math.inf, dtype=dtype)
    parts = [
        kinks, torch.nextafter(kinks, far), torch.nextafter(kinks, -far), torch.tensor(OTHERS, dtype=dtype),
        torch.tensor([math.nan, math.inf, info.max, info.max / 2, info.tiny, info.smallest_normal / 4,
                      info.eps, math.sqrt(info.max)], dtype=dtype),
    ]  # fmt: skip
    one = torch.cat(parts)
    every = torch.cat([one, -one])
    return every.repeat(4)


#: name → function of one tensor, which eager computes exactly but for the last rounding
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh_": lambda x: F.hardtanh(x, -0.5, 2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
    "rrelu_eval": lambda x: F.rrelu(x, 0.1, 0.3, training=False),
    "threshold": lambda x: F.threshold(x, 0.5, 20.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "clamp": lambda x: x.clamp(-0.5, 1.0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "clamp_max": lambda x: x.clamp_max(3.0),
    "clamp_tensors": lambda x: torch.clamp(x, torch.zeros_like(x), torch.ones_like(x)),
    "clamp_crossed": lambda x: x.clamp(1.0, -1.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "maximum_self": lambda x: torch.maximum(x, x * 1.0),
    "minimum": lambda x: torch.minimum(x, torch.ones_like(x)),
    "maximum_roll": lambda x: torch.maximum(x, x.roll(1)),
    "fmax": lambda x: torch.fmax(x, x.roll(1)),
    "fmax_zeros": lambda x: torch.fmax(x * 0, -x * 0) if x.dtype != torch.bfloat16 else x,
    "fmin": lambda x: torch.fmin(x, x.roll(1)),
    "where": lambda x: torch.where(x > 0, x, -x),
    "where_nan": lambda x: torch.where(x.isnan(), torch.zeros_like(x), x),
    "nan_to_num": torch.nan_to_num,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "frac": torch.frac,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "pow_0": lambda x: x**0,
    "pow_1": lambda x: x**1,
    "pow_2": lambda x: x**2,
    "copysign": lambda x: torch.copysign(x, x.roll(1)),
    "sort": lambda x: torch.sort(x.view(4, -1), stable=True).values,
    "amax": lambda x: x.view(4, -1)[:, :8].amax(1),
    "amax_ties": lambda x: x.view(4, -1)[:, :8].amax(0),
    "amin_ties": lambda x: x.view(4, -1)[:, :8].amin(0),
    "max_dim": lambda x: x.view(4, -1)[:, :8].max(0).values,
    "min_dim": lambda x: x.view(4, -1)[:, :8].min(0).values,
    "max_all": lambda x: x[:8].max(),
    "max_nan": lambda x: x.max(),
    "median": lambda x: x.view(4, -1)[:, :7].median(1).values,
    "cummax": lambda x: x.view(4, -1)[:, :7].cummax(1).values,
    "fmod": lambda x: torch.fmod(x, 3.0),
    "remainder": lambda x: torch.remainder(x, 3.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, -math.inf),
    "relu_of_abs": lambda x: F.relu(x.abs() - 0.5),
    "max_pool1d": lambda x: F.max_pool1d(x.view(1, 4, -1)[:, :, :8], 2),
}

#: functions that round more than once
ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "elu_2": lambda x: F.elu(x, 2.0),
    "celu": lambda x: F.celu(x, 0.5),
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "silu": F.silu,
    "softplus": F.softplus,
    "softplus_2": lambda x: F.softplus(x, 2.0, 6.0),
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "logit": torch.logit,
    "logit_eps": lambda x: torch.logit(x, 0.1),
    "sqrt": torch.sqrt,  # PyTorch's vectors of square roots are not the nearest
    "rsqrt": torch.rsqrt,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_-1": lambda x: x**-1,
    "pow_2.5": lambda x: x**2.5,
    "pow_tensor": lambda x: x ** x.roll(1),
    "2_pow": lambda x: 2.0**x,
    "0_pow": lambda x: 0.0**x,
    "erf": torch.erf,
    "atan": torch.atan,
    "atan2": lambda x: torch.atan2(x, x.roll(1)),
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "asin": torch.asin,
    "acos": torch.acos,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "hypot": lambda x: torch.hypot(x, x.roll(1)),
    "logaddexp": lambda x: torch.logaddexp(x, x.roll(1)),
    "xlogy": lambda x: torch.xlogy(x, x.roll(1)),
    "sinc": lambda x: torch.sinc(x.clamp(-10, 10)),
    "div": lambda x: x / x.roll(1),
    "glu": lambda x: F.glu(x),
}


def rows(x: Tensor) -> Tensor:
    """Rows with something special each: zeros, a constant, one infinity, two, both, NaN, the largest, the least,
    one or two zeros among numbers, masked."""
    info = torch.finfo(x.dtype)
    inf, nan = math.inf, math.nan
    some = x.nan_to_num(0.5, 2.0, -2.0).clamp(-3, 3)[:6] + torch.arange(6, dtype=x.dtype) / 4
    special = [
        [0.0] * 6, [-0.0] * 6, [0.7] * 6, [1000.1] * 6, [inf, 1, 2, 3, 4, 5], [inf, inf, 1, 2, 3, 4],
        [inf, -inf, 1, 2, 3, 4], [-inf] * 6, [-inf, 1, 2, 3, 4, 5], [nan, 1, 2, 3, 4, 5], [nan, inf, 1, 2, 3, 4],
        [info.max / 2] * 6, [info.max / 8, -info.max / 8] * 3, [info.tiny, 2 * info.tiny] * 3,
        [0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 4, 5], [3, 3, 1, 3, 2, 1], [1e20, 2e20, 3e20, 1e20, 2e20, -1e20],
        [1e-20, 2e-20, 3e-20, 1e-20, 2e-20, -1e-20],
    ]  # fmt: skip
    return torch.cat([torch.tensor(special, dtype=x.dtype), some[None]])


def tame(x: Tensor) -> Tensor:
    """Without finite numbers whose squares are large: PyTorch's normalizations give 0 or NaN of those, or what is
    right, depending on the shape and the layout."""
    return torch.where(x.isinf(), x, x.clamp(-1e4, 1e4))


#: functions of a matrix, along its rows
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "nansum": lambda x: x.nansum(1),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(1).values,
    "norm": lambda x: x.norm(dim=1),
    "norm_1": lambda x: x.norm(p=1, dim=1),
    "norm_3": lambda x: x.norm(p=3, dim=1),
    "norm_inf": lambda x: x.norm(p=math.inf, dim=1),
    "norm_0": lambda x: torch.linalg.vector_norm(x, 0, dim=1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "std_biased": lambda x: x.std(1, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1)[0],
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 0), 1),
    "batch_norm": lambda x: F.batch_norm(tame(x)[None], None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(tame(x)[None]),
    "group_norm": lambda x: F.group_norm(tame(x)[:, None], 1),
    "layer_norm": lambda x: F.layer_norm(tame(x), (6,)),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.roll(1, 0), reduction="none"),
    "huber": lambda x: F.huber_loss(x, x.roll(1, 0), reduction="none"),
    "l1": lambda x: F.l1_loss(x, x.roll(1, 0), reduction="none"),
    "mse": lambda x: F.mse_loss(x, x.roll(1, 0), reduction="none"),
    "bce_logits": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.ones_like(x), reduction="none"
    ),
    "kl_div": lambda x: F.kl_div(x, x.abs(), reduction="none"),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x)) % 6, reduction="none"),
}

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def step(functions: Sequence[Callable[[Tensor], Tensor]]) -> Callable[..., Any]:
    """Values and gradients of functions of one tensor."""

    def run(x: Tensor, dy: Tensor) -> list[list[Tensor]]:
        out = []
        for function in functions:
            leaf = x.detach().clone().requires_grad_()
            y = function(leaf)
            given = dy[: y.numel()].view(y.shape)
            grad = (
                torch.autograd.grad(y, leaf, given, allow_unused=True)[0]
                if y.requires_grad
                else None
            )
            out.append([y.detach(), torch.zeros_like(x) if grad is None else grad])
        return out

    return run


def differences(
    name: str, got: Tensor, want: Tensor, rounding: float, at: Tensor, other: Tensor | None = None
) -> list[str]:
    """Where a result differs from eager's: another kind of number, or another one.

    other: what may stand instead of eager's, which is rougher than float64 in places.
    """
    found = []
    if got.shape != want.shape or got.dtype != want.dtype:
        return [f"{name}: {got.dtype}{list(got.shape)}, eager {want.dtype}{list(want.shape)}"]
    wide, best = got.double().flatten(), want.double().flatten()
    if other is not None:
        exact = other.to(want.dtype).double().flatten()
        nearer = (wide - exact).abs() <= (wide - best).abs()
        same = (wide == exact) | (wide.isnan() & exact.isnan())
        best = torch.where(nearer | same, exact, best)
    nan = wide.isnan() != best.isnan()
    inf = ~nan & ~best.isnan() & ((wide.isinf() | best.isinf()) & (wide != best))
    sign = (wide == 0) & (best == 0) & (wide.signbit() != best.signbit())
    info = torch.finfo(want.dtype)
    # what is left of numbers that nearly cancel
    size = at.double().abs().nan_to_num(0).clamp(1, 1e4) if at.numel() == want.numel() else 1.0
    slack = (256 * info.eps * size) if rounding else 0.0  # normalizations multiply by up to 316
    close = (wide - best).abs() <= rounding * best.abs() + slack
    off = ~nan & ~inf & best.isfinite() & ~close
    # next to the largest number, one rounding more or less is an infinity
    edge = (wide.abs().clamp(max=info.max) - best.abs().clamp(max=info.max)).abs() <= (
        4 * info.eps * info.max if rounding else 0.0
    )
    inf &= ~edge
    signs = sign if not rounding else torch.zeros_like(sign)
    for what, where in (("NaN", nan), ("infinity", inf), ("sign of 0", signs), ("value", off)):
        if where.any():
            i = int(where.nonzero()[0, 0])
            given = at[i].item() if at.numel() == want.numel() else "?"
            found.append(
                f"{name}: {what} at {given}: {got.flatten()[i].item()}, eager {want.flatten()[i].item()}"
                f" ({int(where.sum())} places)"
            )
    return found


TABLES = {
    "exact": (EXACT, lambda x: x),
    "rounded": (ROUNDED, lambda x: x),
    "reductions": (REDUCTIONS, rows),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_like_eager(kind: str, dtype: torch.dtype) -> None:
    table, arrange = TABLES[kind]
    x = arrange(numbers(dtype))
    torch.manual_seed(0)
    names = list(table)
    run = step(list(table.values()))
    compiled = flow.compile(run)
    eps = torch.finfo(dtype).eps
    rough = (4 if dtype == torch.bfloat16 else 64) * eps
    found: list[str] = []
    for dy in (torch.randn(x.numel()).to(dtype), torch.ones(x.numel(), dtype=dtype)):
        exact = run(x.double(), dy.double()) if kind != "exact" else [[None, None]] * len(names)
        for name, got, want, other in zip(names, compiled(x, dy), run(x, dy), exact):
            rounding = (0.0, 4 * eps) if kind == "exact" else (rough, rough)
            found += differences(name, got[0], want[0], rounding[0], x.flatten(), other[0])
            label = f"{name}'s gradient"
            found += differences(label, got[1], want[1], rounding[1], x.flatten(), other[1])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_normalization_of_large_numbers(size: float) -> None:
    """The variance is infinite, and the result 0: finite, as eager's."""
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0)) * size

    def run(x: Tensor) -> list[Tensor]:
        leaf = x.detach().clone().requires_grad_()
        found = []
        for y in (F.instance_norm(leaf), F.batch_norm(leaf, None, None, training=True)):
            found += [y.detach(), torch.autograd.grad(y.sum(), leaf)[0]]
        return found

    for got, want in zip(flow.compile(run)(x), run(x)):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want)
    both = (flow.compile(lambda v: [v.std(2), v.var(2)])(x), [x.std(2), x.var(2)])
    for got, want in zip(*both):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_running_statistics_of_infinities(dtype: torch.dtype) -> None:
    """A channel with an infinity anywhere has an infinite mean, with infinities of both signs or NaN a NaN."""
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    for n in range(8):
        x[n, n] = (-1) ** n * torch.inf
    x[1, 8] = x[2, 9] = x[6, 9] = torch.nan
    x[3, 10], x[0, 10] = torch.inf, -torch.inf
    statistics = [torch.zeros(12, dtype=dtype), torch.ones(12, dtype=dtype)]
    kept = [t.clone() for t in statistics]
    flow.compile(lambda x, mean, var: F.batch_norm(x, mean, var, training=True))(x, *statistics)
    F.batch_norm(x, *kept, training=True)
    torch.testing.assert_close(statistics, kept, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"]
)
def test_the_gradient_of_a_mean_loss_of_nothing(name: str) -> None:
    x, target = torch.zeros(3, 0, requires_grad=True), torch.zeros(3, 0)

    class Gradient(flow.nn.Graph):
        def build(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            loss = getattr(F, name)(x, target)
            return loss, *torch.autograd.grad(loss, x)

    loss, gradient = Gradient()(x, target)
    assert loss.isnan()
    assert gradient.shape == x.shape


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_beside_wider_numbers_that_round_to_them(name: str, dtype: torch.dtype) -> None:
    """PyTorch rounds the number, or the 0-d tensor, to the type of the comparison."""
    x, wide = torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor(1.0001)
    op = getattr(torch, name)

    class Both(flow.nn.Graph):
        def build(self, x: torch.Tensor, wide: torch.Tensor) -> Any:
            return op(x, 1.0001), op(x, wide)

    for got, want in zip(Both()(x, wide), (op(x, 1.0001), op(x, wide))):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_the_gradient_of_logit_at_both_zeros() -> None:
    grads = []
    for function in (torch.logit, flow.compile(torch.logit)):
        x = torch.tensor([0.0, -0.0, 1.0, -1.0], requires_grad=True)
        grads += torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(grads[1], grads[0], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_dropout_drops_is_multiplied_by_zero(dtype: torch.dtype) -> None:
    """NaN where an infinite element is dropped, and zeros with the elements' signs; so are gradients."""
    x = torch.tensor([math.inf, -math.inf, math.nan, -1.0, 1.0, -0.0] * 12).to(dtype)
    x.requires_grad_()

    def run(x: Tensor) -> list[Tensor]:
        y, nothing = F.dropout(x, 0.5), F.dropout(x, 1.0)
        return [y.detach(), *torch.autograd.grad(y, x, x.detach()), nothing.detach()]

    values, gradients, nothing = flow.compile(run)(x)
    at = x.detach()
    dropped = torch.where(at.isinf() | at.isnan(), at * math.nan, at * 0)
    for found in (values, gradients):
        kept = (found.isinf() & at.isinf()) | (found == at * 2)
        assert kept.any()
        rest = ~kept
        assert rest[at == 1].any()
        torch.testing.assert_close(found[rest], dropped[rest], rtol=0, atol=0, equal_nan=True)
        finite = rest & at.isfinite()
        assert torch.equal(found[finite].signbit(), at[finite].signbit())
    torch.testing.assert_close(nothing, dropped, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["huber_loss", "soft_margin_loss"])
def test_losses_of_two_dtypes_are_refused(name: str) -> None:
    """PyTorch's kernels give the first one's dtype, its shape rules the common one."""
    loss = getattr(F, name)
    with pytest.raises(flow.errors.GraphTraceError, match="takes tensors of one dtype"):
        flow.nn.Graph.trace(lambda x, y: loss(x, y))(torch.ones(2), torch.ones(2).double())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("compiled", [flow.nn.Graph.trace, flow.compile])
def test_integers_at_the_end_of_their_range_are_divided(dtype: torch.dtype, compiled: Any) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, low + 1, high, high - 1, 7, 0], dtype=dtype)
    divisors = [3, 2, 5, 7] if low == 0 else [3, -3, 2, -2, 7, -7, -1]

    def divided(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.tensor(divisors, dtype=dtype)[:, None]
        return [x // 3, x // y, torch.div(x, y, rounding_mode="floor"), x % y, 100 // (x | 1)]

    for ours, theirs in zip(compiled(divided)(x), divided(x)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_of_a_number(dtype: torch.dtype) -> None:
    """1 and 0, and NaN of NaN and infinities; in a wider type where it is asked for."""

    def build(x: Tensor) -> tuple[Tensor, ...]:
        safe = torch._safe_softmax(x, 0)  # type: ignore[attr-defined]
        return x.softmax(0), x.log_softmax(-1), safe, x.softmax(0, dtype=torch.float32)

    graph = flow.nn.Graph.trace(build)
    for number in (1.5, math.nan, math.inf, -math.inf):
        x = torch.tensor(number, dtype=dtype)
        torch.testing.assert_close(graph(x), build(x), rtol=0, atol=0, equal_nan=True)
