"""XLA as a second opinion: random functions through the interpreter, our kernels and XLA."""

from __future__ import annotations

import pytest
import torch
from codegen_harness import CONTEXT, copies, run_cases
from ir_interpreter import run_module
from random_ir import random_args, random_module
from test_codegen_random import random_case

from gflow.compiler.engines.stablehlo.write import portable, write_function
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.mlir import ir
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

pytestmark = pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")


def by_xla(module: ir.Module, args: list[torch.Tensor]) -> list[torch.Tensor]:
    function = entry_function(module)
    code = load_code("xla", portable(write_function(function, checks=True).module))
    return code.run(args, [None] * len(function.type.results))


def _agree(seed: int, got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    """Infinities may differ in sign: a zero's sign hangs on the order of a sum, and its inverse is infinite."""
    for n, (a, w) in enumerate(zip(got, want, strict=True)):
        if a.is_floating_point():
            a, w = (x.where(~x.isinf(), float("inf")) for x in (a, w))
        torch.testing.assert_close(
            a, w, rtol=1e-2, atol=2e-2, equal_nan=True, check_stride=False,
            msg=lambda m, n=n: f"seed {seed}, result {n}: {m}",
        )  # fmt: skip


def _regions(seeds: range) -> None:
    """Elementwise ops and reductions over one space: three opinions."""
    cases = [random_case(seed) for seed in seeds]
    run_cases(cases, threads=(1,))
    with CONTEXT:
        for seed, case in zip(seeds, cases):
            _agree(seed, by_xla(case.module, case.args), run_module(case.module, copies(case.args)))


def _modules(seeds: range) -> None:
    """Ops of all kinds, products too."""
    with CONTEXT:
        for seed in seeds:
            module = random_module(CONTEXT, seed, contractions=True)
            args = random_args(module, seed)
            _agree(seed, by_xla(module, args), run_module(module, copies(args)))


def test_regions() -> None:
    _regions(range(4))


def test_modules() -> None:
    _modules(range(4))


@pytest.mark.sweep
def test_many_regions() -> None:
    _regions(range(4, 100))


@pytest.mark.sweep
def test_many_modules() -> None:
    _modules(range(4, 100))
