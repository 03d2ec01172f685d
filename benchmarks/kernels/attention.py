"""Attention in float32: our own kernel and ATen's in turn, forward and backward; and one that a program writes out.

    python -m benchmarks attention [--threads 1] [--rounds 15] [--quick] [--json FILE]

With one thread times are the processor's (the machine may be shared), with more they are the clock's. Figures are
medians of rounds in which both take turns, each the least of several calls; ratios are medians of the rounds' ratios.
Errors are the root of the mean square to float64, relative, of the result, or of the worst of the three gradients.

Written-out attention is a step of softmax(q kᵀ) v and its gradients: with one op, as is the default, with the products
and the softmax as they stand, and in eager PyTorch; the arena is what the plan needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

import gflow as flow
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import number, table
from benchmarks.kernels.products import options, seconds
from gflow.compiler.emit.cpu.attention.race import SCALE, programs
from gflow.compiler.kernel.attention_contest import AttentionContest
from gflow.compiler.kernel.selection.cpu.attention import blocks_of
from gflow.compiler.targets.processors import PROCESSORS, host_level
from gflow.runtime import Executable

#: batch, heads, heads of k and v, positions of q, of k, channels, whether causal
SHAPES = {
    "GPT-2 small, 128": (8, 12, 12, 128, 128, 64, True),
    "GPT-2 small, 256": (4, 12, 12, 256, 256, 64, True),
    "GPT-2 small, 1024": (1, 12, 12, 1024, 1024, 64, True),
    "decoder": (8, 6, 6, 128, 128, 64, True),
    "characters": (16, 6, 6, 128, 128, 32, True),
    "BERT, 128": (8, 12, 12, 128, 128, 64, False),
    "ViT, 197": (8, 12, 12, 197, 197, 64, False),
    "Llama, 32 heads over 8": (1, 32, 8, 256, 256, 128, True),
    "2 x 8 x 1024 x 64": (2, 8, 8, 1024, 1024, 64, False),
    "one token, cache of 1024": (1, 12, 12, 1, 1024, 64, False),
    "one token, 32 heads over 8": (1, 32, 8, 1, 1024, 128, False),
    "4 tokens, 32 heads over 8": (1, 32, 8, 4, 1024, 64, False),
    "16 tokens, cache of 1024": (1, 12, 12, 16, 1024, 64, False),
}
QUICK = {"small": (1, 2, 1, 20, 20, 8, True)}

_Shape = tuple[int, int, int, int, int, int, bool]


def contest_of(shape: _Shape, grad: bool) -> AttentionContest:
    batch, heads, shared, rows, keys, channels, causal = shape
    return AttentionContest(
        batch, heads, shared, rows, keys, channels, channels, causal, False, grad
    )


def operands(shape: _Shape) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """q, k, v, the result, its logarithms and dy, in float32; the exact result; the exact gradients."""
    batch, heads, shared, rows, keys, channels, causal = shape
    g = torch.Generator().manual_seed(0)
    sizes = ((rows, heads), (keys, shared), (keys, shared), (rows, heads))
    q, k, v, dy = (torch.randn(batch, t, h, channels, generator=g) for t, h in sizes)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    a, b, c = (x.transpose(1, 2) for x in leaves)
    b, c = (x.repeat_interleave(heads // shared, 1) for x in (b, c))
    scores = a @ b.mT * SCALE
    if causal:
        scores = scores.masked_fill(~torch.ones(rows, keys, dtype=torch.bool).tril(), -torch.inf)
    y = (scores.softmax(-1) @ c).transpose(1, 2)
    grads = torch.autograd.grad(y, leaves, dy.double())
    sums = scores.detach().logsumexp(-1)
    return [q, k, v, y.detach().float().contiguous(), sums.float(), dy], [y.detach()], list(grads)


def measure(shape: _Shape, grad: bool, threads: int, rounds: int, budget: float) -> dict[str, Any]:
    """Milliseconds of both, ratios and errors."""
    contest = contest_of(shape, grad)
    types = contest.types()
    blocks = blocks_of(PROCESSORS[host_level()], types["q"], types["k"], threads, grad)
    values, result, gradients = operands(shape)
    values = values if grad else values[:3]
    made = {n: Executable(p) for n, p in programs(contest, blocks, threads).items()}
    exact = gradients if grad else result
    errors = {
        name: max(_error(x, w) for x, w in zip(run(values), exact)) for name, run in made.items()
    }
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, run in made.items():
            times[name].append(seconds(lambda run=run: run(values), clock, budget))  # type: ignore[misc]
    return {
        "ms": {name: 1e3 * median(t) for name, t in times.items()},
        "ratio": median(o / a for o, a in zip(times["own"], times["aten"])),
        "gflops": 2e-9 * contest.size / median(times["own"]),
        "errors": errors,
    }


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def written_out(shape: Sequence[int], threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, and bytes of the arena. shape: batch, heads, positions, channels."""
    g = torch.Generator().manual_seed(0)
    args = [torch.randn(*shape, generator=g).requires_grad_() for _ in range(3)]

    def step(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        y = torch.softmax(q @ k.mT * SCALE, -1) @ v
        return y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))

    class Graph(flow.nn.Graph):
        def build(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            return step(q, k, v)

    one, parts = Graph(), Graph()
    parts.config.enable_attention_recognition(False)
    ways: dict[str, Callable[..., Any]] = {"one op": one, "written out": parts, "eager": step}
    for call in ways.values():
        call(*args)
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            start = clock()
            call(*args)
            times[name].append(clock() - start)
    graphs = {"one op": one, "written out": parts}
    arenas = {name: graph.memory().arena for name, graph in graphs.items()}
    return {"ms": {name: 1e3 * median(t) for name, t in times.items()}, "arena": arenas}


HEAD = (
    "attention",
    "",
    "own, ms",
    "ATen, ms",
    "own / ATen",
    "own, GFLOP/s",
    "error",
    "ATen's",
)


def main(argv: list[str]) -> int:
    args = options(argv, "attention", rounds=15, seconds=0.02)
    rounds, budget = args.rounds, args.seconds
    shapes = QUICK if args.quick else {n: s for n, s in SHAPES.items() if args.only in n}
    result: dict[str, Any] = {"machine": machine.describe(), "threads": args.threads, "rows": {}}
    lines: list[tuple[str, ...]] = []
    for name, shape in shapes.items():
        for grad in (False, True) if shape[3] > 16 or args.quick else (False,):
            what = "backward" if grad else "forward"
            note(f"{name}, {what}")
            row = measure(shape, grad, args.threads, rounds, budget)
            result["rows"][f"{name}, {what}"] = row
            figures = [number(row["ms"][n], 2) for n in ("own", "aten")]
            figures += [number(row["ratio"], 2), number(row["gflops"], 0)]
            errors = tuple(f"{row['errors'][n]:.1e}" for n in ("own", "aten"))
            lines.append((name, what, *figures, *errors))
    print(table(HEAD, lines))
    size = (1, 2, 80, 8) if args.quick else (2, 8, 1024, 64)
    row = result["written out"] = written_out(size, args.threads, rounds)
    print("\nwritten out,", " x ".join(map(str, size)), row)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0
