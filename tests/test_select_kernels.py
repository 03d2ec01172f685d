"""Choices of kernels in the IR: what is edited is what runs, and what cannot run is an error at the op."""

from __future__ import annotations

import re

import pytest
import torch
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module, generate_planned
from gflow.compiler.driver.pass_manager import PipelineError
from gflow.compiler.ir.errors import CompileError
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

TEXT = """
  func.func @f(%x: tensor<96x80xf32>, %y: tensor<80x72xf32>, %s: tensor<24x48xf32>)
      -> (tensor<96x72xf32>, tensor<24xf32>) {
    %0 = "gflow.matmul"(%x, %y) : (tensor<96x80xf32>, tensor<80x72xf32>) -> tensor<96x72xf32>
    %1 = "gflow.reduce"(%s) {kind = "sum", dims = array<i64: 1>} : (tensor<24x48xf32>) -> tensor<24xf32>
    return %0, %1 : tensor<96x72xf32>, tensor<24xf32>
  }"""


def planned(target: str, text: str = TEXT) -> str:
    """The module with its kernels selected and its memory planned."""
    with make_context():
        return compile_module(ir.Module.parse(text), CompileOptions(target=target)).ir


@pytest.fixture(scope="module")
def text() -> str:
    return planned("cuda:90")


def edited(text: str, old: str, new: str) -> str:
    found, count = re.subn(old, new, text, count=1)
    assert count, text
    return found


TILE, BLOCK = r"tile = array<[^>]*>", r"block = array<[^>]*>"
PRODUCT, REGION = r'kind = "product"', r'kind = "region"'


def test_edited_choices_run(text: str) -> None:
    text = edited(text, TILE, "tile = array<i64: 32, 16, 32>")
    text = edited(text, BLOCK, "block = array<i64: 4, 64>")
    program = generate_planned(text, "cuda:90", 1)
    first = [k.configs[0] for k in program.triton.values()]
    assert {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32}.items() <= first[0].constants.items()
    assert first[1].constants == {"ROWS": 4, "COLS": 64}
    args = [torch.randn(96, 80), torch.randn(80, 72), torch.randn(24, 48)]
    got = run_program(program, [a.clone() for a in args])
    torch.testing.assert_close(got[0], args[0] @ args[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], args[2].sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (TILE, "tile = array<i64: 8, 16, 16>", "has a tile below"),
        (BLOCK, "block = array<i64: 4, 32>", "needs a block with rows of 48"),
        (BLOCK, "block = array<i64: 64>", "needs a block of 2 sizes"),
        (REGION, 'kind = "pytorch"', "is not for a region"),
        (REGION, 'kind = "none"', "leaves out an op"),
        (PRODUCT, 'kind = "zero"', "whose kind is product"),
        (PRODUCT, 'kind = "product", loads = "descriptors"', "loads an operand by descriptors"),
    ],
)
def test_choices_that_code_cannot_follow(text: str, old: str, new: str, what: str) -> None:
    with pytest.raises(CompileError, match=what):
        generate_planned(edited(text, old, new), "cuda:90", 1)


OTHERS = """
  func.func @f(%q: tensor<2x64x2x16xbf16>, %x: tensor<40x300xf32>, %i: tensor<8xi64>, %s: tensor<8x300xf32>,
      %p: tensor<2x8x8x16xf32>, %w: tensor<16x3x3x1xf32>, %z: tensor<f32>) -> (tensor<2x64x2x16xbf16>,
      tensor<2x2x64xf32>, tensor<40xi64>, tensor<8x300xf32>, tensor<40x300xf32>, tensor<42x300xf32>,
      tensor<40x300xf32>, tensor<2x4x4x16xf32>, tensor<2x8x8x16xf32>) {
    %0, %1 = "gflow.attention"(%q, %q, %q) {causal = false, scale = 0.25 : f64,
        operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x64x2x16xbf16>,
        tensor<2x64x2x16xbf16>, tensor<2x64x2x16xbf16>) -> (tensor<2x64x2x16xbf16>, tensor<2x2x64xf32>)
    %2 = "gflow.reduce"(%x) {kind = "argmax", dims = array<i64: 1>} : (tensor<40x300xf32>) -> tensor<40xi64>
    %3 = "gflow.take"(%x, %i) {dim = 0 : i64} : (tensor<40x300xf32>, tensor<8xi64>) -> tensor<8x300xf32>
    %4 = "gflow.index_add"(%x, %i, %s) {dim = 0 : i64} : (tensor<40x300xf32>, tensor<8xi64>, tensor<8x300xf32>)
        -> tensor<40x300xf32>
    %5 = "gflow.pad"(%x, %z) {low = array<i64: 1, 0>, high = array<i64: 1, 0>} : (tensor<40x300xf32>, tensor<f32>)
        -> tensor<42x300xf32>
    %6 = "gflow.aten"(%x) {overload = "aten.cumsum.default", args = "[[{\\22t\\22: 0}, 1], {}]",
        operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<40x300xf32>) -> tensor<40x300xf32>
    %7, %9 = "gflow.max_pool"(%p) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>,
        layout = "N*C", positions = "window", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x16xf32>)
        -> (tensor<2x4x4x16xf32>, tensor<2x4x4x16xui8>)
    %8 = "gflow.convolution"(%p, %w) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>,
        dilation = array<i64: 1, 1>, groups = 16 : i64, layout = "N*C"} : (tensor<2x8x8x16xf32>,
        tensor<16x3x3x1xf32>) -> tensor<2x8x8x16xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8 : tensor<2x64x2x16xbf16>, tensor<2x2x64xf32>, tensor<40xi64>,
        tensor<8x300xf32>, tensor<40x300xf32>, tensor<42x300xf32>, tensor<40x300xf32>, tensor<2x4x4x16xf32>,
        tensor<2x8x8x16xf32>
  }"""


@pytest.fixture(scope="module")
def others() -> str:
    return planned("cuda:90", OTHERS)


@pytest.mark.parametrize(
    ("op", "stem"),
    [
        ("attention", "attention"), ("reduce", "argmax"), ("take", "take"), ("pad", "pointwise"), ("aten", "cumsum"),
        ("index_add", "order"), ("max_pool", "max_pool"), ("convolution", "depthwise"),
    ],
)  # fmt: skip
def test_every_kernel_runs_as_its_op_says(others: str, op: str, stem: str) -> None:
    """Warps and the last size of the block, of the first launch."""
    (line,) = (text for text in others.splitlines() if f'"gflow.{op}"' in text)
    block = re.search(r"block = array<i64: ([\d, ]*)>", line)
    assert block is not None
    sizes = [int(n) for n in block[1].split(",")]
    sizes[-1] *= 2
    now = re.sub(
        r"block = array<i64: [\d, ]*>", f"block = array<i64: {str(sizes)[1:-1]}>", line, count=1
    )
    now = edited(now, r"(kind = [^\n]*)warps = \d+", r"\1warps = 16")
    program = generate_planned(others.replace(line, now), "cuda:90", 1)
    first = next(
        program.triton[s.kernel] for s in program.steps if f"gflow.{op}" in f"gflow.{s.label}"
    )
    assert first.name.startswith(stem)
    assert list(first.configs[0].constants.values()) == sizes
    assert first.configs[0].num_warps == 16


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (r"then = \[\{[^}]*\}\], ", "", "has entries for 1 launches, and its kernels make more"),
        (r"(aten[^\n]*block = array<i64:) \d+, \d+", r"\1 4, 256", "needs rows of 300 as a whole"),
        (r"(attention[^\n]*)stages = \d+ : i64, ", r"\1", "needs warps and stages"),
        (
            r"(attention[^\n]*)kind = .kernel.",
            r'\1kind = "kernel", split_k = 4 : i64',
            "which its kernel does not use",
        ),
        (
            r"(pad[^\n]*)then = \[",
            r"\1then = [{block = array<i64: 8>, warps = 1 : i64}, ",
            "launches, and its kernels make",
        ),
    ],
)
def test_ways_that_kernels_cannot_follow(others: str, old: str, new: str, what: str) -> None:
    with pytest.raises(CompileError, match=what):
        generate_planned(edited(others, old, new), "cuda:90", 1)


def six_of(ops: str = "exp") -> str:
    """Six planned elementwise ops that don't meet, which share launches by their kind."""
    names = (ops.split() * 6)[:6]
    args = ", ".join(f"%x{n}: tensor<{4096 + n}xf32>" for n in range(6))
    lines = [
        f'%{n} = "gflow.{op}"(%x{n}) : (tensor<{4096 + n}xf32>) -> tensor<{4096 + n}xf32>'
        for n, op in enumerate(names)
    ]
    types = ", ".join(f"tensor<{4096 + n}xf32>" for n in range(6))
    values = ", ".join(f"%{n}" for n in range(6))
    body = "\n".join(lines)
    return planned(
        "cuda:90", f"func.func @f({args}) -> ({types}) {{ {body}\n return {values} : {types} }}"
    )


def blocks(text: str) -> list[dict[str, int]]:
    program = generate_planned(text, "cuda:90", 1)
    return [program.triton[s.kernel].configs[0].constants for s in program.steps]


#: what an op that shares a launch has, and what one has that does not
MERGED = r'gflow.kernel = \{block = array<i64: 1024>, kind = "merged", warps = 4 : i64\}, gflow.launch = 0 : i64'
ALONE = 'gflow.kernel = {block = array<i64: 64>, kind = "region", warps = 2 : i64}'


def test_launches_that_ops_share_are_those_of_the_ir() -> None:
    text = six_of()
    assert text.count("gflow.launch = 0") == 6
    assert blocks(text) == [{"COLS": 1024}]
    assert blocks(edited(text, MERGED, ALONE)) == [{"COLS": 64}, {"COLS": 1024}]
    two = text.split("gflow.launch = 0")
    two = "gflow.launch = 0".join(two[:3]) + "gflow.launch = 1" + "gflow.launch = 1".join(two[3:])
    args = [torch.randn(4096 + n) for n in range(6)]
    for block in (1024, 256):
        program = generate_planned(two.replace("1024", str(block)), "cuda:90", 1)
        assert [program.triton[s.kernel].configs[0].constants for s in program.steps] == [
            {"COLS": block}
        ] * 2
        for got, x in zip(run_program(program, args), args):
            torch.testing.assert_close(got, x.exp())


@pytest.mark.parametrize(
    ("ops", "old", "new", "what"),
    [
        ("exp", "i64: 1024", "i64: 512", "differs from that of another op of its launch"),
        ("exp", ", gflow.launch = 0 : i64", "", "is not for a region"),
        ("exp", r"(launch = 0[^@]*?)launch = 0", r"\1launch = 7", "do not stand together"),
        ("exp exp exp exp log log", 'kind = "region"', 'kind = "merged"', "is not for a region"),
    ],
)
def test_launches_that_ops_cannot_share(ops: str, old: str, new: str, what: str) -> None:
    with pytest.raises(CompileError, match=what):
        generate_planned(edited(six_of(ops), old, new), "cuda:90", 1)


def test_ops_of_different_kernels_share_no_launch() -> None:
    text = six_of("exp exp exp exp log log")
    other = edited(
        text, r'gflow.kernel = \{[^}]*kind = "region"[^}]*\}', re.search(MERGED, text)[0]
    )  # type: ignore[index]
    with pytest.raises(CompileError, match="differ in more than addresses and sizes"):
        generate_planned(other, "cuda:90", 1)


ATTENTION = """
  func.func @f(%q: tensor<2x64x2x16xf32>) -> (tensor<2x64x2x16xf32>, tensor<2x2x64xf32>) {
    %0, %1 = "gflow.attention"(%q, %q, %q) {causal = false, scale = 0.25 : f64,
        operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x64x2x16xf32>,
        tensor<2x64x2x16xf32>, tensor<2x64x2x16xf32>) -> (tensor<2x64x2x16xf32>, tensor<2x2x64xf32>)
    return %0, %1 : tensor<2x64x2x16xf32>, tensor<2x2x64xf32>
  }"""


def test_precision_of_products_is_that_of_the_ir(text: str, others: str) -> None:
    """Of attention, and of a product that is told to take tf32."""
    attention = planned("cuda:90", ATTENTION)
    for precision in ("tf32x3", "tf32", "ieee"):
        new = "" if precision == "ieee" else f'precision = "{precision}", '
        program = generate_planned(edited(attention, 'precision = "tf32x3", ', new), "cuda:90", 1)
        (kernel,) = program.triton.values()
        assert f'PRECISION = tl.constexpr("{precision}")' in kernel.source
    product = edited(text, PRODUCT, 'kind = "product", precision = "tf32"')
    kernels = generate_planned(product, "cuda:90", 1).triton.values()
    assert any('input_precision="tf32"' in k.source for k in kernels)
    for module, old, what in (
        (others, r'(attention[^\n]*)kind = "kernel"', "no products of bf16"),
        (others, r'(max_pool[^\n]*)kind = "kernel"', "where no products are made"),
    ):
        with pytest.raises(CompileError, match=what):
            generate_planned(
                edited(module, old, r'\1kind = "kernel", precision = "tf32"'), "cuda:90", 1
            )
    with pytest.raises(CompileError, match="a precision that its products do not support"):
        generate_planned(product.replace('"tf32"', '"tf32x3"'), "cuda:90", 1)


def test_a_librarys_attention_can_be_chosen(others: str) -> None:
    chosen = r'\1kernel = {kind = "pytorch", library = "FlashAttention"}'
    text = edited(others, r"(attention.*?gflow\.)kernel = \{[^}]*\}", chosen)
    assert "flash" in generate_planned(text, "cuda:90", 1).steps[0].overload
    text = text.replace('"FlashAttention"', '"Triton"')
    with pytest.raises(CompileError, match="has another library than"):
        generate_planned(text, "cuda:90", 1)


SUM = """
  func.func @f(%s: tensor<65536x64xf32>) -> tensor<64xf32> {
    %0 = "gflow.reduce"(%s) {kind = "sum", dims = array<i64: 0>} : (tensor<65536x64xf32>) -> tensor<64xf32>
    return %0 : tensor<64xf32>
  }"""


def test_stages_of_loops_and_ways_of_later_launches() -> None:
    text = planned("cuda:90", SUM)
    text = edited(text, r"stages = \d+ : i64, then", "stages = 4 : i64, then")
    text = edited(
        text, r"then = \[\{block = array<i64: \d+, \d+>", "then = [{block = array<i64: 4, 16>"
    )
    program = generate_planned(text, "cuda:90", 1)
    first, second = program.triton.values()
    assert "num_stages=4" in first.source
    assert second.configs[0].constants == {"ROWS": 4, "COLS": 16}
    x = torch.randn(65536, 64)
    torch.testing.assert_close(run_program(program, [x])[0], x.sum(0), rtol=1e-3, atol=1e-3)
    again = edited(planned("cuda:90"), r'kind = "region"', 'kind = "region", stages = 2 : i64')
    with pytest.raises(CompileError, match="stages exactly where there is a loop"):
        generate_planned(again, "cuda:90", 1)


@pytest.mark.parametrize(
    "field", ["warps = 4 : i64", "tile = array<i64: 16, 16, 16>", "block = array<i64: 64>"]
)
def test_a_processor_has_no_use_of_a_gpus_fields(field: str) -> None:
    text = edited(planned("cpu"), r'kind = "(blas|kernel)"', rf'kind = "\1", {field}')
    with pytest.raises(CompileError, match="which its kernel does not use"):
        generate_planned(text, "cpu", 1)


def test_an_edit_goes_through_text(others: str) -> None:
    """As gflow-opt reads and prints it."""
    text = edited(others, r"then = \[\{block = array<i64: ", "then = [{block = array<i64: 1, ")
    with make_context():
        module = ir.Module.parse(text)
        again = ir.Module.parse(module.operation.get_asm())
        assert str(again) == str(module)
        assert "then = [{block = array<i64: 1, " in str(again)


def test_another_target(text: str) -> None:
    with pytest.raises(
        Exception, match="selected for cuda:90, not cuda:80; run gflow-select-kernels"
    ):
        generate_planned(text, "cuda:80", 1)


def test_without_a_selection() -> None:
    pipeline = "builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-plan-memory))"
    with make_context():
        module = ir.Module.parse(TEXT)
        with pytest.raises(PipelineError, match="run gflow-select-kernels"):
            compile_module(module, CompileOptions(pipeline=pipeline))
