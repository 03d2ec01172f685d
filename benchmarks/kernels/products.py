"""Products of matrices in float32: our own kernels, MKL and oneDNN in turn, beside the peak that multiply-adds reach.

    python -m benchmarks products [--threads 1] [--rounds 9] [--quick] [--json FILE]

The peak is that of a kernel of nothing but multiply-adds in registers, measured in each round. With one thread times
are the processor's (the machine may be shared), with more they are the clock's. Figures are medians of rounds in which
all take turns, each the least of several calls; ratios are medians of the rounds' ratios. oneDNN gets operands in its
own layout, which PyTorch's calls would have to make first. Errors are the root of the mean square to float64, relative.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import number, table
from gflow.compiler.emit.cpu.declarations import declarations
from gflow.compiler.emit.cpu.product.function import VECTOR, Function
from gflow.compiler.emit.cpu.product.race import programs
from gflow.compiler.kernel.blocks import Problem
from gflow.compiler.kernel.contest import Contest
from gflow.compiler.kernel.selection.cpu.blocking import cut
from gflow.compiler.targets.processors import PROCESSORS, host_level
from gflow.dialects.program import Argument, KernelStep, Place, Program
from gflow.dialects.program.form import seal
from gflow.dialects.types import TensorType
from gflow.runtime import Executable


@dataclass(frozen=True)
class Shape:
    """A product of a benchmark model. a, b: how its operands lie, as `Contest` has it."""

    what: str
    rows: int
    k: int
    columns: int
    a: str = "k"
    b: str = "k"

    @property
    def contest(self) -> Contest:
        return Contest(Problem(self.rows, self.columns, self.k), self.a, self.b)


SHAPES = (
    Shape("decoder, projections", 1024, 384, 384),
    Shape("decoder, up", 1024, 384, 1536),
    Shape("decoder, down", 1024, 1536, 384),
    Shape("decoder, logits", 1024, 384, 8192),
    Shape("decoder, input gradient", 1024, 1536, 384, b="lanes"),
    Shape("decoder, weight gradient", 384, 1024, 8192, "lanes", "lanes"),
    Shape("decoder, small gradient", 384, 1024, 384, "lanes", "lanes"),
    Shape("MLP", 128, 784, 1024),
    Shape("MLP, gradient", 784, 128, 1024, "lanes", "lanes"),
    Shape("ResNet-18, patches", 4096, 576, 64),
    Shape("ResNet-18, gradient", 64, 4096, 576, "lanes", "lanes"),
    Shape("ResNet-18, deep", 64, 4608, 512),
    Shape("MobileNetV2, 1 x 1", 16384, 96, 24),
    Shape("decode, one row", 1, 768, 3072),
    Shape("decode, one row, K far", 1, 768, 3072, b="lanes"),
    Shape("decode, eight rows", 8, 768, 3072),
    Shape("decode, eight rows, K far", 8, 768, 3072, b="lanes"),
    Shape("square", 2048, 2048, 2048, b="lanes"),
)
QUICK = (Shape("small", 50, 40, 64),)

#: multiply-adds of one call of the peak's kernel, in vectors
_CHAINS, _TURNS = 24, 20_000


def peak(threads: int) -> Program:
    """A program of nothing but multiply-adds in registers, on each thread."""
    e = Function()
    level = host_level()
    chains = _CHAINS if level.startswith("x86-64-v4") else 5  # two vectors each on narrower ones
    data = e.load_word(0, "!llvm.ptr")
    mine = e.at(data, e.mul(e.thread("thread_num"), 4096))
    x = e.load(mine)
    start = [e.load(e.at(mine, 64 * n)) for n in range(chains)]

    def turn(_: str, sums: list[str]) -> list[str]:
        return [e(f"math.fma {x}, {x}, {s} : {VECTOR}") for s in sums]

    for n, s in enumerate(e.loop(0, e.i64(_TURNS), 1, [(s, VECTOR) for s in start], turn)):
        e.store(s, e.at(mine, 64 * n))
    words = (Place("arg", 0, 0),)
    step = KernelStep("peak", words, threads > 1, "peak", reach=(4096 * threads,))
    argument = Argument("input", "x", TensorType((1024 * threads,), "f32"), (1,))
    made = Program("peak", "", [argument], [], [step], {"peak": e.function("peak")},
                   declarations(e.externals, {}), 0, max_threads=threads, first_write=0)  # fmt: skip
    made.seal = seal(made)
    return made


def operations(threads: int) -> int:
    chains = _CHAINS if host_level().startswith("x86-64-v4") else 5
    return 2 * 16 * chains * _TURNS * threads


def seconds(call: Callable[[], Any], clock: Callable[[], float], budget: float) -> float:
    """The least time of a call among as many as fit in a budget, three at least."""
    best, end, count = float("inf"), time.perf_counter() + budget, 0
    while count < 3 or time.perf_counter() < end:
        start = clock()
        call()
        best, count = min(best, clock() - start), count + 1
    return best


def measure(shape: Shape, threads: int, rounds: int, budget: float) -> dict[str, Any]:
    """GFLOP/s of each way, and ratios."""
    p = shape.contest.product
    blocks = cut(PROCESSORS[host_level()], shape.contest, threads)
    made = {
        name: Executable(program)
        for name, program in programs(shape.contest, blocks, threads).items()
    }
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(p.rows, p.k, generator=generator)
    b = torch.randn(p.k, p.columns, generator=generator)
    values = [_lying(a, shape.a == "lanes"), _lying(b, shape.b == "k")]
    packed, weight = a.to_mkldnn(), b.t().contiguous().to_mkldnn()
    nothing, top = torch.zeros(1024 * threads), Executable(peak(threads))
    ways: dict[str, Callable[[], Any]] = {
        "own": lambda: made["panels"](values),
        "MKL": lambda: made["blas"](values),
        "oneDNN": lambda: torch.ops.aten.mkldnn_linear(packed, weight, None),
        "peak": lambda: top([nothing]),
    }
    flops = dict.fromkeys(ways, 2 * p.rows * p.columns * p.k) | {"peak": operations(threads)}
    clock = time.thread_time if threads == 1 else time.perf_counter
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    for _ in range(rounds):
        for name, call in ways.items():
            rates[name].append(flops[name] / seconds(call, clock, budget) / 1e9)
    best = [max(m, o) for m, o in zip(rates["MKL"], rates["oneDNN"])]
    exact = a.double() @ b.double()

    def error(found: Tensor) -> float:
        return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    return {
        "rates": {name: median(found) for name, found in rates.items()},
        "of_peak": median(o / t for o, t in zip(rates["own"], rates["peak"])),
        "to_mkl": median(o / m for o, m in zip(rates["own"], rates["MKL"])),
        "to_best": median(o / m for o, m in zip(rates["own"], best)),
        "error": error(made["panels"](values)[0]),
        "error_mkl": error(made["blas"](values)[0]),
    }


def _lying(x: Tensor, transposed: bool) -> Tensor:
    return x.t().contiguous().t() if transposed else x


HEAD = ("product", "rows x K x columns", "own", "MKL", "oneDNN", "peak", "of peak", "/ MKL", "/ best", "error",
        "MKL's")  # fmt: skip


def options(argv: list[str], name: str, rounds: int, seconds: float) -> argparse.Namespace:
    """The options of a benchmark of kernels with vectors, and their number of threads set in PyTorch.

    Args:
        name: of the benchmark.
        rounds, seconds: the defaults: rounds, and seconds of each way in a round.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each way in a round")
    parser.add_argument("--quick", action="store_true", help="a small size: does it run?")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="shapes whose name holds this")
    args = parser.parse_args(argv)
    if not host_level():
        parser.error("this processor has no vectors that gflow's own kernels are made for")
    if args.quick:
        args.rounds, args.seconds = 1, 0.0
    torch.set_num_threads(args.threads)
    return args


def main(argv: list[str]) -> int:
    args = options(argv, "products", rounds=9, seconds=0.05)
    rounds, budget = args.rounds, args.seconds
    result: dict[str, Any] = {"machine": machine.describe(), "threads": args.threads, "rows": {}}
    lines: list[tuple[str, ...]] = []
    for shape in QUICK if args.quick else [s for s in SHAPES if args.only in s.what]:
        note(shape.what)
        row = result["rows"][shape.what] = measure(shape, args.threads, rounds, budget)
        rates = [number(row["rates"][name], 0) for name in ("own", "MKL", "oneDNN", "peak")]
        ratios = [number(row[name], 2) for name in ("of_peak", "to_mkl", "to_best")]
        size = f"{shape.rows} x {shape.k} x {shape.columns}"
        errors = (f"{row['error']:.1e}", f"{row['error_mkl']:.1e}")
        lines.append((shape.what, size, *rates, *ratios, *errors))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(HEAD, lines))
    return 0
