"""Loops of a processor's regions in the IR: what is edited is what runs, and what cannot run is an error at the op."""

from __future__ import annotations

import re

import pytest
import torch

from gflow.compiler.driver.compile import CompileOptions, compile_module, generate_planned
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.ir.errors import CompileError
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.runtime.executable import Executable

SOFTMAX = """
  func.func @f(%x: tensor<6x5x40xf32>) -> tensor<6x5x40xf32> {
    %m = "gflow.reduce"(%x) {kind = "max", dims = array<i64: 2>} : (tensor<6x5x40xf32>) -> tensor<6x5xf32>
    %b = "gflow.broadcast"(%m) {shape = array<i64: 6, 5, 40>, dims = array<i64: 0, 1>} : (tensor<6x5xf32>) -> tensor<6x5x40xf32>
    %d = "gflow.sub"(%x, %b) : (tensor<6x5x40xf32>, tensor<6x5x40xf32>) -> tensor<6x5x40xf32>
    %e = "gflow.exp"(%d) : (tensor<6x5x40xf32>) -> tensor<6x5x40xf32>
    %s = "gflow.reduce"(%e) {kind = "sum", dims = array<i64: 2>} : (tensor<6x5x40xf32>) -> tensor<6x5xf32>
    %c = "gflow.broadcast"(%s) {shape = array<i64: 6, 5, 40>, dims = array<i64: 0, 1>} : (tensor<6x5xf32>) -> tensor<6x5x40xf32>
    %0 = "gflow.div"(%e, %c) : (tensor<6x5x40xf32>, tensor<6x5x40xf32>) -> tensor<6x5x40xf32>
    return %0 : tensor<6x5x40xf32>
  }"""  # noqa: E501

COLUMNS = """
  func.func @f(%x: tensor<70x3x90xf64>) -> tensor<3x90xf64> {
    %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 0>} : (tensor<70x3x90xf64>) -> tensor<3x90xf64>
    return %0 : tensor<3x90xf64>
  }"""

POINTWISE = """
  func.func @f(%x: tensor<7x9x33xf32>) -> tensor<7x33x9xf32> {
    %t = "gflow.transpose"(%x) {permutation = array<i64: 0, 2, 1>} : (tensor<7x9x33xf32>) -> tensor<7x33x9xf32>
    %0 = "gflow.exp"(%t) : (tensor<7x33x9xf32>) -> tensor<7x33x9xf32>
    return %0 : tensor<7x33x9xf32>
  }"""


def planned(text: str) -> str:
    """The module with its kernels selected and its memory planned."""
    with make_context():
        return compile_module(ir.Module.parse(text), CompileOptions()).ir


def edited(text: str, **fields: str) -> str:
    """The module with other loops. fields: of `gflow.kernel`, as text; "" for none."""
    (kernel,) = re.findall(r"gflow.kernel = \{[^}]*\}", text)
    given = dict(re.findall(r"(\w+) = (\"\w+\"|array<[^>]*>|\d+ : i64)", kernel.partition("{")[2]))
    kept = {name: value for name, value in {**given, **fields}.items() if value}
    listed = ", ".join(f"{name} = {value}" for name, value in kept.items())
    return text.replace(kernel, f"gflow.kernel = {{{listed}}}")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(2)


def columns(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).exp()


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    return {text: planned(text) for text in (SOFTMAX, COLUMNS, POINTWISE)}


def test_the_model_chooses(modules: dict[str, str]) -> None:
    assert (
        'kept = 1 : i64, kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>'
        in modules[SOFTMAX]
    )
    assert re.search(
        r'lanes = 8 : i64, order = array<i64: 0, 1>, .*share = "inner"', modules[COLUMNS]
    )
    assert (
        "order = array<i64: 0, 2, 1>" in modules[POINTWISE]
        or "order = array<i64: 0, 1, 2>" in modules[POINTWISE]
    )


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (SOFTMAX, {"lanes": "8 : i64", "kept": "", "scratch": ""}),
        (SOFTMAX, {"order": "array<i64: 1, 0>", "kept": "", "scratch": ""}),  # by columns
        (SOFTMAX, {"order": "array<i64: 1, 0>", "kept": "", "unroll": "2 : i64", "threads": '"all"'}),
        (SOFTMAX, {"threads": '"all"', "scratch": ""}),  # scratch behind the arena
        (COLUMNS, {"share": "", "lanes": "16 : i64", "unroll": "3 : i64"}),
        (COLUMNS, {"order": "array<i64: 1, 0>", "unroll": "", "share": ""}),  # by rows
        (COLUMNS, {"threads": ""}),
        (POINTWISE, {"order": "array<i64: 1, 2, 0>", "lanes": "8 : i64"}),
        (POINTWISE, {"order": "array<i64: 2, 0, 1>", "share": '"inner"', "threads": '"all"'}),
    ],
)  # fmt: skip
def test_edited_loops_run(modules: dict[str, str], text: str, fields: dict[str, str]) -> None:
    wanted = {SOFTMAX: softmax, COLUMNS: columns, POINTWISE: pointwise}[text]
    found = edited(modules[text], **fields)
    assert found != modules[text]
    program = generate_planned(found, "cpu", 2)
    (step,) = program.steps
    assert step.parallel == ('threads = "all"' in found)
    (before,) = generate_planned(modules[text], "cpu", 2).steps
    assert (step.kernel != before.kernel) == (bool(fields.keys() - {"threads", "scratch"}))
    x = torch.randn(*{SOFTMAX: (6, 5, 40), COLUMNS: (70, 3, 90), POINTWISE: (7, 9, 33)}[text])
    x = x.double() if text == COLUMNS else x
    (got,) = Executable(program)([x])
    torch.testing.assert_close(got, wanted(x))


@pytest.mark.parametrize(
    ("text", "fields", "what"),
    [
        (SOFTMAX, {"order": "array<i64: 0>"}, "needs the order of the 2 dimensions"),
        (SOFTMAX, {"order": "array<i64: 0, 0>"}, "needs the order of the 2 dimensions"),
        (SOFTMAX, {"lanes": "4 : i64"}, "needs lanes of 8 or 16"),
        (SOFTMAX, {"unroll": "2 : i64"}, "too many vectors side by side"),
        (
            SOFTMAX,
            {"share": '"inner"', "kept": ""},
            "shares reduced dimensions that several passes read",
        ),
        (SOFTMAX, {"kept": "2 : i64"}, "keeps more values of a row than the 1"),
        (SOFTMAX, {"from_size": "3 : i64"}, "has from_size for a kernel that one thread runs"),
        (SOFTMAX, {"kind": '"blas"'}, "has lanes, which its kernel does not use|which its kernel"),
        (COLUMNS, {"unroll": "9 : i64"}, "too many vectors side by side"),
        (COLUMNS, {"unroll": "0 : i64"}, "too many vectors side by side"),
    ],
)
def test_loops_that_no_code_follows(
    modules: dict[str, str], text: str, fields: dict[str, str], what: str
) -> None:
    with pytest.raises(CompileError, match=what):
        generate_planned(edited(modules[text], **fields), "cpu", 2)


# -- rows of contractions, copies, tiles of quantized products

ROWS = """
  func.func @f(%x: tensor<4096x64xf32>, %w: tensor<64x512xf32>, %b: tensor<512xf32>) -> tensor<4096x512xf32> {
    %0 = "gflow.matmul"(%x, %w) : (tensor<4096x64xf32>, tensor<64x512xf32>) -> tensor<4096x512xf32>
    %1 = "gflow.broadcast"(%b) {shape = array<i64: 4096, 512>, dims = array<i64: 1>} : (tensor<512xf32>) -> tensor<4096x512xf32>
    %2 = "gflow.add"(%0, %1) : (tensor<4096x512xf32>, tensor<4096x512xf32>) -> tensor<4096x512xf32>
    return %2 : tensor<4096x512xf32>
  }"""  # noqa: E501

JOINED = """
  func.func @f(%x: tensor<5x40xf32>, %y: tensor<3x40xf32>) -> tensor<8x40xf32> {
    %0 = "gflow.concatenate"(%x, %y) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<5x40xf32>, tensor<3x40xf32>) -> tensor<8x40xf32>
    return %0 : tensor<8x40xf32>
  }"""  # noqa: E501

HALVES = """
func.func @halves(%x: tensor<6x40xbf16>, %w: tensor<40x24xbf16>) -> tensor<6x24xbf16> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<6x40xbf16>, tensor<40x24xbf16>) -> tensor<6x24xbf16>
  return %0 : tensor<6x24xbf16>
}
"""

CONVOLUTION = """
func.func @convolution(%x: tensor<2x8x8x3xf32>, %w: tensor<16x3x3x3xf32>) -> tensor<2x6x6x16xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<2x8x8x3xf32>, tensor<16x3x3x3xf32>) -> tensor<2x6x6x16xf32>
  return %0 : tensor<2x6x6x16xf32>
}
"""  # noqa: E501

QUANTIZED = """
  func.func @f(%x: tensor<3x64xf32>, %w: tensor<2x4096xi8>, %s: tensor<2x64xf32>, %v: tensor<f32>) -> tensor<3x96xf32> {
    %0 = "gflow.quantized_matmul"(%x, %w, %s, %v) {bits = 8 : i64, columns = 96 : i64, source = "w"} : (tensor<3x64xf32>, tensor<2x4096xi8>, tensor<2x64xf32>, tensor<f32>) -> tensor<3x96xf32>
    return %0 : tensor<3x96xf32>
  }"""  # noqa: E501


def without_own_products(text: str) -> str:
    passes = "gflow-fuse,gflow-materialize,gflow-select-kernels{isa=none},gflow-plan-memory"
    with make_context():
        module = ir.Module.parse(text)
        run_pipeline(module, f"builtin.module(func.func({passes}))")
        return str(module)


def run(text: str, *args: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The result, and how many steps there are."""
    program = generate_planned(text, "cpu", 2)
    (got,) = Executable(program)(args)
    return got, len(program.steps)


def test_rows_at_a_time() -> None:
    text = without_own_products(ROWS)
    assert "rows = 1024 : i64, then = [{lanes = 16 : i64, order = array<i64: 0, 1>" in text
    x, w, bias = torch.randn(4096, 64), torch.randn(64, 512), torch.randn(512)
    wanted = x @ w + bias
    for rows, count in ((1024, 4), (1000, 5), (4096, 1)):
        got, steps = run(text.replace("rows = 1024", f"rows = {rows}"), x, w, bias)
        assert steps == 2 * count
        torch.testing.assert_close(got, wanted)
    narrow = text.replace(
        "{lanes = 16 : i64, order = array<i64: 0, 1>", "{lanes = 8 : i64, order = array<i64: 1, 0>"
    )
    assert narrow != text
    torch.testing.assert_close(run(narrow, x, w, bias)[0], wanted)
    with pytest.raises(CompileError, match="needs 1 entries in `then`"):
        run(re.sub(r", then = \[[^]]*\]", "", text))


def test_copies() -> None:
    text = without_own_products(JOINED)
    x, y = torch.randn(5, 40), torch.randn(3, 40)
    for edit in (text, text.replace("lanes = 16", "lanes = 8", 1)):
        torch.testing.assert_close(run(edit, x, y)[0], torch.cat([x, y]))
    with pytest.raises(CompileError, match="needs lanes of 8 or 16"):
        run(text.replace("lanes = 16", "lanes = 4", 1))


def test_conversions_of_half_precision() -> None:
    text = without_own_products(HALVES)
    args = torch.randn(6, 40).bfloat16(), torch.randn(40, 24).bfloat16()
    wanted = (args[0].float() @ args[1].float()).bfloat16()
    for edit in (text, text.replace("lanes = 16", "lanes = 8")):
        got, steps = run(edit, *args)
        assert steps == 4
        torch.testing.assert_close(got, wanted)
    for old, new, message in (
        (", widened = array<i64: 0, 1, 2>", "", "an element type that it has no product of"),
        ("array<i64: 0, 1, 2>}", "array<i64: 0, 2>}", "must widen all operands and results"),
    ):
        assert old in text
        with pytest.raises(CompileError, match=message):
            run(text.replace(old, new), *args)
    with pytest.raises(CompileError, match="needs more than 1 entries in `then`"):
        run(
            re.sub(
                r", then = \[[^]]*\]", ", then = [{lanes = 16 : i64, order = array<i64: 0>}]", text
            ),
            *args,
        )


def test_patches() -> None:
    text = without_own_products(CONVOLUTION)
    assert 'patches = "stored"' in text
    x, w = torch.randn(2, 8, 8, 3), torch.randn(16, 3, 3, 3)
    wanted = torch.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    for edit in (text, text.replace("then = [{}]", 'then = [{threads = "all"}]')):
        torch.testing.assert_close(run(edit, x, w)[0], wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(CompileError, match="gathers patches for a call of the BLAS"):
        run(text.replace('"stored"', '"gathered"'), x, w)
    with pytest.raises(CompileError, match="makes patches that the convolution does not have"):
        run(text.replace('patches = "stored", ', ""), x, w)
    sizes = "block = array<i64: 48, 16, 16>, tile = array<i64: 6, 16, 27>"
    direct = text.replace('kind = "patches", patches = "stored"', f'kind = "direct", {sizes}')
    with pytest.raises(CompileError, match="reads windows of a convolution that cannot be read so"):
        run(direct, x, w)


def test_tiles_of_quantized_products() -> None:
    text = without_own_products(QUANTIZED)
    assert "tile = array<i64: 4, 32, 32>" in text
    x, scales = torch.randint(-8, 8, (3, 64)).float(), torch.full((2, 64), 0.5)  # exact sums
    args = x, torch.randint(-128, 128, (2, 4096), dtype=torch.int8), scales, torch.zeros(())
    wanted, _ = run(text, *args)
    for tile in ("2, 64, 32", "1, 32, 32"):
        assert torch.equal(run(text.replace("4, 32, 32", tile), *args)[0], wanted)
    for tile in ("4, 64, 32", "8, 16, 32", "4, 32, 64"):
        with pytest.raises(CompileError, match="has a tile that code generation does not support"):
            run(text.replace("4, 32, 32", tile))
