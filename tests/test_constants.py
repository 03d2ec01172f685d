"""Constants: large ones are resources, and read back the same from every form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gflow import nn
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.tools.opt import main
from gflow.dialects import builder
from gflow.dialects.constants import ConstantError, element_bytes, externalize
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.types import TensorType

_NUMPY = {
    "f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2", "i64": "i8", "i32": "i4", "i16": "i2",
    "i8": "i1", "ui8": "u1", "ui16": "u2", "ui32": "u4", "ui64": "u8", "i1": "?",
}  # fmt: skip


def _array(dtype: str, size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    kind = np.dtype(_NUMPY[dtype])
    if dtype == "bf16":
        return (rng.standard_normal(size).astype("f4").view("u4") >> 16).astype("u2")
    if kind.kind == "f":
        return rng.standard_normal(size).astype(kind)
    array = rng.integers(0, 2 if dtype == "i1" else 100, size).astype(kind)
    array[:2] = (0, 1)  # never a splat
    return array


def _value(text_or_module: ir.Module) -> ir.Attribute:
    return text_or_module.body.operations[0].operation.attributes["value"]


@pytest.mark.parametrize("size", [3, 64, 65, 1000])
@pytest.mark.parametrize("dtype", _NUMPY)
def test_elements_survive_text(dtype: str, size: int) -> None:
    array, ty = _array(dtype, size), TensorType((size,), dtype)
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            builder.dense(array, ty)
        assert element_bytes(_value(module), ty) == array.tobytes()
        text = str(module)
        assert ("dense_resource" in text) == (size > 64)
    with make_context():
        again = ir.Module.parse(text)
        assert element_bytes(_value(again), ty) == array.tobytes()
        assert str(again) == text


@pytest.mark.parametrize("dtype", _NUMPY)
def test_written_out_constants_become_resources(dtype: str) -> None:
    array, ty = _array(dtype, 100), TensorType((4, 25), dtype)
    with make_context(), ir.Location.unknown():
        attribute = ir.DenseElementsAttr.get(array, type=ty.mlir())
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            builder.build("constant", [], {"value": attribute})
        assert "dense_resource" not in str(module)
        externalize(module.operation)
        assert "dense_resource" in str(module)
        assert element_bytes(_value(module), ty) == array.tobytes()


def test_equal_constants_of_one_context_have_names_of_their_own() -> None:
    array, ty = _array("f32", 100), TensorType((100,), "f32")
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            builder.dense(array, ty)
            builder.dense(array + 1, ty)
            builder.dense(array, ty)
        for op, want in zip(module.body.operations, (array, array + 1, array)):
            assert element_bytes(op.operation.attributes["value"], ty) == want.tobytes()


def test_missing_and_wrong_data_are_told() -> None:
    text = """module {
      %0 = "gflow.constant"() {value = dense_resource<gone> : tensor<100xf32>} : () -> tensor<100xf32>
      %1 = "gflow.constant"() {value = dense_resource<short> : tensor<100xf32>} : () -> tensor<100xf32>
    }
    {-# dialect_resources: { builtin: { short: "0x0400000000000000" } } #-}"""
    with make_context():
        gone, short = ir.Module.parse(text).body.operations
        ty = TensorType((100,), "f32")
        with pytest.raises(ConstantError, match="'gone' are not in the text"):
            element_bytes(gone.operation.attributes["value"], ty)
        with pytest.raises(ConstantError, match="has 4 bytes, its type tensor<100xf32> has 400"):
            element_bytes(short.operation.attributes["value"], ty)


PROGRAM = """func.func @f(%x: tensor<100xf32>) -> tensor<100xf32> {
  %0 = "gflow.constant"() {value = dense<[NUMBERS]> : tensor<100xf32>} : () -> tensor<100xf32>
  %1 = "gflow.add"(%x, %0) : (tensor<100xf32>, tensor<100xf32>) -> tensor<100xf32>
  return %1 : tensor<100xf32>
}"""


def test_passes_and_kernels_read_resources(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    import torch

    from gflow.compiler import compile_module
    from gflow.runtime import Executable

    source = tmp_path / "in.mlir"
    source.write_text(PROGRAM.replace("NUMBERS", ", ".join(f"{i}.5" for i in range(100))))
    assert main([str(source)]) == 0
    text = capsys.readouterr().out
    assert "dense_resource<c_" in text
    assert len(text) < 1500
    source.write_text(text)
    assert main([str(source)]) == 0
    assert capsys.readouterr().out == text
    assert main([str(source), "--mlir-elide-elementsattrs-if-larger=10"]) == 0
    elided = capsys.readouterr().out
    assert "0x0" not in elided
    with make_context():
        module = ir.Module.parse(text)
        run_pipeline(module, "builtin.module(func.func(gflow-simplify,cse))")
        program = compile_module(module)
        assert "dense_resource<c_" in program.ir
    x = torch.randn(100)
    (y,) = Executable(program)([x])
    torch.testing.assert_close(y, x + torch.arange(100) + 0.5)
    with make_context(), pytest.raises(PipelineError, match="printed without them"):
        compile_module(ir.Module.parse(elided))


@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>"])
def test_complex_constants(dtype: str) -> None:
    kind = np.complex64 if "32" in dtype else np.complex128
    array = (np.arange(100) + 1j * np.linspace(-1, 5, 100)).astype(kind)
    ty = TensorType((100,), dtype)
    few = TensorType((3,), dtype)
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            zero = builder.splat(0, ty)
            many = builder.dense(array, ty)
            some = builder.dense(array[:3], few)
        zero, many, some = (v.owner.attributes["value"] for v in (zero, many, some))
        assert element_bytes(zero, ty) == bytes(ty.nbytes)
        assert element_bytes(many, ty) == array.tobytes()
        assert element_bytes(some, few) == array[:3].tobytes()


def test_a_product_over_nothing_of_complex_numbers() -> None:
    import torch

    from gflow.compiler import compile_module
    from gflow.runtime import Executable

    text = """func.func @f(%a: tensor<2x0xcomplex<f32>>, %b: tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>> {
      %0 = "gflow.matmul"(%a, %b) : (tensor<2x0xcomplex<f32>>, tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>>
      return %0 : tensor<2x3xcomplex<f32>>
    }"""
    with make_context():
        program = compile_module(ir.Module.parse(text))
    a, b = torch.empty(2, 0, dtype=torch.complex64), torch.empty(0, 3, dtype=torch.complex64)
    (y,) = Executable(program)([a, b])
    assert torch.equal(y, a @ b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_ramps_of_integers_are_those_of_torch(dtype: torch.dtype) -> None:
    def ramps() -> list[torch.Tensor]:
        made = [torch.linspace(a, b, 50, dtype=dtype) for a, b in ((-3, 5), (0.9, 9.7), (100, 20))]
        return [*made, torch.logspace(-3, 2, 20, dtype=dtype)]

    for ours, theirs in zip(nn.Graph.trace(ramps)(), ramps()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("periodic", [True, False])
def test_hann_windows_are_those_of_torch(periodic: bool) -> None:
    def windows() -> list[torch.Tensor]:
        return [torch.hann_window(n, periodic) for n in (1, 9, 16, 33)]

    for ours, theirs in zip(nn.Graph.trace(windows)(), windows()):
        assert torch.equal(ours, theirs)
