"""Functions whose results are rounded to a half are computed in their short forms; all others exactly."""

from __future__ import annotations

import pytest
import torch
from codegen_harness import Arg, Case, b, full, make, reduce, spread
from triton_harness import compile_case, run_cases

import gflow
from gflow.compiler import CompileOptions
from gflow.dialects import builder
from gflow.dialects.mlir import ir


class Tanh(gflow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.config.compile_options = CompileOptions(target="cuda:90")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


def _softmax(x: ir.Value, dtype: str) -> ir.Value:
    shape = builder.type_of(x).shape
    wide = b("convert", x, dtype="f32") if dtype != "f32" else x
    e = b("exp", b("sub", wide, spread(reduce("max", wide, 1), shape, 0)))
    out = b("div", e, spread(reduce("sum", e, 1), shape, 0))
    return b("convert", out, dtype=dtype) if dtype != "f32" else out


def _functions(x: ir.Value) -> list[ir.Value]:
    wide = b("convert", x, dtype="f32")
    positive = b("add", b("abs", wide), full(0.5, wide))
    found = [b(name, wide) for name in ("erf", "sigmoid", "exp", "tanh")]
    found += [b(name, positive) for name in ("sqrt", "reciprocal")]
    found.append(b("add", b("mul", wide, b("erf", wide)), wide))
    return [b("convert", f, dtype=builder.type_of(x).dtype) for f in found]


def source(case: Case) -> str:
    return "\n".join(kernel.source for kernel in compile_case(case).triton.values())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_softmax(dtype: str) -> None:
    case = make(dtype, [Arg((5, 70), dtype)], lambda x: [_softmax(x, dtype)], atol=1e-3, rtol=1e-2)
    run_cases([case])
    assert ("fast_expf" in source(case)) == (dtype != "f32")
    assert ("div_rn" in source(case)) == (dtype == "f32")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_functions(dtype: str) -> None:
    case = make(dtype, [Arg((700,), dtype)], _functions, atol=1e-6, rtol=8e-3)
    run_cases([case])
    assert "gf_erf(" in source(case)
    assert "gf_tanh(" in source(case)
    assert "_rn(" not in source(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tanh_of_every_half_is_eagers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interpreter, which computes the short exponential and division as exactly as the long ones."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    torch.testing.assert_close(Tanh()(x), torch.tanh(x), rtol=0, atol=0, equal_nan=True)


def test_a_float32_result_keeps_its_digits() -> None:
    def body(x: ir.Value) -> list[ir.Value]:
        e = b("exp", b("convert", x, dtype="f32"))
        return [b("convert", e, dtype="bf16"), e]

    case = make("both", [Arg((64,), "bf16")], body, atol=1e-3, rtol=1e-2)
    run_cases([case])
    assert "fast_expf" not in source(case)


def test_what_a_comparison_needs_keeps_its_digits() -> None:
    def body(x: ir.Value) -> list[ir.Value]:
        e = b("exp", b("convert", x, dtype="f32"))
        chosen = b("select", b("compare", e, full(1, e), predicate="gt"), e, full(0, e))
        return [b("convert", chosen, dtype="bf16")]

    case = make("compared", [Arg((64,), "bf16")], body, atol=1e-3, rtol=1e-2)
    run_cases([case])
    assert "fast_expf" not in source(case)
