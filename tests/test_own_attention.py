"""Attention of our own on the CPU: blocks of keys and a running softmax, beside the interpreter and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from codegen_harness import CONTEXT, Arg, Case, compile_case, make, run_cases

import gflow
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.races import Racing
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.attention_contest import AttentionContest
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.targets.processors import PROCESSORS, Measured
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep, KernelStep, Program, processor
from gflow.runtime import Executable

Tensor = torch.Tensor
LEVELS = [name for name in PROCESSORS if processor.LEVELS[name] <= processor.features()]
pytestmark = pytest.mark.skipif(
    not LEVELS, reason="this processor has no vectors that attention is made for"
)


@dataclass(frozen=True)
class Sizes:
    """Of an attention. shared: heads of k and v; values: channels of v."""

    batch: int = 1
    rows: int = 5
    keys: int = 7
    heads: int = 2
    shared: int = 2
    channels: int = 8
    values: int = 8


def case(
    s: Sizes,
    causal: bool = False,
    bias: tuple[tuple[int, ...], str] | None = None,
    dropout: float = 0.0,
    strides: tuple[int, ...] | None = None,
    values: Mapping[int, Tensor] | None = None,
    tolerance: float = 2e-5,
) -> Case:
    """A forward and its gradients. bias: shape and element type. strides: of q. values: of arguments by number."""
    shapes = [
        (s.batch, s.rows, s.heads, s.channels),
        (s.batch, s.keys, s.shared, s.channels),
        (s.batch, s.keys, s.shared, s.values),
        (s.batch, s.rows, s.heads, s.values),
    ]
    args = [Arg(shape) for shape in shapes]
    args[0].strides = strides
    if bias is not None:
        args.append(Arg(*bias))
    for n, tensor in (values or {}).items():
        args[n].values = tensor
    if dropout:
        args.append(Arg((2,), "i64", values=torch.tensor([11, 3])))
    attrs: dict[str, Any] = {"causal": causal, "scale": 0.4}
    if dropout:
        attrs |= {"dropout": dropout, "stream": 5}

    def body(q: Any, k: Any, v: Any, dy: Any, *rest: Any) -> list[ir.Value]:
        made = builder.build_op("attention", [q, k, v, *rest], attrs).results
        grads = builder.build_op("attention_grad", [dy, q, k, v, *made, *rest], attrs).results
        return [*made, *grads[:3]]

    return make(f"{s} {causal} {bias} {dropout}", args, body, rtol=tolerance, atol=tolerance)


CASES: dict[str, Callable[[], list[Case]]] = {
    "few rows": lambda: [case(Sizes()), case(Sizes(), True), case(Sizes(rows=7, keys=5), True)],
    "one position": lambda: [
        case(Sizes(rows=1, keys=70, heads=6)),
        case(Sizes(2, 1, 300, 8, 2, 33, 40), bias=((1, 8, 1, 300), "f32")),
        case(Sizes(1, 1, 20, 8, 2, 16, 16), True),
    ],
    "few positions of heads in groups": lambda: [
        case(Sizes(2, 3, 300, 8, 2, 33, 40), True, ((1, 8, 3, 300), "f32")),
        case(Sizes(1, 5, 270, 3, 1, 200, 72), bias=((1, 3, 5, 270), "i1"), dropout=0.25),
        case(Sizes(1, 21, 40, 2, 1, 16, 130), True),
    ],
    "blocks of rows and keys": lambda: [
        case(Sizes(1, 150, 300, 1, 1, 20, 24)),
        case(Sizes(1, 420, 290, 1, 1, 16, 16), True),
        case(Sizes(1, 60, 300, 1, 1, 7, 7), True),
    ],
    "heads in groups": lambda: [case(Sizes(2, 30, 40, 6, 2), True), case(Sizes(1, 13, 3, 4, 1))],
    "biases": lambda: [
        case(Sizes(2, 20, 33), bias=(shape, dtype))
        for shape in ((2, 2, 20, 33), (1, 1, 20, 33), (2, 1, 1, 33), (1, 2, 20, 1), (1, 1, 1, 1))
        for dtype in ("f32", "i1")
    ],
    "a bias beside a causal mask": lambda: [
        case(Sizes(1, 50, 50), True, ((1, 2, 50, 50), "f32")),
        case(Sizes(1, 50, 50), True, ((1, 1, 50, 50), "i1")),
    ],
    "dropout": lambda: [
        case(Sizes(2, 30, 40, 4, 2), True, dropout=0.25),
        case(Sizes(1, 1, 40, 4, 2), dropout=0.25),
        case(Sizes(1, 3, 300, 1, 1), dropout=0.5, bias=((1, 1, 3, 300), "f32")),
    ],
    "queries with other strides": lambda: [
        case(Sizes(2, 20, 30, 3, 3, 8, 8), strides=(480, 8, 160, 1)),
        case(Sizes(2, 20, 30, 3, 3, 8, 8), strides=(0, 8, 0, 1)),
        case(Sizes(2, 20, 30, 3, 3, 8, 8), strides=(480, 1, 160, 20)),
    ],
    "wide heads": lambda: [case(Sizes(1, 20, 20, 1, 1, 200, 300))],
}


@pytest.mark.parametrize("name", CASES)
def test_like_the_interpreter(name: str) -> None:
    """On one thread and two, with equal bits when run again."""
    cases = CASES[name]()
    run_cases(cases, threads=(1, 2), repeat=True)
    for c in cases:
        assert c.program is not None
        assert not any(isinstance(s, AtenStep) for s in c.program.steps)


def test_threads_change_no_bits() -> None:
    one, two = (
        [t.clone() for t in run_cases([case(Sizes(2, 100, 300, 4, 2, 16, 16), True)], (n,))[0]]
        for n in (1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_rows_without_a_key_are_zeros() -> None:
    """So are their logarithms, and what passes through them to q, k and v."""
    seen = torch.rand(1, 1, 20, 33) < 0.5
    seen[:, :, 3:6] = False
    y, sums, dq, _, _ = run_cases(
        [case(Sizes(1, 20, 33), bias=((1, 1, 20, 33), "i1"), values={4: seen})]
    )[0]
    for x in (y[0, 3:6], sums[0, :, 3:6], dq[0, 3:6]):
        assert not x.any()
    none = torch.full((1, 1, 20, 33), -torch.inf)
    found = run_cases([case(Sizes(1, 20, 33), bias=((1, 1, 20, 33), "f32"), values={4: none})])[0]
    assert not any(x.any() for x in found)


def test_errors_are_those_of_eager() -> None:
    """Beside float64, scores far apart among them."""
    for factor in (1.0, 20.0):
        s = Sizes(1, 200, 400, 2, 2, 64, 64)
        c = case(s, values={0: factor * torch.randn(1, 200, 2, 64)}, tolerance=1e-2)
        ours = run_cases([c])[0]
        exact, eager = _exact(c.args), _eager(c.args)
        for a, b, w in zip(ours, eager, exact, strict=True):
            scale = w.abs().max()
            assert (a - w).abs().max() <= 3 * (b - w).abs().max() + 1e-6 * scale
            assert (a - w).norm() <= 1.5 * (b - w).norm() + 1e-7 * w.norm()


def _exact(args: list[Tensor]) -> list[Tensor]:
    q, k, v, dy = (x.double().transpose(1, 2) for x in args)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    scores = q @ k.transpose(-1, -2) * 0.4
    y = scores.softmax(-1) @ v
    grads = torch.autograd.grad(y, leaves, dy)
    moved = [x.detach().transpose(1, 2) for x in (y, *grads)]
    return [moved[0], scores.detach().logsumexp(-1), *moved[1:]]


def _eager(args: list[Tensor]) -> list[Tensor]:
    q, k, v, dy = (x.transpose(1, 2) for x in args)
    aten = torch.ops.aten
    y, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=0.4)
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, k, v, y, sums, 0.0, False, scale=0.4
    )
    moved = [x.transpose(1, 2) for x in (y, *grads)]
    return [moved[0], sums, *moved[1:]]


def test_a_training_step_without_a_call_of_pytorch() -> None:
    """Sizes that vary, too: one program for all of them."""

    class Attend(gflow.nn.Graph):
        def build(self, x: Tensor) -> tuple[Tensor, Tensor]:
            q, k, v = x.view(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y, torch.autograd.grad(y.square().sum(), x)[0]

    graph = Attend()
    for n in (40, 17, 300, 5, 1):
        x = torch.randn(2, n, 96, requires_grad=True)
        y, dx = graph(x)
        q, k, v = x.view(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
        (grad,) = torch.autograd.grad(wanted.square().sum(), x)
        torch.testing.assert_close(dx, grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("faster", "causal"), [("own", True), ("aten", True), ("known", True), ("known", False)]
)
def test_races(faster: str, causal: bool) -> None:
    """What is measured to be faster is written into the IR. Equal attentions are measured once; those that the table of
    processors decides are not."""
    asked: list[str] = []

    def measure(what: str, programs: Callable[[], Mapping[str, Program]]) -> dict[str, float]:
        asked.append(what)
        found = programs()
        values = [torch.randn(a.type.shape) for a in next(iter(found.values())).arguments]
        if "gradients" in what:
            values[4] += 5  # logarithms of sums as they might be
        results = [[r.clone() for r in Executable(p)(values)] for p in found.values()]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        return {name: 1.0 + (name != faster) for name in found}

    c = case(Sizes(1, 128, 128, 4, 4, 32, 32), causal)
    settled = frozenset({"causal forward", "causal gradients", "gradients"})
    row = Measured("GenuineIntel", 6, frozenset(), LEVELS[0], 2, (1.0, 1.0), frozenset(), settled)
    known = row if faster == "known" else None
    pipeline = (
        f"builtin.module(func.func(gflow-materialize,gflow-select-kernels{{target=cpu threads=2 isa={LEVELS[0]}}},"
        "gflow-plan-memory))"
    )
    options = CompileOptions(
        pipeline=pipeline, threads=2, blas=True,
        racing=Racing(measure, "here", known=lambda level, threads: known),
    )  # fmt: skip
    with CONTEXT:
        program = compile_module(c.module, options)
    if known is not None:
        assert asked == [text for text in asked if not causal and text.startswith("attention")]
        assert len(asked) == (not causal)
        return
    assert [text.startswith("gradients") for text in asked] == [False, True]
    assert program.ir.count('tuned = "here"') == 2
    kind = {"own": KernelStep, "aten": AtenStep}[faster]
    assert [type(s) for s in program.steps] == [kind, kind]
    assert [next(iter(r.seconds)) for r in program.races] == [
        {"own": "own", "aten": "ATen"}[faster]
    ] * 2


def test_small_attentions_are_not_raced() -> None:
    small = AttentionContest(1, 4, 4, 16, 16, 8, 8, False, False, False)
    assert not small.worth_while
    long = AttentionContest(64, 12, 12, 4096, 4096, 64, 64, True, False, True)
    assert long.worth_while
    assert long.shorter().size <= 1 << 27
    assert "4096" not in str(long.shorter())


def test_choices_that_no_code_follows() -> None:
    for tile, block in (
        ((12, 40, 64), (12,)),
        ((12, 32, 64), (13,)),
        ((12, 32, 60), (12,)),
        ((12, 32, 64), (12, 64)),
    ):
        with pytest.raises(CannotLower, match="has a blocking of attention"):
            Choice("attention", tile=tile, block=block).attention_blocks()
    for tile in ((8, 64, 256), (16, 16, 256), (1, 64, 250)):
        with pytest.raises(CannotLower, match="has a blocking of attention"):
            Choice("attention_rows", tile=tile, block=(8,)).attention_blocks()


@pytest.mark.parametrize("where", range(4))
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(where: int, number: float) -> None:
    """They spread as in the formula, 0 times infinity included, whatever blocks a causal mask leaves out."""
    s = Sizes(1, 300, 290, 1, 1, 16, 16)
    torch.manual_seed(0)
    shapes = [(1, s.rows, 1, 16), (1, s.keys, 1, 16), (1, s.keys, 1, 16), (1, s.rows, 1, 16)]
    tensors = [torch.randn(shape) for shape in shapes]
    tensors[where][0, 200, 0, 3] = number
    y, _, dq, dk, dv = Executable(compile_case(case(s, True)))(tensors)
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    scores = (q[:, :, 0] @ k[:, :, 0].mT * 0.4).masked_fill(
        ~torch.ones(s.rows, s.keys, dtype=torch.bool).tril(), -torch.inf
    )
    wanted = scores.softmax(-1) @ v[:, :, 0]
    grads = torch.autograd.grad(wanted, (q, k, v), tensors[3][:, :, 0])
    for ours, theirs in zip((y[:, :, 0], dq, dk, dv), (wanted.detach(), *grads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "keys"), [(3, 70), (70, 70)])
def test_half_precision_is_widened(dtype: torch.dtype, rows: int, keys: int) -> None:
    """With gradients, in views that are not dense; errors are no larger than eager's."""

    def attend(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=rows == keys)
        return (y, *torch.autograd.grad(y, (q, k, v), grad))

    generator = torch.Generator().manual_seed(keys)
    shapes = [(2, rows, 4, 32), (2, keys, 4, 32), (2, keys, 4, 32), (2, rows, 4, 32)]
    given = [torch.randn(s, generator=generator).to(dtype).transpose(1, 2) for s in shapes]
    leaves = [t.requires_grad_(n < 3) for n, t in enumerate(given)]
    graph = gflow.compile(attend)
    found, eager = graph(*leaves), attend(*leaves)
    exact = attend(*(t.detach().double().requires_grad_(t.requires_grad) for t in leaves))
    for f, e, x in zip(found, eager, exact, strict=True):
        ours, theirs = ((t.double() - x).square().mean().sqrt() for t in (f, e))
        assert ours <= 1.2 * theirs
        assert f.dtype == dtype
