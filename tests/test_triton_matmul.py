"""Products as Triton kernels, in Triton's interpreter, against float64 and the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from codegen_harness import Arg, Case, b, copies, full, make, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_interpreter import DTYPES
from triton_harness import compile_case, pipeline_of, run_cases
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.language.grid import grid_of
from gflow.dialects.mlir import ir
from gflow.dialects.program import AtenStep, LaunchStep, Program
from gflow.execution import device

#: what rounding to each element type, and a few sums of float32, may do to a number of size 1
PRECISION = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def product(
    m: int, k: int, n: int, dtype: str = "f32", *, batch: Sequence[int] = (), **args: Arg
) -> Case:
    """A product. a, b: other operands than dense ones."""
    left = args.get("a", Arg((*batch, m, k), dtype))
    right = args.get("b", Arg((*batch, k, n), dtype))
    return make(f"{batch} {m} {k} {n} {dtype}", [left, right], lambda x, y: [b("matmul", x, y)])


def against_float64(
    cases: Sequence[Case], want: Callable[..., torch.Tensor] = torch.matmul
) -> list[Program]:
    """Each result is close to what `want` gives of the arguments in float64, for the size of the terms."""
    programs = []
    for case in cases:
        program = compile_case(case)
        programs.append(program)
        assert not any(isinstance(s, AtenStep) for s in program.steps), case.name
        (got,) = run_program(program, copies(case.args))
        exact = [a.double() for a in case.args]
        right = want(*exact)
        scale = want(*[a.abs() for a in exact]).abs().clamp(min=1)
        dtype = next(name for name, ty in DTYPES.items() if ty == got.dtype)
        error = ((got.double() - right).abs() / scale).max().item() if got.numel() else 0.0
        assert error < PRECISION[dtype], f"{case.name}: {error}"
    return programs


def launches(program: Program) -> list[str]:
    return [s.kernel.rsplit("_", 1)[0] for s in program.steps if isinstance(s, LaunchStep)]


def test_sizes() -> None:
    sizes = [
        (33, 40, 50),
        (16, 16, 16),
        (1, 30, 7),
        (30, 9, 1),
        (1, 5, 1),
        (3, 64, 129),
        (70, 1, 5),
    ]
    against_float64([product(*s) for s in sizes])


def test_element_types() -> None:
    cases = [product(21, 50, 35, dtype) for dtype in ("f64", "f16", "bf16")]
    against_float64([*cases, product(64, 64, 32, "bf16"), product(1, 70, 33, "f16")])
    run_cases([product(9, 17, 21, dtype) for dtype in ("i64", "i32", "i8", "ui8")])


def test_strides() -> None:
    m, k, n = 20, 33, 24
    against_float64(
        [
            product(m, k, n, a=Arg((m, k), strides=(1, m))),
            product(m, k, n, b=Arg((k, n), strides=(1, k))),
            product(m, k, n, a=Arg((m, k), strides=(1, m)), b=Arg((k, n), strides=(1, k))),
            product(m, k, n, a=Arg((m, k), strides=(2 * k, 2)), b=Arg((k, n), strides=(3, 3 * k))),
            product(m, k, n, a=Arg((m, k), strides=(0, 1)), b=Arg((k, n), strides=(0, 1))),
            product(m, k, n, a=Arg((m, k), strides=(1, 0)), b=Arg((k, n), strides=(1, 0))),
        ]
    )


def test_batches() -> None:
    s, m, k, n = (3, 4), 5, 19, 18
    program, *_ = against_float64(
        [
            product(m, k, n, batch=s, b=Arg((*s, k, n), strides=(0, 0, n, 1))),
            product(m, k, n, batch=s),
            product(m, k, n, batch=s, a=Arg((*s, m, k), strides=(m * k, 3 * m * k, k, 1))),
            product(m, k, n, batch=s, b=Arg((*s, k, n), strides=(k * n, 0, 1, k))),
            product(m, k, n, batch=(1, 3, 1)),
            product(1, k, n, batch=s),
        ]
    )
    # one weight for all: the batch dimensions are rows
    assert program.steps[0].args[2] == 60


def test_split_terms() -> None:
    cases = [product(3, 3001, 20), product(5, 4096, 16, "bf16"), product(8, 2000, 9, batch=(2,))]
    for program in against_float64(cases):
        assert launches(program) == ["matmul_partial", "total"]


def test_zero_sizes() -> None:
    run_cases([product(*s) for s in [(0, 3, 4), (3, 4, 0), (3, 0, 4)]])
    case = make(
        "no terms", [Arg((3, 0)), Arg((0, 4)), Arg((4,))],
        lambda x, y, z: [b("add", b("matmul", x, y), spread(z, (3, 4), 1))],
    )  # fmt: skip
    run_cases([case])


def linear(m: int, k: int, n: int, dtype: str, after: Callable[..., object]) -> Case:
    """A layer: its bias, then `after(sum, residual)`."""

    def body(x, w, bias, residual):
        return after(b("add", b("matmul", x, w), spread(bias, (m, n), 1)), residual)

    weight = Arg((k, n), dtype, (1, k))
    return make(
        f"{m} {k} {n} {dtype}",
        [Arg((m, k), dtype), weight, Arg((n,), dtype), Arg((m, n), dtype)],
        body,
    )


def gelu(x):
    half, root = full(0.5, x), full(2**-0.5, x)
    return b("mul", b("mul", x, half), b("add", full(1.0, x), b("erf", b("mul", x, root))))


def test_epilogues() -> None:
    relu = linear(21, 30, 18, "f32", lambda x, r: [b("maximum", x, full(0.0, x))])
    residual = linear(21, 30, 18, "f32", lambda x, r: [b("add", x, r)])
    many = linear(5, 1800, 18, "f32", lambda x, r: [gelu(b("add", x, r))])
    both = linear(21, 30, 18, "f32", lambda x, r: [x, gelu(x)])
    wider = linear(21, 30, 18, "bf16", lambda x, r: [gelu(b("convert", x, dtype="f32"))])

    def tight(case: Case) -> Case:
        case.rtol, case.atol = 1e-3, 1e-3
        return case

    run_cases([tight(c) for c in (relu, residual, many, both)])
    wider.rtol, wider.atol = 2e-2, 2e-1  # the reference rounds the product
    run_cases([wider])
    assert launches(relu.program) == ["matmul_add_maximum"]
    assert launches(many.program) == ["matmul_partial", "total_add_add_mul_mul_erf_add_mul"]


def test_raw_result_and_epilogue() -> None:
    def body(x, y):
        z = b("matmul", x, y)
        return [z, b("exp", b("mul", z, full(0.1, z)))]

    case = make("both", [Arg((9, 20)), Arg((20, 33))], body)
    case.rtol, case.atol = 1e-4, 1e-4
    run_cases([case])


@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
@pytest.mark.parametrize("shape", [(9, 34), (9, 36), (2, 9, 36), (70, 132)])
def test_random_epilogue(shape: tuple[int, ...], kind: str) -> None:
    """Four neighbours share a Philox block where rows have a multiple of four elements."""
    *batch, m, n = shape
    dtype = "i64" if kind == "bits" else "f32"

    def body(x, y, rng):
        z = b("matmul", x, y)
        u = b("random", rng, kind=kind, stream=3, shape=shape, dtype=dtype)
        keep = b("compare", u, full(1 << 31 if kind == "bits" else 0.3, u), predicate="gt")
        return [b("select", keep, z, full(0.0, z))]

    rng = Arg((2,), "i64", values=torch.tensor([1234567890123, 5]))
    case = make("dropout", [Arg((*batch, m, 20)), Arg((*batch, 20, n)), rng], body)
    case.rtol, case.atol = 1e-4, 1e-4
    run_cases([case])


def test_epilogue_of_batches() -> None:
    def body(x, y, mask, bias):
        z = b("matmul", x, y)
        s = (2, 3, 9, 10)
        return [b("add", b("add", z, spread(mask, s, 0, 3)), spread(bias, s, 2))]

    args = [Arg((2, 3, 9, 20)), Arg((2, 3, 20, 10)), Arg((2, 10)), Arg((9,))]
    case = make("batches", args, body)
    case.rtol, case.atol = 1e-4, 1e-4
    run_cases([case])


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 70)] * 3),
    swapped=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
)
def test_any(sizes: tuple[int, int, int], swapped: tuple[bool, bool], dtype: str) -> None:
    m, k, n = sizes
    a = Arg((m, k), dtype, (1, m) if swapped[0] else None)
    right = Arg((k, n), dtype, (1, k) if swapped[1] else None)
    against_float64([product(m, k, n, a=a, b=right)])


def test_layers_share_kernels() -> None:
    def body(x, a, c, d):
        x = b("matmul", x, a)
        x = b("matmul", x, c)
        return [b("matmul", x, d)]

    sizes = [(64, 32), (32, 96), (96, 64), (64, 32)]
    case = make("layers", [Arg(s) for s in sizes], body)
    program = compile_case(case)
    assert len(program.steps) == 3
    assert len(program.triton) == 1


def test_tf32_is_asked_for() -> None:
    case = product(64, 64, 64)
    with case.module.context:
        (function,) = case.module.body.operations
        function.attributes["gflow.tf32"] = ir.Attribute.parse('["matmul"]')
    program = compile_module(case.module, CompileOptions(target="cuda:80"))
    (kernel,) = program.triton.values()
    assert 'input_precision="tf32"' in kernel.source
    (plain,) = compile_case(product(64, 64, 64)).triton.values()
    assert 'input_precision="ieee"' in plain.source


def with_config(case: Case, way: str, **more: int) -> None:
    """Have the case's kernel run by descriptors, with such constants."""
    program = compile_case(case)
    (kernel,), (step,) = program.triton.values(), program.steps
    numbers = [i for i, c in enumerate(kernel.configs) if c.constants[way]]
    config = kernel.configs[numbers[0]]
    config = replace(config, constants=config.constants | more)
    program.triton[kernel.name] = kernel = replace(kernel, configs=(config,))
    grid = grid_of(kernel, config, step.args)
    program.steps[:] = [replace(step, config=0, grid=grid)]


def test_descriptors() -> None:
    """Whole tiles are loaded by descriptors; few programs walk over many tiles."""
    m, k, n = 70, 72, 136
    few = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16, "PERSISTENT": 3, "PARTS": 4, "GROUP_M": 2}
    for left, right in [(None, None), ((1, 80), None), (None, (1, 72)), ((1, 80), (1, 72))]:
        case = product(m, k, n, "bf16", a=Arg((m, k), "bf16", left), b=Arg((k, n), "bf16", right))
        with_config(case, "PERSISTENT", **few)
        (program,) = against_float64([case])
        assert program.steps[0].grid == (3, 1, 1)
    batched = product(m, k, n, "bf16", batch=(2,))
    with_config(batched, "DESCRIPTORS")
    after = linear(m, k, n, "bf16", lambda x, r: [gelu(b("convert", b("add", x, r), dtype="f32"))])
    after.rtol, after.atol = 2e-2, 2e-2
    with_config(after, "PERSISTENT", **few)
    run_cases([batched, after])


@pytest.mark.parametrize("parts", [3, 6])
@pytest.mark.parametrize("swapped", [False, True])
def test_tiles_of_two_widths(parts: int, swapped: bool) -> None:
    """A persistent program's tile may have columns that are the sum of two powers of two."""
    m, k, n = 70, 72, 136
    few = {
        "BLOCK_M": 32,
        "BLOCK_N": 64,
        "REST": 32,
        "BLOCK_K": 16,
        "PERSISTENT": 3,
        "PARTS": parts,
        "GROUP_M": 2,
    }
    right = Arg((k, n), "bf16", (1, 72) if swapped else None)
    case = product(m, k, n, "bf16", b=right)
    with_config(case, "PERSISTENT", **few)
    against_float64([case])
    after = linear(m, k, n, "bf16", lambda x, r: [gelu(b("convert", b("add", x, r), dtype="f32"))])
    after.rtol, after.atol = 2e-2, 2e-2
    with_config(after, "PERSISTENT", **few)
    run_cases([after])


@pytest.mark.parametrize(("m", "k", "n"), [(8192, 768, 768), (8192, 3072, 768), (8192, 768, 2304)])
def test_tiles_that_fill_the_last_wave(m: int, k: int, n: int) -> None:
    """768 columns are three tiles of 256 and four of 192: with 8192 rows, 1.5 waves of 132 programs and one."""
    (kernel,) = compile_case(product(m, k, n, "bf16")).triton.values()
    constants = kernel.configs[0].constants
    assert (constants["BLOCK_N"], constants["REST"]) == (128, 64)
    (step,) = compile_case(product(m, k, n, "bf16")).steps
    tiles = -(-m // constants["BLOCK_M"]) * (n // 192)
    assert step.grid[0] == min(tiles, constants["PERSISTENT"])
    (plain,) = compile_case(product(m, k, 512, "bf16")).triton.values()
    assert plain.configs[0].constants["REST"] == 0


def test_descriptors_want_aligned_operands() -> None:
    """An operand that begins anywhere, or tf32 whose terms are not side by side, goes by pointers."""

    def ways(case: Case) -> set[str]:
        (kernel,) = compile_case(case).triton.values()
        return {n for c in kernel.configs for n in c.constants} & {"PERSISTENT", "DESCRIPTORS"}

    whole = Arg((64, 136), "bf16")
    parts = {"starts": [0, 8], "limits": [64, 72], "strides": [1, 1]}
    odd = parts | {"starts": [0, 3], "limits": [64, 67]}
    for cut, found in ((parts, {"PERSISTENT"}), (odd, set())):
        case = make(
            "part",
            [whole, Arg((64, 64), "bf16")],
            lambda x, y, cut=cut: [b("matmul", b("slice", x, **cut), y)],
        )
        assert ways(case) == found


def test_rows_that_begin_anywhere_are_copied() -> None:
    """If the product is large; descriptors then read whole vectors of the copy."""
    m, k, n = 2048, 4099, 1024
    for target, stem in {"cuda:90": "pointwise", "cuda:80": "matmul"}.items():
        for left in ((k, 1), (1, m + 1)):
            case = product(m, k, n, "bf16", a=Arg((m, k), "bf16", left))
            options = CompileOptions(target=target, pipeline=pipeline_of(target))
            assert launches(compile_module(case.module, options))[0] == stem
    small = product(33, 41, 50, "bf16")
    assert len(compile_case(small).steps) == 1


def test_switches_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of the module, for a GPU."""
    switches = {"matmul": "ieee", "convolution": "tf32"}
    monkeypatch.setattr(
        device, "tf32_kinds", lambda: tuple(k for k, v in switches.items() if v == "tf32")
    )
    case = product(64, 64, 64)
    device.allow_tf32(case.module, CompileOptions(target="cpu"))
    assert "gflow.tf32" not in str(case.module)
    device.allow_tf32(case.module, CompileOptions(target="cuda:90"))
    assert 'gflow.tf32 = ["convolution"]' in str(case.module)
    (kernel,) = compile_case(case).triton.values()
    assert 'input_precision="ieee"' in kernel.source
