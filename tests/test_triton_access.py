"""How generated kernels move memory: whole vectors, no change of layout, tiles on their way; from sources and
machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from codegen_harness import Arg, Case, b, make, reduce, spread
from ir_interpreter import DTYPES
from triton_harness import compile_case, run_cases

from benchmarks.kernels.machine_code import Traffic, traffic_of
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects import builder
from gflow.dialects.mlir import ir


def _arg(shape: tuple[int, ...], dtype: str = "f32") -> Arg:
    return Arg(shape, dtype, None, torch.empty(1, dtype=DTYPES[dtype]).expand(shape))


def _scaled(x: ir.Value, s: ir.Value, t: ir.Value) -> list[ir.Value]:
    shape = builder.type_of(x).shape
    return [b("add", b("mul", x, spread(s, shape, 1)), spread(t, shape, 1))]


def _wide(x: ir.Value) -> list[ir.Value]:
    return [b("convert", b("add", x, x), dtype="f32")]


def _sum(x: ir.Value) -> list[ir.Value]:
    return [reduce("sum", x, 0)]


def cases() -> list[tuple[Case, float]]:
    """Cases, and the least share of bytes that move 16 at a time."""
    bodies: list[tuple[str, list[Arg], Callable[..., list[ir.Value]], float]] = [
        ("bias of a small tensor", [_arg((2048, 96)), _arg((96,)), _arg((96,))], _scaled, 1),
        ("24 columns", [_arg((65536, 24)), _arg((24,)), _arg((24,))], _scaled, 1),
        ("halves made wide", [_arg((4096, 1024), "bf16")], _wide, 0.6),
        ("columns", [_arg((65536, 256), "bf16")], _sum, 0.8),
    ]
    return [(make(name, args, body), least) for name, args, body, least in bodies]


@pytest.fixture(scope="module")
def found() -> list[tuple[Case, float, Traffic]]:
    kernels = [
        (case, least, next(iter(compile_case(case).triton.values()))) for case, least in cases()
    ]
    code = compile_kernels([(k, 0) for _, _, k in kernels], 90)
    return [(c, least, traffic_of(code[f"{k.name}/0"])) for c, least, k in kernels]


def test_vectors_are_whole(found: list[tuple[Case, float, Traffic]]) -> None:
    shares = {case.name: (traffic.full, least) for case, least, traffic in found}
    assert all(share >= least for share, least in shares.values()), shares


def test_layouts_stay(found: list[tuple[Case, float, Traffic]]) -> None:
    assert {c.name: t.on_chip for c, _, t in found if c.name != "columns"} == dict.fromkeys(
        ("bias of a small tensor", "24 columns", "halves made wide"), 0
    )


def test_tiles_are_on_their_way(found: list[tuple[Case, float, Traffic]]) -> None:
    assert next(t for c, _, t in found if c.name == "columns").on_way >= 96


def test_a_loop_with_tiles_on_their_way() -> None:
    case = make("sums", [Arg((3000, 24), "f32")], _sum, rtol=1e-5, atol=1e-4)
    run_cases([case])
    assert "tl.range(" in next(iter(compile_case(case).triton.values())).source


def test_odd_rows_come_one_by_one() -> None:
    case = make("odd", [_arg((65536, 31))], _sum)
    assert "tl.range(" not in next(iter(compile_case(case).triton.values())).source
