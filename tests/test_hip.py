"""Kernels for AMD's GPUs as machine code, without one: all kinds of them, a training step, an artifact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import test_codegen_elementwise as elementwise
import test_triton_attention as attention
import test_triton_contraction_compile as contractions
import test_triton_fused_compile as regions
import test_triton_pooling as pooling
import test_triton_positions as positions
import torch
from codegen_harness import FLOATS, INTEGERS, Arg, b, make
from test_triton_contraction_compile import no_data  # noqa: F401 - a fixture
from test_triton_matmul import product
from triton_harness import pipeline_of

import gflow as flow
from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.device_code import add_device_code
from gflow.compiler.emit.triton.toolchain.machine_code import check_amd_entry
from gflow.compiler.targets import parse_target
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import DeviceCode, Program, TritonKernel
from gflow.runtime.stored.bundle import ArtifactError

pytest.importorskip("triton")

TARGET = "hip:gfx942"
DEVICE = parse_target(TARGET).device
OPTIONS = CompileOptions(target=TARGET, pipeline=pipeline_of(TARGET))
ROOT = Path(__file__).resolve().parent
#: files whose tests compile kernels of every kind, and interpret them
SUITE = (
    "attention", "contraction_compile", "convolution", "fused", "fused_compile", "indexing", "matmul", "merge",
    "models", "numerics", "pooling", "positions", "precision", "rows",
)  # fmt: skip


def of_text(text: str) -> Program:
    with make_context():
        return compile_module(ir.Module.parse(text), CompileOptions(target=TARGET))


def machine_code(*programs: Program) -> dict[str, tuple[TritonKernel, DeviceCode]]:
    """Each kernel that is launched, by name and config, and its code."""
    found = {}
    for program in programs:
        add_device_code(program)
        for key, code in program.device_code.items():
            assert code.shared <= DEVICE.shared_memory, key
            assert code.registers <= DEVICE.thread_registers, key
            found[key] = program.triton[key.split("/")[0]], code
    return found


def spilled(code: dict[str, tuple[TritonKernel, DeviceCode]]) -> dict[str, int]:
    return {name: c.spills for name, (_, c) in code.items() if c.spills}


_QUICK = ("f32", "i32")


@pytest.mark.parametrize(
    "dtypes",
    [_QUICK, pytest.param({*FLOATS, *INTEGERS, "i1"} - {*_QUICK}, marks=pytest.mark.sweep)],
    ids=["quick", "others"],
)
def test_every_elementwise_op(dtypes: Sequence[str]) -> None:
    """What libdevice has for NVIDIA, ocml has for AMD, by the same names."""

    def body(dtype: str) -> Callable[..., list[ir.Value]]:
        return lambda x, y: [
            *(b(name, x) for name in elementwise._ops(dtype, 1)),
            *(b(name, x, y) for name in elementwise._ops(dtype, 2)),
            *(b("convert", x, dtype=d) for d in (*FLOATS, *INTEGERS, "i1") if d != dtype),
        ]

    cases = [make(d, [Arg((300,), d), Arg((300,), d)], body(d)) for d in sorted(dtypes)]
    assert machine_code(*(compile_module(c.module, OPTIONS) for c in cases))


def test_regions() -> None:
    code = machine_code(*(compile_module(c.module, OPTIONS) for c in regions._cases()))
    assert not spilled(code)


@pytest.mark.usefixtures("no_data")
def test_products_and_convolutions() -> None:
    """Products of halves, and those of float32, are by matrix instructions."""
    code = machine_code(*(compile_module(c.module, OPTIONS) for c in contractions.cases()))
    assert not spilled(code)
    for name, (kernel, found) in code.items():
        if "tl.dot(" in kernel.source:
            assert any(i.startswith("v_mfma_f32") for i in found.instructions), name
            assert 64 * found.warps <= 1024, name


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f32", marks=pytest.mark.sweep)])
def test_attention(dtype: str) -> None:
    shape = (2, 256, 4, 64)
    types = [attention._type(shape, dtype)] * 3
    grads = [types[0], *types, types[0], attention._type((2, 4, 256), "f32")]
    attrs = {"scale": 0.125, "causal": True}
    texts = [attention.module_text("attention", types, attrs),
             attention.module_text("attention_grad", grads, attrs)]  # fmt: skip
    code = machine_code(*map(of_text, texts))
    assert all(c.instructions for _, c in code.values() if c.shared)
    assert not spilled(code)


def _bodies() -> Iterator[tuple[list[str], Callable[[Any], Any]]]:
    shape, attrs = (64, 112, 112, 64), pooling.WINDOWS["resnet"][1]
    results = pooling._result(shape, attrs)
    types = [pooling._type(shape, "bf16"), pooling._type(results, "bf16")]
    yield types, lambda args: pooling._maxima(args, attrs, shape)
    both, rows = positions.both, ["50257x768xbf16", "8192xi64"]
    yield ["5000000xf32", "4096x50257xbf16"], lambda a: [*both(0)(a[:1]), *both(1)(a[1:])]
    for name, given in (("take", rows), ("index_add", [*rows, "8192x768xbf16"])):
        yield given, lambda args, name=name: builder.build_op(name, args, {"dim": 0}).results


def test_positions_and_windows() -> None:
    with make_context():
        texts = [_function(*each) for each in _bodies()]
    code = machine_code(*map(of_text, texts))
    assert len(code) >= 9
    assert not spilled(code)


class Train(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)
        )
        self.add_optimizer(torch.optim.AdamW(self.net.parameters()))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.net(x).square().mean()
        loss.backward()
        return loss


def test_a_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are shown, it is saved compiled, and the interpreter runs it; a machine without the GPU says so."""
    torch.manual_seed(0)
    graph = Train()
    x = torch.randn(8, 16)
    graph(x)
    assert any("tl.dot(" in k.source for k in graph.kernels(target=TARGET))
    flow.save(graph, tmp_path / "step", target=TARGET)
    images = [path.read_bytes() for path in (tmp_path / "step").rglob("*.cubin")]
    assert not images
    images = [path.read_bytes() for path in (tmp_path / "step").rglob("*.hsaco")]
    assert images
    assert all(image[:4] == b"\x7fELF" for image in images)
    with pytest.raises(ArtifactError, match=r"saved for hip:gfx942: .* runs nothing on AMD's"):
        flow.load(tmp_path / "step")
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    loaded = flow.load(tmp_path / "step")
    for _ in range(3):
        torch.testing.assert_close(loaded(x), graph(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_products_of_floats(dtype: str) -> None:
    """Of tf32 by matrix instructions where PyTorch's switches let them; of float64 element by element."""
    case = product(64, 64, 64, dtype)
    for operation in case.module.body.operations:
        with case.module.context:
            kinds = ir.ArrayAttr.get([ir.StringAttr.get("matmul")])
        operation.operation.attributes["gflow.tf32"] = kinds
    ((kernel, code),) = machine_code(compile_module(case.module, OPTIONS)).values()
    assert [i.endswith("xf32") for i in code.instructions] == [True] * (dtype == "f32")
    assert ("tl.dot(" in kernel.source) == (dtype == "f32")


def test_what_launches_give_is_what_the_entry_takes() -> None:
    text = """.amdgpu_metadata
      .args:
      - .size:           8
      - .size:           4
      - .size:           8
      - .size:           8
      .group_segment_fixed_size: 0
      .max_flat_workgroup_size: 128
"""
    check_amd_entry(text, {"x": "*fp32", "n": "i32"}, 128)
    with pytest.raises(ValueError, match="wants 128 threads a block; 256 expected"):
        check_amd_entry(text, {"x": "*fp32", "n": "i32"}, 256)
    with pytest.raises(ValueError, match=r"\[64, 32, 64, 64\] bits; \[64, 64, 64, 64\] expected"):
        check_amd_entry(text, {"x": "*fp32", "n": "i64"}, 128)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SUITE)
def test_the_suite_of_kernels(name: str) -> None:
    """What each test compiles for CUDA compiles for AMD's GPUs, too."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "hip_suite", f"test_triton_{name}.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
