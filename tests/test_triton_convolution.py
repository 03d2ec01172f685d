"""Convolutions and their gradients as Triton kernels, in Triton's interpreter, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import pytest
from codegen_harness import Arg, Case, b, copies, full, make, spread
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ir_interpreter import DTYPES, run_module
from triton_harness import compile_case, run_cases
from triton_interpreter import run_program

from gflow.dialects.program import AtenStep, LaunchStep, Program

#: what rounding to each element type, and sums of float32, may do, for the size of the terms
PRECISION = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}

FORWARD, INPUT, WEIGHT = "convolution", "convolution_input_grad", "convolution_weight_grad"


@dataclass(frozen=True)
class Conv:
    """A convolution. last: channels last. taps_last: the weight lies in memory as PyTorch's, OI*."""

    n: int
    c: int
    o: int
    inputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    last: bool = True
    taps_last: bool = False
    dtype: str = "f32"

    def all(self, name: str) -> tuple[int, ...]:
        return getattr(self, name) or ((0,) if name == "padding" else (1,)) * len(self.kernel)

    @property
    def outputs(self) -> tuple[int, ...]:
        walk = zip(self.inputs, self.kernel, *map(self.all, ("stride", "padding", "dilation")))
        return tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in walk)

    def tensor(self, outer: int, spatial: tuple[int, ...], inner: int) -> tuple[int, ...]:
        return (outer, *spatial, inner) if self.last else (outer, inner, *spatial)

    def case(self, op: str, after: bool = False) -> Case:
        """One op; after: with an epilogue."""
        x = self.tensor(self.n, self.inputs, self.c)
        w = self.tensor(self.o, self.kernel, self.c // self.groups)
        y = self.tensor(self.n, self.outputs, self.o)
        attrs = {name: self.all(name) for name in ("stride", "padding", "dilation")}
        attrs |= {"groups": self.groups, "layout": "N*C" if self.last else "NC*"}
        strides = None
        if self.taps_last and self.last:
            inner = [prod(self.kernel[i + 1 :]) for i in range(len(self.kernel))]
            strides = (prod(w[1:]), *inner, prod(self.kernel))
        weight = Arg(w, self.dtype, strides)
        args, shape = {
            FORWARD: ([Arg(x, self.dtype), weight], {}),
            INPUT: ([Arg(y, self.dtype), weight], {"shape": x}),
            WEIGHT: ([Arg(x, self.dtype), Arg(y, self.dtype)], {"shape": w}),
        }[op]
        result = {FORWARD: y, INPUT: x, WEIGHT: w}[op]
        channel = len(result) - 1 if self.last else 1
        if after:
            args = [*args, Arg((result[channel],), self.dtype), Arg(result, self.dtype)]

        def body(a, c, *more):
            r = b(op, a, c, **attrs, **shape)
            if not more:
                return [r]
            r = b("add", r, spread(more[0], result, channel))
            return [b("add", b("maximum", r, full(0.0, r)), more[1])]

        return make(f"{op} {self}", args, body)


def check(conv: Conv, *ops: str) -> list[Program]:
    """Each op's result is close to that of float64, for the size of its terms."""
    programs = []
    for op in ops or (FORWARD, INPUT, WEIGHT):
        case = conv.case(op)
        exact = replace(conv, dtype="f64", taps_last=False).case(op)
        doubles = [a.double() for a in case.args]
        (want,) = run_module(exact.module, doubles)
        (scale,) = run_module(exact.module, [a.abs() for a in doubles])
        program = compile_case(case)
        assert not any(isinstance(s, AtenStep) for s in program.steps), case.name
        (got,) = run_program(program, copies(case.args))
        assert got.dtype == DTYPES[conv.dtype]
        error = ((got.double() - want).abs() / scale.clamp(min=1)).max().item()
        assert error < PRECISION[conv.dtype], f"{case.name}: {error}"
        programs.append(program)
    return programs


def launches(program: Program) -> list[str]:
    return [s.kernel.rsplit("_", 1)[0] for s in program.steps if isinstance(s, LaunchStep)]


ONE = (1, 1)
CONVOLUTIONS = {
    "few channels": Conv(2, 5, 7, (6, 7), (3, 3), padding=ONE),
    "many channels": Conv(2, 33, 20, (5, 6), (3, 3), padding=ONE, taps_last=True),
    "stride": Conv(2, 17, 7, (7, 8), (3, 3), (2, 2), ONE),
    "stride, no padding": Conv(1, 16, 5, (9, 7), (2, 3), (3, 2)),
    "stride larger than the kernel": Conv(2, 17, 9, (5, 4), (1, 1), (2, 2)),
    "stride and dilation": Conv(1, 17, 7, (8, 9), (3, 3), (2, 2), (1, 2), (2, 2)),
    "stem": Conv(1, 3, 9, (13, 12), (7, 7), (2, 2), (3, 3), taps_last=True),
    "one by one": Conv(3, 20, 9, (5, 4), ONE),
    "one by one, groups": Conv(3, 20, 8, (5, 4), ONE, groups=4),
    "groups": Conv(2, 36, 8, (6, 5), (3, 3), padding=ONE, groups=2),
    "groups, stride": Conv(2, 8, 12, (6, 5), (3, 3), (2, 1), ONE, groups=4),
    "depthwise": Conv(2, 12, 12, (6, 5), (3, 3), padding=ONE, groups=12),
    "depthwise, stride": Conv(2, 12, 12, (6, 5), (3, 3), (2, 2), ONE, groups=12, taps_last=True),
    "depthwise, large": Conv(1, 6, 6, (9, 8), (5, 5), ONE, (2, 2), (2, 2), groups=6),
    "first": Conv(2, 17, 7, (6, 7), (3, 3), padding=ONE, last=False),
    "first, one by one": Conv(2, 20, 7, (6, 7), ONE, last=False),
    "first, groups": Conv(2, 8, 12, (6, 7), (3, 2), (2, 1), (1, 0), (1, 2), 4, last=False),
    "first, depthwise": Conv(2, 8, 8, (6, 7), (3, 3), (2, 1), (1, 0), groups=8, last=False),
    "1-d": Conv(2, 20, 7, (9,), (3,), padding=(1,), last=False),
    "1-d, stride": Conv(2, 20, 7, (9,), (4,), (3,), (2,)),
    "3-d": Conv(1, 6, 7, (4, 5, 3), (2, 3, 2), (1, 2, 1), (1, 1, 0)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_against_float64(name: str) -> None:
    check(CONVOLUTIONS[name])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_element_types(dtype: str) -> None:
    check(Conv(1, 18, 16, (5, 4), (3, 3), padding=ONE, dtype=dtype))
    check(Conv(1, 8, 8, (5, 4), (3, 3), padding=ONE, groups=8, dtype=dtype))
    check(Conv(2, 16, 32, (5, 4), ONE, dtype=dtype))


@pytest.mark.parametrize(
    "name", ["few channels", "one by one", "stride", "groups", "depthwise", "first, groups"]
)
def test_epilogues(name: str) -> None:
    cases = [CONVOLUTIONS[name].case(op, after=True) for op in (FORWARD, INPUT, WEIGHT)]
    for case in cases:
        case.rtol, case.atol = 1e-3, 1e-3
    run_cases(cases)
    for case in cases:
        assert launches(case.program)[-1].endswith("_add_maximum_add")


def test_split_terms() -> None:
    """Positions of a weight's gradient, channels of few positions: added up in parts."""
    (program,) = check(Conv(2, 16, 8, (24, 24), (2, 2)), WEIGHT)
    assert launches(program) == ["convolution_2d_weight_grad_partial", "total"]
    (program,) = check(Conv(1, 128, 16, (2, 2), (3, 3), padding=ONE), FORWARD)
    assert launches(program) == ["convolution_2d_partial", "total"]
    conv = Conv(2, 4, 4, (24, 24), (3, 3), padding=ONE, groups=4)
    (program,) = check(conv, WEIGHT)
    assert launches(program) == ["depthwise_weight_grad_partial", "total"]
    (program,) = check(replace(conv, inputs=(24, 21)), WEIGHT)  # few positions: one launch
    assert launches(program) == ["depthwise_weight_grad"]


def test_zero_sizes() -> None:
    for conv in (Conv(0, 4, 6, (5, 5), (3, 3)), Conv(0, 4, 4, (5, 5), (3, 3), groups=4)):
        run_cases([conv.case(op) for op in (FORWARD, INPUT, WEIGHT)])
        run_cases([conv.case(WEIGHT, after=True)])


def test_plain_products() -> None:
    for program in check(CONVOLUTIONS["one by one"]):
        assert launches(program) == ["matmul"]


@settings(max_examples=6, deadline=None)
@given(
    channels=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    inputs=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.integers(1, 3),
    last=st.booleans(),
)
def test_any(channels, inputs, kernel, stride, padding, dilation, groups, last) -> None:
    c, o = (n * groups for n in channels)
    conv = Conv(2, c, o, inputs, kernel, stride, padding, dilation, groups, last)
    assume(min(conv.outputs) > 0)
    check(conv)
