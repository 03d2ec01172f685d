"""Fused regions as Triton kernels, in Triton's interpreter, against the reference interpreter."""

from __future__ import annotations

from codegen_harness import Arg, b, make, reduce, spread
from triton_harness import run_cases


def test_pointwise() -> None:
    def body(x, y):
        return [b("mul", b("add", x, y), y), b("exp", x)]

    run_cases([make(f"{s}", [Arg(s), Arg(s)], body) for s in [(7,), (3, 5, 67), (), (0,), (4001,)]])


def test_softmax() -> None:
    def body(x):
        s = x.type.shape
        m = spread(reduce("max", x, 1), s, 0)
        e = b("exp", b("sub", x, m))
        return [b("div", e, spread(reduce("sum", e, 1), s, 0))]

    run_cases([make(f"{s}", [Arg(s)], body) for s in [(5, 7), (64, 128), (3, 1000), (2, 9001)]])


def test_sums() -> None:
    def body(x):
        return [reduce("sum", x, 0), reduce("max", x, 0)]

    shapes = [(5, 7), (1000, 30), (3, 64), (4096, 16)]
    run_cases([make(f"{s}", [Arg(s)], body) for s in shapes])
