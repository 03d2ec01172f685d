"""Random functions of elementwise ops, broadcasts and reductions over one index space, against the interpreter.

They look like the insides of networks: several reductions over the same dimensions, results of some feeding
others, operands transposed or broadcast, a few element types.
"""

from __future__ import annotations

import random

import pytest
from codegen_harness import Arg, Case, b, full, make, run_cases, spread

from gflow.dialects import builder
from gflow.dialects.mlir import ir

SPACES = [(5,), (40,), (3, 7), (9, 64), (64, 9), (2, 33, 5), (4, 6, 48), (3, 1, 50), (2, 5, 4, 18),
          (130, 70), (3, 2, 9000), (1100, 3)]  # fmt: skip
UNARY = ("neg", "abs", "tanh", "sigmoid", "floor", "sign", "exp")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


class _Grower:
    def __init__(self, seed: int, space: tuple[int, ...]) -> None:
        self.random, self.space = random.Random(seed), space
        rank = len(space)
        self.reduced = tuple(d for d in range(rank) if self.random.random() < 0.5)
        self.kept = tuple(d for d in range(rank) if d not in self.reduced)
        self.kept_shape = tuple(space[d] for d in self.kept)
        self.wide: list[ir.Value] = []
        self.small: list[ir.Value] = []

    def arguments(self) -> list[Arg]:
        """Two full operands (the second sometimes transposed in memory), one of each lesser shape, a flag."""
        space, strides = self.space, None
        if self.random.random() < 0.5:
            order = self.random.sample(range(len(space)), len(space))
            strides, step = [0] * len(space), 1
            for d in order:
                strides[d], step = step, step * space[d]
        return [Arg(space), Arg(space, strides=strides and tuple(strides)), Arg(self.kept_shape),
                Arg(space[-1:]), Arg(()), Arg(space, "i1"), Arg(space, "bf16")]  # fmt: skip

    def body(self, *args: ir.Value) -> list[ir.Value]:
        x, y, small, last, scalar, flag, half = args
        self.flag = flag
        self.small = [small]
        self.wide = [x, y, spread(last, self.space, len(self.space) - 1), spread(scalar, self.space),
                     spread(small, self.space, *self.kept), builder.convert(half, "f32")]  # fmt: skip
        for _ in range(self.random.randint(3, 14)):
            self.step()
        pick = self.random.sample
        out = pick(self.wide[6:], min(2, len(self.wide) - 6)) + self.small[-2:]
        return [*out, self.wide[-1], builder.convert(self.wide[-1], "bf16")]

    def step(self) -> None:
        choice = self.random.choice
        kind = choice(
            ("unary", "binary", "binary", "select", "reduce", "reduce", "small", "spread")
        )
        pool = self.small if kind == "small" else self.wide
        if kind == "unary":
            self.wide.append(self.tame(b(choice(UNARY), choice(self.wide))))
        elif kind in ("binary", "small"):
            pool.append(self.tame(b(choice(BINARY), choice(pool), choice(pool))))
        elif kind == "select":
            v = choice(self.wide)
            p = choice((self.flag, b("compare", v, full(0.25, v), predicate="lt")))
            self.wide.append(b("select", p, v, choice(self.wide)))
        elif kind == "reduce":
            v = choice(self.wide)
            total = b("reduce", v, kind=choice(("sum", "sum", "max", "min")), dims=self.reduced)
            count = builder.type_of(v).numel // max(builder.type_of(total).numel, 1)
            self.small.append(b("mul", total, full(1.0 / count, total)))
            self.wide.append(spread(self.small[-1], self.space, *self.kept))
        else:
            self.wide.append(spread(choice(self.small), self.space, *self.kept))

    def tame(self, v: ir.Value) -> ir.Value:
        """Keeps numbers small, so that differences stay small."""
        return b("minimum", b("maximum", v, full(-3, v)), full(3, v))


def random_case(seed: int) -> Case:
    grower = _Grower(seed, SPACES[seed % len(SPACES)])
    # floor and sign jump: their operands must not hang on the last bit, so they are compared loosely
    name = f"seed {seed} {grower.space} over {grower.reduced}"
    return make(name, grower.arguments(), grower.body, seed=seed, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("first", range(0, 96, 24))
def test_random_regions(first: int) -> None:
    run_cases([random_case(seed) for seed in range(first, first + 24)], threads=(1, 2))


def test_scalar_types() -> None:
    """Wide integers beside narrow floats in one kernel."""

    def body(n: ir.Value, x: ir.Value) -> list[ir.Value]:
        f = b("convert", n, dtype="f64")
        wide = b("mul", f, b("convert", x, dtype="f64"))
        small = b("convert", wide, dtype="f16")
        count = b("reduce", b("mul", n, n), kind="sum", dims=(1,))
        return [small, count, b("reduce", wide, kind="sum", dims=(1,)), b("convert", n, dtype="i8")]

    cases = [make(f"{s}", [Arg(s, "i64"), Arg(s)], body) for s in [(3, 5), (40, 33), (3, 5000)]]
    run_cases(cases, threads=(1, 2))
