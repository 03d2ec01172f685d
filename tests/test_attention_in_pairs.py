"""Attention on bfloat16 values that are multiplied two at a time (AVX-512's dot products), beside float64 and eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from codegen_harness import Arg, Case, compile_case, make, run_cases

import gflow
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.selection.choice import Choice
from gflow.dialects import builder
from gflow.dialects.program import processor
from gflow.runtime import Executable

Tensor = torch.Tensor
LEVEL = "x86-64-v4+bf16"
pytestmark = pytest.mark.skipif(
    not processor.LEVELS[LEVEL] <= processor.features(),
    reason="this processor has no dot products of bfloat16 values",
)


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Intel AMX, by which long attention is PyTorch's."""
    monkeypatch.setenv(processor.ISA, LEVEL)


@dataclass(frozen=True)
class Sizes:
    """Of an attention. shared: heads of k and v; bias: the shape of a mask."""

    batch: int
    rows: int
    keys: int
    heads: int
    shared: int
    channels: int
    causal: bool = False
    bias: tuple[int, ...] = ()
    boolean: bool = False


#: blocks of rows and keys with and without rests, odd ones, heads in groups, channels of part of a vector
SIZES = [
    Sizes(2, 128, 128, 2, 2, 64, True),
    Sizes(1, 97, 513, 4, 2, 32, True),
    Sizes(1, 420, 291, 2, 1, 66),
    Sizes(1, 61, 33, 1, 1, 8),
    Sizes(2, 65, 77, 3, 3, 24, False, (2, 3, 65, 77)),
    Sizes(2, 150, 301, 2, 2, 64, False, (1, 1, 1, 301)),
    Sizes(1, 60, 70, 2, 2, 64, False, (1, 2, 60, 70), True),
]


def _given(s: Sizes) -> list[Tensor]:
    """q, k, v, dy, and the mask, if there is one: views of projections."""
    random = torch.Generator().manual_seed(s.rows)
    shapes = [(s.rows, s.heads, s.channels), (s.keys, s.shared, s.channels)]
    shapes += [(s.keys, s.shared, s.channels), (s.rows, s.heads, s.channels)]
    made = [torch.randn(s.batch, *x, generator=random).bfloat16().transpose(1, 2) for x in shapes]
    if s.bias:
        bias = torch.randn(s.bias, generator=random)
        made.append(bias > -0.5 if s.boolean else bias.bfloat16())
    return made


def _attend(s: Sizes) -> Callable[..., list[Tensor]]:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, dy: Tensor, bias: Tensor | None = None
    ) -> list[Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=s.causal, enable_gqa=s.heads != s.shared
        )
        return [y, *torch.autograd.grad(y, [q, k, v], dy)]

    return attend


@pytest.mark.parametrize("s", SIZES, ids=str)
def test_errors_are_those_of_eager(s: Sizes) -> None:
    attend, given = _attend(s), _given(s)
    graph = gflow.nn.Graph.trace(attend)
    found, eager = graph(*given), attend(*given)
    exact = attend(*(x if x.dtype == torch.bool else x.double() for x in given))
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        a, b = ((x.double() - wanted).square().mean().sqrt() for x in (ours, theirs))
        assert a <= 1.2 * b + 1e-4 * wanted.abs().max()
    kernels = [step.kernel for step in graph.profile(*given, rounds=1).steps]
    assert sum(k.startswith("attention") and "pairs" in k for k in kernels) == 2


def test_dropout_drops_the_same_weights_in_both_directions() -> None:
    """With v and dy of ones, a row of y is the weight that is left, and so is the sum of dv over keys."""
    s = Sizes(1, 64, 90, 2, 2, 16)
    q, k, v, dy, *_ = _given(s)

    def attend(q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> list[Tensor]:
        v = v.detach().requires_grad_()
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        return [y, torch.autograd.grad(y, v, dy)[0]]

    y, dv = gflow.nn.Graph.trace(attend)(q, k, torch.ones_like(v), torch.ones_like(dy))
    kept = y.float()
    assert 0.9 < kept.mean() < 1.1
    assert kept.std() > 0.05
    torch.testing.assert_close(dv.float().sum(-2), kept.sum(-2), rtol=2e-2, atol=0.5)


def _case(rows: int, keys: int, causal: bool, values: int = 16) -> Case:
    shapes = [(2, rows, 2, 16), (2, keys, 2, 16), (2, keys, 2, values), (2, rows, 2, values)]

    def body(q, k, v, dy):  # type: ignore[no-untyped-def]
        attrs = {"causal": causal, "scale": 0.4}
        made = builder.build_op("attention", [q, k, v], attrs).results
        return [*made, *builder.build_op("attention_grad", [dy, q, k, v, *made], attrs).results[:3]]

    args = [Arg(x, "bf16") for x in shapes]
    return make(f"{rows} {keys} {causal} {values}", args, body, rtol=3e-2, atol=3e-2)


def test_values_of_other_channels() -> None:
    """Beside the interpreter."""
    run_cases([_case(50, 70, False, 48), _case(53, 301, True, 22)])


def test_processors_without_dot_products_run_the_same_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = _case(70, 301, True)
    program = compile_case(c)
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(2, n, 2, 16, generator=random).bfloat16() for n in (70, 301, 301, 70)]
    by_dots = [x.clone() for x in Executable(program)(given)]
    monkeypatch.setenv(processor.ISA, "x86-64-v3")
    for ours, theirs in zip(Executable(program)(given), by_dots, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_threads_change_no_bits() -> None:
    given = _given(SIZES[1])
    attend = _attend(SIZES[1])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append([x.clone() for x in gflow.nn.Graph.trace(attend)(*given)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("where", "number"), [*itertools.product(range(4), (float("nan"), float("inf")))])  # fmt: skip
def test_numbers_that_are_not_finite(where: int, number: float) -> None:
    """They spread as in the formula, whatever blocks a causal mask leaves out."""
    random = torch.Generator().manual_seed(0)
    sizes = (300, 290, 290, 300)
    tensors = [torch.randn(2, n, 2, 16, generator=random).bfloat16() for n in sizes]
    tensors[where][0, 200, 0, 3] = number
    y, _, dq, dk, dv = Executable(compile_case(_case(300, 290, True)))(tensors)
    q, k, v = (x.double().requires_grad_() for x in tensors[:3])
    hidden = ~torch.ones(300, 290, dtype=torch.bool).tril()
    scores = torch.einsum("bihc,bjhc->bhij", q, k) * 0.4
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = torch.einsum("bhij,bjhc->bihc", weights, v)
    grads = torch.autograd.grad(wanted, (q, k, v), tensors[3].double())
    for ours, theirs in zip((y, dq, dk, dv), (wanted, *grads), strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        there = theirs.isfinite()
        torch.testing.assert_close(ours[there].double(), theirs[there], rtol=5e-2, atol=5e-2)


def test_choices_that_no_code_follows() -> None:
    for kind, tile, block in (
        ("attention", (5, 32, 64), (5,)),
        ("attention_rows", (4, 64, 256), (4,)),
    ):
        with pytest.raises(CannotLower, match="has a blocking of attention"):
            Choice(kind, tile=tile, block=block, precision="bf16").attention_blocks()
