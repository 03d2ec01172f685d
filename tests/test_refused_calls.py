"""Calls that eager refuses for dtypes, sizes or numbers are refused while they are traced, read or not."""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import gflow as flow
from gflow.tracing.dispatch.failures.checks import CHECKS
from gflow.tracing.dispatch.symbols.held_numbers import _common

Tensor = torch.Tensor

X, I8, U8 = torch.ones(3, 3), torch.ones(3, dtype=torch.int8), torch.ones(3, dtype=torch.uint8)
H, C, B = (
    torch.ones(3, dtype=torch.float16),
    torch.ones(3, dtype=torch.complex64),
    torch.ones(3) > 0,
)
AT, NONE = torch.tensor([0, 1]), torch.zeros(2, 0)
INT32 = AT.int()

REFUSED: dict[str, Callable[[], Any]] = {
    "clamp of complex": lambda: torch.clamp(C, 0, None),
    "clamp by complex": lambda: torch.clamp(X[0], C),
    "floor of complex": lambda: torch.floor(C),
    "argmin of complex": lambda: torch.argmin(C),
    "argmax of bools": lambda: torch.argmax(B),
    "sort of complex": lambda: torch.sort(C),
    "max of complex": lambda: torch.max(C, 0),
    "relu of bools": lambda: F.relu(B),
    "min along nothing": lambda: torch.min(NONE, 1),
    "difference of bools": lambda: torch.rsub(B, True),
    "std of integers": lambda: torch.std(I8),
    "complex of bfloat16": lambda: torch.complex(X.bfloat16(), X.bfloat16()),
    "division of integers": lambda: torch.addcdiv(B, B, B),
    "transform of halves": lambda: torch.stft(
        torch.ones(16).half(), 4, window=torch.ones(4).half(), return_complex=True
    ),
    "index_copy by int32": lambda: X.clone().index_copy_(0, INT32, X[:2]),
    "index_add of another dtype": lambda: X.index_add(0, AT, X[:2].double()),
    "index_fill by floats": lambda: X.index_fill(0, AT.float(), 1.0),
    "index_select by bytes": lambda: X.index_select(0, AT.to(torch.uint8)),
    "index_put of another dtype": lambda: X.index_put((AT,), X[0].double()),
    "a mask of other sizes": lambda: X[X[:1] > 0],
    "a mask of one element": lambda: X[:, B[:1]],
    "a mask of one element, set": lambda: X.clone()[:, B[:1]].fill_(2.0),
    "a mask of other sizes, filled": lambda: X.index_put((X[:, :1] > 0,), X[0, 0]),
    "a mask of other sizes, added": lambda: X.index_put((AT, B[:1]), X[0, 0], True),
    "bins of a negative number": lambda: torch.bincount(AT, minlength=-1),
    "a slice that is not there": lambda: X.select_scatter(X[0], 0, 3),
    "a slice before the first": lambda: X.select_scatter(X[0], 1, -4),
    "index_put without an index": lambda: X.index_put((), X[:1], True),
    "put by int32": lambda: X.put(INT32, X[0, :2]),
    "weights of another dtype": lambda: F.nll_loss(X, torch.tensor([0, 1, 2]), X[0].double()),
    "labels of another dtype": lambda: F.multi_margin_loss(X, torch.tensor([0, 1, 2]).int()),
    "a loss of integers": lambda: F.soft_margin_loss(I8, I8),
    "convolution of two dtypes": lambda: F.conv1d(X[None].double(), X[None]),
    "samples of two dtypes": lambda: F.grid_sample(
        torch.ones(1, 1, 2, 2), torch.ones(1, 2, 2, 2).double(), align_corners=False
    ),
    "uint8 of 300": lambda: torch.full_like(U8, 300),
    "uint8 of -0.5": lambda: torch.full_like(U8, -0.5),
    "int64 of NaN": lambda: torch.full((2,), float("nan"), dtype=torch.int64),
    "float16 of 1e30": lambda: torch.full_like(H, 1e30),
    "float32 of 1e60": lambda: X.clone().fill_(1e60),
    "fill in place": lambda: U8.clone().fill_(1000),
    "mask": lambda: H.masked_fill(B, -1e30),
    "choice": lambda: torch.where(B, U8, 1000),
    "bound": lambda: torch.clamp(U8, max=1000),
    "threshold": lambda: F.threshold(H, 3, 1e30),
    "padding": lambda: F.pad(U8, (1, 1), value=1000),
    "scattered": lambda: U8.scatter(0, AT, 1000),
    "alpha": lambda: torch.add(U8, U8, alpha=1000),
    "power": lambda: torch.pow(U8, 256),
    "a bool as the factor of a difference": lambda: torch.sub(X, X, alpha=True),
    "a bool as the factor of a number": lambda: torch.add(AT, 2, alpha=True),
    "a float as the factor of bools": lambda: torch.add(B, B, alpha=1.5),
    "a view across a dimension of 1": lambda: X.as_strided((2, 1, 2), (1, 5, 3)).view(-1),
    "a view of a transposed matrix": lambda: X[:2].t().view(6),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name: str) -> None:
    call = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
        call()

    def build(x: Tensor) -> Tensor:
        call()
        return x + 1

    with pytest.raises(flow.GraphTraceError, match=r"test_refused_calls\.py:\d+"):
        flow.nn.Graph.trace(build)(torch.ones(2))


#: calls that AOTAutograd takes apart, drops, or shows no mode of dispatch, beside those that it leaves as they are
BY_DYNAMO: dict[str, Callable[[Tensor], Any]] = {
    "relu of bools": lambda x: F.relu(x > 0),
    "difference of bools": lambda x: (x > 0) - (x > 1),
    "labels of another dtype": lambda x: F.multi_margin_loss(x, x[0].int()),
    "a product of two dtypes": lambda x: x @ x.double(),
    "uint8 of 300": lambda x: torch.full_like(x, 300, dtype=torch.uint8),
    "shrunk halves": lambda x: F.hardshrink(x.half(), 1e30),
    "index_fill by floats": lambda x: x.index_fill(0, x[0], 1.0),
    "a view of a transposed matrix": lambda x: x[:2].t().view(6),
}


@pytest.mark.parametrize("name", BY_DYNAMO)
def test_what_eager_refuses_under_torch_compile(name: str) -> None:
    """Read or not; a function that `gflow.compile` leaves to TorchDynamo runs as in eager then."""
    call = BY_DYNAMO[name]

    def read(x: Tensor) -> Any:
        return call(x)

    def unread(x: Tensor) -> Tensor:
        call(x)
        return x + 1

    for function in (read, unread):
        torch._dynamo.reset()
        with pytest.raises((RuntimeError, IndexError)):
            function(torch.ones(3, 3))
        with pytest.raises(RuntimeError, match=r"test_refused_calls\.py"):
            torch.compile(function, backend="gflow")(torch.ones(3, 3))
    with pytest.raises((RuntimeError, IndexError)):
        flow.compile(unread)(torch.ones(3, 3))


@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss])
def test_losses_of_two_dtypes_have_the_first_one_or_are_refused(
    loss: Callable[..., Tensor],
) -> None:
    """PyTorch's shape rule gives the common dtype."""

    def function(x: Tensor) -> Tensor:
        return loss(x, x.double())

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"test_refused_calls\.py.* one dtype"):
        torch.compile(function, backend="gflow")(X)
    assert flow.compile(function)(X).dtype == function(X).dtype == torch.float32


def test_what_eager_takes_under_torch_compile() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [call() + 0 for call in TAKEN.values()]

    torch._dynamo.reset()
    found = torch.compile(function, backend="gflow")(X)
    for name, ours in zip(TAKEN, found, strict=True):
        assert torch.equal(ours, TAKEN[name]() + 0), name


TAKEN: dict[str, Callable[[], Tensor]] = {
    "negative integers wrap around": lambda: torch.full_like(U8, -255),
    "one half goes by way of a float": lambda: torch.full((1,), 1e5, dtype=torch.float16),
    "infinities": lambda: H.masked_fill(B, -torch.inf),
    "bools": lambda: torch.full((2,), 5, dtype=torch.bool),
    "a bound of another dtype": lambda: torch.clamp(U8, max=1000.0),
    "sums convert nothing": lambda: U8 + 1000,
    "the greatest number": lambda: torch.full_like(X, torch.finfo(torch.float32).max),
    "int32 positions": lambda: X.index_select(0, INT32),
    "min along the other dimension": lambda: torch.min(NONE.t(), 1)[0],
}


def test_what_eager_takes() -> None:
    def build(x: Tensor) -> list[Tensor]:
        return [call() + 0 for call in TAKEN.values()]

    for name, ours in zip(TAKEN, flow.nn.Graph.trace(build)(X), strict=True):
        assert torch.equal(ours, TAKEN[name]() + 0), name


def test_views_go_by_the_strides_as_in_eager() -> None:
    """Random strides and shapes, by the rule alone: nothing is traced."""
    rng = random.Random(0)
    refused = 0
    for _ in range(2000):
        shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))]
        strides, step = [0] * len(shape), 1
        for d in rng.sample(range(len(shape)), len(shape)):
            every = rng.choice((1, 1, 1, 2))
            strides[d], step = step * every, step * every * shape[d]
        if rng.random() < 0.1:
            strides[rng.randrange(len(shape))] = rng.choice((0, 1, 7))
        left, wanted = math.prod(shape), []
        while left > 1:
            wanted.append(rng.choice([n for n in range(1, left + 1) if left % n == 0]))
            left //= wanted[-1]
        rng.shuffle(wanted)
        if wanted and rng.random() < 0.3:
            wanted[rng.randrange(len(wanted))] = -1
        tensor = torch.empty_strided(shape, strides)
        try:
            tensor.view(wanted)
            allowed = True
        except RuntimeError:
            allowed = False
        refused += not allowed
        problem = CHECKS[torch.ops.aten.view.default]((tensor, wanted))
        assert (problem is None) == allowed, (shape, strides, wanted)
    assert 500 < refused < 1500


def test_updates_that_would_resize_are_refused() -> None:
    def grows(x: Tensor) -> Tensor:
        return x.addbmm_(X[None], X[None])

    def beside_a_view(x: Tensor) -> Tensor:
        return torch.eq(x.expand_as(x), NONE[None], out=x)

    for function, x in ((grows, torch.zeros(())), (beside_a_view, torch.zeros(0))):
        assert function(x.clone()).shape != x.shape
        with pytest.raises(flow.GraphTraceError, match="new tensor"):
            flow.nn.Graph.trace(function)(x)


_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
#: eager refuses fractions as factors of integers for products over nothing only; memory beside a tensor that is read;
#: real numbers from complex bounds, which are converted before the op is seen
_OTHERS = ("addmm", "as_strided.partial_views", "linspace.tensor_overload")


def _converted(given: Any, base: torch.dtype, dtype: torch.dtype) -> Any:
    def convert(t: Tensor) -> Tensor:
        return t.detach().to(dtype) if t.dtype == base else t.detach()

    return pytree.tree_map_only(Tensor, convert, given)


def _cases() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """(name, function, (args, kwargs)) of samples of PyTorch's with tensors of other dtypes."""
    from oracle.op_db import _ops

    for name, op in _ops().items():
        kinds = (torch.float32, torch.int64, torch.bool)
        base = next((d for d in kinds if op.supports_dtype(d, "cpu")), None)
        if base is None or name in _OTHERS:
            continue
        for sample, _ in zip(op.sample_inputs("cpu", base), range(2)):
            given = ((sample.input, *sample.args), dict(sample.kwargs))
            for dtype in _DTYPES:
                yield f"{name} of {dtype}", op.op, _converted(given, base, dtype)


def _is_missed(function: Callable[..., Any], given: Any) -> bool:
    leaves, spec = pytree.tree_flatten(given)
    tensors = [v for v in leaves if isinstance(v, Tensor)]

    def build(x: Tensor, *tensors: Tensor) -> Tensor:
        found = iter(tensors)
        again = [next(found) if isinstance(v, Tensor) else v for v in leaves]
        args, kwargs = pytree.tree_unflatten(again, spec)
        function(*args, **kwargs)
        return x + 1

    try:
        build(torch.ones(2), *tensors)
        return False
    except Exception as error:
        if "not implemented for" in str(error):
            return False
    try:
        flow.nn.Graph.trace(build)(torch.ones(2), *tensors)
    except Exception:
        return False
    return True


@pytest.mark.sweep
def test_samples_of_other_dtypes() -> None:
    """A call whose result nobody reads is refused wherever eager refuses it, but for kernels that eager lacks."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        missed = [name for name, function, given in _cases() if _is_missed(function, given)]
    assert not missed


@pytest.mark.parametrize("along", [torch.median, torch.nanmedian, torch.mode])
def test_what_eager_refuses_it_refuses_through_compile(along: Callable[..., Any]) -> None:
    def call(x: Tensor) -> Tensor:
        along(x, 0)  # nothing reads it
        return x.sum()

    with pytest.raises(flow.GraphTraceError, match="takes no dimension without elements"):
        flow.nn.Graph.trace(call)(torch.ones(0, 3))
    with pytest.raises(IndexError, match="non-zero size"):
        flow.compile(call)(torch.ones(0, 3))


@pytest.mark.parametrize("compiled", [flow.compile, lambda f: torch.compile(f, backend="gflow")])
def test_bools_that_kernels_refuse(compiled: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"Boolean inputs not supported|takes no bool"):
        compiled(lambda x: F.relu(x) * 2 + 1)(B)


def test_sparse_gradients_by_frequency() -> None:
    weight = torch.randn(5, 2, requires_grad=True)

    @flow.compile
    def rows(at: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(at, weight, sparse=True, scale_grad_by_freq=True)

    with pytest.raises(RuntimeError, match="scale_grad_by_freq"):
        rows(AT, weight).sum().backward()


def test_ldexp_of_integers_by_a_half() -> None:
    half = torch.tensor(2.0).half()
    got = flow.compile(torch.ldexp)(AT, half)
    torch.testing.assert_close(got, torch.ldexp(AT, half))


@pytest.mark.parametrize(
    "run", [flow.nn.Graph.trace, flow.compile, functools.partial(torch.compile, backend="gflow")]
)
def test_ldexp_by_integers_has_the_type_of_its_operand(run: Any) -> None:
    """Also where the power alone leaves the range."""
    powers = torch.tensor([3, -3, 0, 200, -200, 3000])
    values = torch.tensor([1.5, -0.0, 3e38, 1e-40, 3e38, float("-inf")])
    held = [values.to(t) for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    held.append(powers.clamp(-9, 9).int())

    def both(*args: Tensor) -> list[Tensor]:
        return [torch.ldexp(x, args[-1]) for x in args[:-1]]

    for got, want in zip(run(both)(*held, powers), both(*held, powers)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


#: calls with numbers or of functions whose checks look at several tensors, all of which eager computes
COMPUTED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum with alpha": lambda x, y: torch.add(x, y, alpha=0.5),
    "difference with alpha": lambda x, y: torch.rsub(x[0, 0], y, alpha=2.0),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=-2),
    "addcmul of integers": lambda x, y: torch.addcmul(x.long(), y.int(), x.int(), value=3),
    "clamp": lambda x, y: torch.clamp(x, 0, 2),
    "clamp by a tensor": lambda x, y: torch.clamp(x, min=y),
    "hardshrink": lambda x, y: F.hardshrink(x, 0.3),
    "softshrink": lambda x, y: F.softshrink(x, 0.3),
    "margin loss": lambda x, y: F.multi_margin_loss(x, AT.new_tensor([0, 1, 2])),
    "margin loss of several": lambda x, y: F.multilabel_margin_loss(x, y.long().abs() % 3),
    "threshold": lambda x, y: F.threshold(x, 0.1, 20.0),
    "fill": lambda x, y: x.masked_fill(y > 0, 3.0) + torch.full_like(y, 2),
    "power": lambda x, y: x.abs() ** 1.5 + y.int() ** 2,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_calls_pass_the_checks_under_torch_compile(name: str) -> None:
    """The checks run while AOTAutograd is at work, on tensors of its own kinds."""
    function = COMPUTED[name]
    torch._dynamo.reset()
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    compiled = torch.compile(function, backend="gflow")
    torch.testing.assert_close(compiled(x, y), function(x, y))
    needs = x.clone().requires_grad_()
    torch.testing.assert_close(compiled(needs, y), function(x, y))


def test_tensors_and_numbers_are_promoted_as_in_eager() -> None:
    """Tensors without dimensions and numbers count less than others."""
    dtypes = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64)
    tensors = [torch.ones(shape, dtype=d) for shape in ((), (1,)) for d in dtypes]
    for first in tensors:
        for second in tensors:
            assert _common((first, second), {}) == (first * second).dtype
        for number in (2, 2.5, True):
            assert _common((number, first), {"alpha": 3.5}) == (number * first).dtype
