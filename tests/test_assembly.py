"""The dialect's assembly: what is printed is read back as the same module, of every lit file and of whole programs."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest
import torch

import gflow as flow
from gflow.compiler.driver.inputs import parse
from gflow.dialects import limits
from gflow.dialects.assembly import AssemblyError, is_assembly, to_assembly, to_generic
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "lit_tests").rglob("*.mlir"))


def module_of(text: str) -> ir.Module | None:
    """A module in a context of its own; None for what MLIR refuses."""
    context = make_context()
    context.allow_unregistered_dialects = True
    with context:
        try:
            return ir.Module.parse(text)
        except ir.MLIRError:
            return None


def locations(module: ir.Module) -> list[str]:
    found: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.startswith("gflow."):
            found.append(str(op.location))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def there_and_back(module: ir.Module) -> str:
    """The assembly of a module, which is read back as the module."""
    text = module.operation.get_asm()
    shown = to_assembly(text)
    generic = to_generic(shown)
    assert generic.count("\n") == shown.count("\n")  # diagnostics name lines of what was given
    again = module_of(generic)
    assert again is not None
    assert again.operation.get_asm() == text
    located = module_of(to_generic(to_assembly(module.operation.get_asm(enable_debug_info=True))))
    assert located is not None
    assert located.operation.get_asm() == text
    assert locations(located) == locations(module)
    return shown


def test_a_long_string_takes_no_more_memory_than_its_text() -> None:
    """It took 115 bytes a character."""
    text = f'module attributes {{a = "{"a" * 1_000_000}"}} {{}}'
    tracemalloc.start()
    try:
        assert limits.problem(text) is None
        assert not is_assembly(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("folder", sorted({f.parent.name for f in FILES}))
def test_lit_files(folder: str) -> None:
    """Modules of all lit files, those with errors in them aside."""
    tried = 0
    for file in FILES:
        if file.parent.name != folder:
            continue
        for part in re.split(r"^// -----.*$", file.read_text(), flags=re.MULTILINE):
            source = to_generic(part) if is_assembly(part) else part
            module = None if limits.problem(source) else module_of(source)
            if module is not None:
                there_and_back(module)
                tried += 1
    assert tried


def train() -> flow.nn.Graph:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Dropout(0.1)
    )

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean() + torch.topk(x, 2)[0].sum()
            loss.backward()
            return loss

    graph = Train()
    graph(torch.randn(2, 3, 8, 8))
    return graph


def test_whole_programs() -> None:
    """A training step at each stage; no line of the dialect is left in the generic form."""
    graph = train()
    for stage in ("traced", "simplified", "fused", "scheduled", "planned"):
        module = module_of(graph.ir(stage, generic=True))
        assert module is not None
        shown = there_and_back(module)
        assert '"gflow.' not in shown
        assert "SegmentSizes" not in shown
        assert "tensor<" not in shown
        text = graph.ir(stage)
        assert is_assembly(text)
        diagnostics: list = []
        assert parse(text, "graph.mlir", make_context(), diagnostics) is not None, diagnostics


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0 = gflow.matmull %x, %x : 4xf32", "unknown op gflow.matmull; did you mean gflow.matmul"),
        ("%0 = gflow.abs %x", "expected ':' and the type"),
        ("%0 = gflow.abs x : 4xf32", "expected operands such as %0, found 'x'"),
        ("%0 = gflow.abs %x : 4xf", "expected a type such as 5x3xf32, found '4xf'"),
        ("%0 = gflow.add %x, %x : (4xf32) -> 4xf32", "2 operands, and types of 1"),
        ("%0 = gflow.abs %x {a = [1 : 4xf32", "a bracket is not closed"),
        ("%0 = gflow.fused(%a) -> 4xf32 {", "expected '%inside = %outside: type', found '%a'"),
        ("%0 = gflow.fused %x : 4xf32", "expected (%inside = %outside: type, ...) -> types {"),
        ("%0 = gflow.reduce %x {dims} {kind} : 4xf32 -> f32", "brackets do not match"),
    ],
)  # fmt: skip
def test_mistakes(line: str, message: str) -> None:
    """Each is an error with its line."""
    with pytest.raises(AssemblyError, match=re.escape(message)) as caught:
        to_generic(f"func @f(%x: 4xf32) -> 4xf32 {{\n  {line}\n  return %0 : 4xf32\n}}\n")
    assert caught.value.line == 2


@pytest.mark.parametrize(
    "line",
    [
        '%0 = gflow.exp %x, "' + '\\"' * 500_000,
        '%0 = gflow.exp "' + '\\"' * 500_000 + " // a comment",
        "%0" + " " * 1_000_000 + "gflow.exp",
        "%0 = gflow.concatenate " + "%x, " * 200_000 + "%x : " + "1x" * 900 + "f32",
        f'loc("{"x" * 1_000_000}")\n' + "  %0 = gflow.exp %x : 4xf32\n" * 1000,
    ],
    ids=["string", "comment", "blanks", "types", "locations"],
)
def test_long_statements(line: str) -> None:
    """They are read in linear time, and what is made of them is no longer than MLIR may read."""
    try:
        found = to_generic(f"func @f(%x: 4xf32) -> 4xf32 {{\n  {line}\n  return %0 : 4xf32\n}}\n")
    except AssemblyError:
        return
    assert len(found) < 3_000_000


def test_statements_over_several_lines() -> None:
    text = """
// a comment
func @f(
    %x: 4xf32,   // the first
    %y: 4xf32
) -> 4xf32 {
  %0 = gflow.add %x,
                 %y : 4xf32  // their sum
  return %0 : 4xf32
}
"""
    module = module_of(to_generic(text))
    assert module is not None
    assert '"gflow.add"(%arg0, %arg1)' in str(module)


def test_both_forms_and_other_dialects() -> None:
    """Lines of other dialects and of the generic form stay as they are."""
    text = """func.func @f(%x: tensor<4xf32>, %n: index) -> tensor<4xf32> {
  %one = arith.constant 1 : index
  %m = arith.addi %n, %one : index
  %0 = gflow.exp %x : 4xf32
  %1 = "gflow.exp"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}"""
    assert is_assembly(text)
    module = module_of(to_generic(text))
    assert module is not None
    there_and_back(module)


def test_generic_text_is_known() -> None:
    """Attributes that are named like ops do not make a text assembly."""
    assert not is_assembly("module attributes {\n  gflow.constant = 1 : i64\n} {\n}\n")
    assert not is_assembly(
        'func.func @f(%x: tensor<4xf32>) {\n  %0 = "gflow.abs"(%x) : () -> ()\n}'
    )
    assert is_assembly("func @f() {\n  return\n}")


def test_errors_of_assembly() -> None:
    """They name the line; an op in a message of MLIR's is shown in assembly."""
    diagnostics: list = []
    text = "func @f(%x: 4x3xf32) -> 4x3xf32 {\n  %0 = gflow.matmul %x, %x : 4x3xf32\n  return %0 : 4x3xf32\n}"
    assert parse(text, "f.mlir", make_context(), diagnostics) is None
    assert (diagnostics[0].file, diagnostics[0].line) == ("f.mlir", 2)
    text = "func @f(%x: 4xf32) -> 4xf32 {\n  %0 = gflow.exp %x : 4xf32\n}"
    diagnostics.clear()
    assert parse(text, "f.mlir", make_context(), diagnostics) is None
    shown = [note.message for d in diagnostics for note in d.notes]
    assert any("gflow.exp %arg0 : 4xf32" in text for text in shown), diagnostics


def test_grammar_of_editors() -> None:
    """Its patterns compile, and tell ops, types and values."""
    grammar = json.loads((ROOT / "editors" / "gflow.tmLanguage.json").read_text())
    patterns = {p.get("name", "op"): p for p in grammar["patterns"]}
    for pattern in patterns.values():
        re.compile(pattern.get("match", pattern.get("begin")))
    line = "%2 = gflow.matmul %0, %1 : (5x3xf32, ?x4xbf16) -> complex<f32>"
    assert [m[3] for m in re.finditer(patterns["op"]["match"], line)] == ["matmul"]
    types = re.findall(patterns["storage.type.tensor.mlir"]["match"], line)
    assert types == ["5x3xf32", "?x4xbf16", "complex<f32>"]
    for name in OPS:
        assert re.match(patterns["op"]["match"], f"gflow.{name} %0")
