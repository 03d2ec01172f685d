"""Symbolic sizes of TorchDynamo's graphs: one program for a range of sizes, beside eager PyTorch."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gflow.dynamo.backend  # noqa: F401
from gflow.tracing.data.sizes import Domain, Fixed, Narrower
from gflow.tracing.dispatch.symbols.size_expressions import Formulas

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Compilations(logging.Handler):
    """The gflow logger's messages: of programs for sizes, and of what runs op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.sized: list[str] = []
        self.eager: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "is compiled for" in text:
            self.sized.append(text.partition("is compiled for ")[2])
        if "op by op" in text:
            self.eager.append(text)


@pytest.fixture
def seen() -> Iterator[Compilations]:
    handler, log = Compilations(), logging.getLogger("gflow")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def check(
    function: Callable[..., Any],
    make: Callable[[int], tuple[Tensor, ...]],
    sizes: tuple[int, ...],
) -> None:
    """Calls of these sizes, of the first dimensions, beside eager."""
    compiled = torch.compile(function, backend="gflow")
    for n in sizes:
        args = make(n)
        for arg in args:
            torch._dynamo.maybe_mark_dynamic(arg, 0)
        got, want = tree_leaves(compiled(*args)), tree_leaves(function(*args))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}")


def test_an_encoder_trains_over_lengths_with_two_compilations(seen: Compilations) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gflow")
    for length in (5, 8, 3, 2, 17, 9, 40, 1):
        x = torch.randn(2, length, 16)
        for run, own in ((compiled, model), (eager, eager)):
            own.zero_grad()
            run(x).square().mean().backward()
        for a, b in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert len(seen.sized) == 2  # forward and backward
    assert not seen.eager


def test_an_embedding_with_dynamic_shapes(seen: Compilations) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(self, t: Tensor) -> Tensor:
            return self.head(self.tokens(t)).mean((0, 1)) * t.shape[1]

    model = Model()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gflow", dynamic=True)
    for batch, length in ((3, 8), (3, 5), (3, 31), (2, 7), (0, 4), (1, 1)):
        t = torch.randint(0, 20, (batch, length))
        for run, own in ((compiled, model), (eager, eager)):
            own.zero_grad()
            run(t).sum().backward()
        for a, b in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not seen.eager


def _attended(x: Tensor) -> Tensor:
    cache = x.view(1, -1, 2, 3).transpose(1, 2)
    return F.scaled_dot_product_attention(
        torch.linspace(-1, 1, 6).view(1, 2, 1, 3), cache, cache + 1
    )


#: name: function of an [n, 6] tensor, and how many programs sizes from 2 to 13 have at most; of sizes for which a
#: dimension is 1, TorchDynamo makes graphs of their own
_PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "sums and products": (lambda x: (torch.cat([x, x[1:]]) + 1, x.T @ x / x.shape[0]), 2),
    "halves": (lambda x: (x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2 :] * 2), 4),
    "strided convolution": (lambda x: F.conv1d(x.T[None], torch.ones(2, 6, 2), stride=2), 4),
    "remainders": (lambda x: x.sum() * (x.shape[0] % 3) + torch.ones(x.shape[0] % 3 + 1).sum(), 4),
    "at most": (lambda x: x[:6] + 1, 3),
    "pooled": (lambda x: F.max_pool1d(x.T[None], 2, 1), 1),
    "roots": (lambda x: x * x.shape[0] ** 0.5 + 1 / x.shape[0], 1),
    "arange": (lambda x: torch.arange(x.shape[0] + 1)[1:, None] * x, 1),
    "updates": (lambda x: x.clone().add_(1).T.contiguous(), 1),
    "views of one memory": (lambda x: (lambda y: (y, y.T, y[1:]))(x * 2), 2),
    "attention of one position": (lambda x: _attended(x), 1),
    "numbers": (lambda x: (x + x.shape[0], x.shape[0] // 2, x.shape[0] * 0.5), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", _PROGRAMS)
def test_sizes_not_seen_when_compiled(name: str, seen: Compilations) -> None:
    function, most = _PROGRAMS[name]
    check(function, lambda n: (torch.randn(n, 6),), (8, 9, 4, 13, 5, 2, 3, 12))
    assert not seen.eager
    assert len(seen.sized) <= most, seen.sized


def test_several_symbols_have_bounded_programs(seen: Compilations) -> None:
    function = lambda x, y: ((x @ y).softmax(-1), x.shape[0] * y.shape[1] + x.sum())  # noqa: E731
    compiled = torch.compile(function, backend="gflow", dynamic=True)
    for n, m in [(4, 3), (4, 9), (4, 7), (5, 7), (5, 3), (5, 20), (4, 33)]:
        x, y = torch.randn(n, 6), torch.randn(6, m)
        for a, b in zip(compiled(x, y), function(x, y), strict=True):
            torch.testing.assert_close(a, b)
    assert len(seen.sized) <= 4, seen.sized


def test_a_graph_that_no_size_can_vary_in_stops_compiling(
    seen: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gflow.dynamo import sizes

    monkeypatch.setattr(sizes, "MOST_PROGRAMS", 3)
    function = lambda x: x[: x.shape[0] // 100 + 1] * 2  # noqa: E731
    check(function, lambda n: (torch.randn(n, 2),), (2, 3, 4, 5, 6, 7))
    assert len(seen.sized) == 3
    assert any("3 programs for other sizes" in text for text in seen.eager)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.ones(2 ** x.shape[0]) * x.sum(),
        lambda x: torch.ones(int(x.shape[0] * 0.5) + 1) + x.sum(),
    ],
)
def test_sizes_that_are_no_polynomials_have_a_program_each(
    function: Callable[[Tensor], Tensor], seen: Compilations
) -> None:
    check(function, lambda n: (torch.randn(n, 2),), (3, 5, 4, 3))
    assert seen.sized
    assert not seen.eager


def test_what_has_no_program_is_said_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.ones(20).as_strided((2, 3), (int(x.sum().item()), 1))

    compiled = torch.compile(function, backend="gflow", dynamic=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(2, 3))
    said = r"cannot compile .*test_dynamo_sizes.py:\d+.*\(\.item\(\)\) can stay a tensor"
    assert re.search(said, caplog.text)


def test_formulas_narrow_their_domain() -> None:
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy.functions import FloorDiv, Max, Mod

    n = sympy.Symbol("n", integer=True, positive=True)
    whole = Domain("n", 2, 1024)

    def read(expr: Any, domain: Domain, at: int) -> tuple[tuple[int, ...], Domain]:
        while True:
            try:
                return Formulas(domain, n, {}).polynomial(expr), domain
            except Narrower as by:
                domain = domain.narrowed(by, at)

    for expr in (
        FloorDiv(n, 2), FloorDiv(FloorDiv(n - 1, 2), 3) + 1, Mod(n, 4) * n, FloorDiv(2 * n + 5, 4),
        Max(0, n - 7), FloorDiv(n, FloorDiv(n, 2)), 3 * n**2 - 1,
    ):  # fmt: skip
        for at in (24, 25, 37):
            found, domain = read(expr, whole, at)
            for size in range(2, 200):
                k = domain.k(size)
                if k is not None:
                    value = sum(c * k**p for p, c in enumerate(found))
                    assert value == expr.subs(n, size), (expr, size)
            assert domain.k(at) is not None
    with pytest.raises(Fixed):
        read(FloorDiv(n, 1000), whole, 5)


def test_inputs_with_gaps_and_overlaps() -> None:
    """They are copied into a dense tensor, whose strides depend on the size, too."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2).sum(1) + y.mean()

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.rand(n).expand(3, 4, n), torch.rand(2, n, 6)[:, :, ::2]

    compiled = torch.compile(function, backend="gflow", dynamic=True)
    for n in (5, 8, 3, 21):
        args = make(n)
        torch.testing.assert_close(compiled(*args), function(*args))


@pytest.mark.parametrize("of", ["argument", "updated argument", "intermediate"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_that_are_results(of: str, dynamic: bool | None) -> None:
    """AOTAutograd makes them again, where sizes vary by the strides and offsets of what a program returns."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        if of == "updated argument":
            x.mul_(2)
        _, second, third = torch.chunk(x if of != "intermediate" else x * y.mean(), 3, 1)
        return y * 2, second, third.t()

    compiled = torch.compile(function, backend="gflow", dynamic=dynamic)
    for n in (5, 7, 9):
        x, y = torch.randn(n + 2, n)[1:], torch.randn(3, n, requires_grad=True)
        ours, theirs = compiled(x.clone(), y), function(x.clone(), y)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
            if of != "intermediate":
                assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())


def test_products_of_three_sizes_keep_all_of_them() -> None:
    """Of `s0*s1*s2`, which no op has made, PyTorch's graphs hold one node with three operands and its code two."""

    def update(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, part: torch.Tensor) -> Any:
        torch.eq(a, b, out=out)  # what shares memory with `part` is an `as_strided_scatter`
        return part * 2

    memory = torch.randn(336)
    a = torch.randn(336).as_strided((3, 2, 8, 7), (14, 7, 42, 1))
    b = torch.randn(42).as_strided((3, 2, 1, 7), (7, 21, 42, 1))
    out, part = memory.view(3, 2, 8, 7), memory[36:61].view(5, 5)
    result = torch.compile(update, backend="gflow", dynamic=True)(a, b, out, part)
    assert not memory.any()
    assert not result.any()


def test_gradients_of_a_view_whose_argument_shares_storage() -> None:
    def function(other: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ y, x.expand(y.shape[1], 1, 16)

    compiled = torch.compile(function, backend="gflow")
    for n in (3, 7, 17):
        memory, y = torch.randn(19), torch.randn(16, n)
        found = []
        for run in (function, compiled):
            held = memory.clone()
            x = held.as_strided((1, 16), (16, 1), 1).requires_grad_()
            product, view = run(held[:1], x, y)
            weights = torch.arange(view.numel()).view(view.shape)
            (product.sum() + (view * weights).sum()).backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])


def test_what_pytorch_computes_by_the_remainder_of_a_size() -> None:
    """PyTorch's decomposition of `roll` computes `(n - 5) % n`, which is n - 5 for large sizes only."""
    table = torch.randn(40, 3)

    def rolled(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x[::3] * 2, torch.roll(table[:n], 5 - n, 0) + 1, torch.roll(x, (n // 2 + 2,), (0,))

    fast: Any = torch.compile(rolled, backend="gflow", dynamic=True)
    for n in (12, 13, 4, 3, 5, 7, 14, 2):  # 3 k + 1 is at 4 for k = 1
        x = torch.randn(n, 2)
        torch.testing.assert_close(fast(x), rolled(x))


def test_a_shift_that_varies_along_a_fixed_dimension() -> None:
    """Both stand-ins of a size are odd, so `n % 2` would be 1."""
    x = torch.arange(12.0).reshape(2, 6)

    def rolled(y: torch.Tensor) -> Any:
        return torch.roll(x, y.shape[0], 0) + y.sum(), torch.roll(x, (y.shape[0], 1), (1, 0))

    fast: Any = torch.compile(rolled, backend="gflow", dynamic=True)
    for n in (3, 4, 2, 5, 6, 9):
        y = torch.ones(n)
        torch.testing.assert_close(fast(y), rolled(y))
