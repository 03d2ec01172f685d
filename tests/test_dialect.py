"""The dialect: documentation and examples of every op, text round trip, verifier speed."""

from __future__ import annotations

import pytest
from call_count import calls

from gflow.compiler.engines import docs as engine_docs
from gflow.compiler.ir.diagnostics import collect
from gflow.compiler.tools import docs as pass_docs
from gflow.dialects import builder
from gflow.dialects import docs as op_docs
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


def test_documents_are_current() -> None:
    """After a change of ops or passes: python -m gflow.dialects.docs --write, and
    python -m gflow.compiler.tools.docs --write and python -m gflow.compiler.engines.docs --write."""
    assert op_docs.main(["--check"]) == 0
    assert pass_docs.main(["--check"]) == 0
    assert engine_docs.main(["--check"]) == 0


@pytest.mark.parametrize("name", list(OPS))
def test_example_round_trip(context: ir.Context, name: str) -> None:
    with context:
        text = op_docs.example(OPS[name])
        assert f"gflow.{name}" in text
        module = ir.Module.parse(text)
        module.operation.verify()
        assert str(module) == text


@pytest.mark.parametrize("name", list(OPS))
def test_declaration(name: str) -> None:
    definition = OPS[name]
    assert definition.name == name
    assert definition.summary
    assert all(spec.doc for spec in definition.attrs.values())
    variadic = [o for o in definition.operands if o.startswith("*") or o.endswith("?")]
    assert variadic == list(definition.operands[len(definition.operands) - len(variadic) :])
    assert len(variadic) <= 1 or definition.mixed


def test_unreadable_attributes_are_diagnosed(context: ir.Context) -> None:
    text = """"gflow.constant"() {value = dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>}
        : () -> tensor<2xcomplex<f32>>"""
    with collect(context) as found, context, pytest.raises(ir.MLIRError):
        ir.Module.parse(text)
    assert "attribute 'value' must be a dense constant" in found[0].message


def test_verifiers_run_on_many_functions_at_once(context: ir.Context) -> None:
    """Functions are verified by several threads, each of which calls Python."""
    body = '%0 = "gflow.abs"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n' * 1
    text = "".join(f"func.func @f{i}(%x: tensor<4xf32>) {{\n{body}return\n}}\n" for i in range(200))
    with context:
        module = ir.Module.parse(text)
        for _ in range(5):
            assert module.operation.verify()


def test_verifier_is_fast(context: ir.Context) -> None:
    ty, count = TensorType((4, 8), "f32"), 3000
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            block = func.FuncOp("f", ir.FunctionType.get([ty.mlir()], [])).add_entry_block()
        with ir.InsertionPoint(block):
            x = block.arguments[0]
            for _ in range(count // 3):
                y = builder.build("add", [x, x])
                y = builder.build("transpose", [y], {"permutation": (1, 0)})
                x = builder.build("reshape", [y], {"shape": (4, 8)})
            func.ReturnOp([])
        assert calls(module.operation.verify) < 120 * count
