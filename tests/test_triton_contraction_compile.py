"""Products and convolutions of real models at full size, as machine code: nothing spilled, tensor cores used."""

from __future__ import annotations

import codegen_harness
import pytest
import torch
from codegen_harness import Arg, Case, b, make
from ir_interpreter import DTYPES
from test_triton_convolution import FORWARD, INPUT, WEIGHT, Conv
from test_triton_matmul import gelu, linear, product
from triton_harness import pipeline_of

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects.program import TritonKernel

ONE = (1, 1)


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are only compiled: their tensors need no memory."""

    def empty(shape: tuple[int, ...], dtype: str, *_: object) -> torch.Tensor:
        return torch.empty(1, dtype=DTYPES[dtype]).expand(shape)

    monkeypatch.setattr(codegen_harness, "random_tensor", empty)
    monkeypatch.setattr(codegen_harness, "strided", lambda tensor, strides: tensor)


def cases() -> list[Case]:
    """Layers of GPT-2 small, ResNet-50 and MobileNetV2."""
    stage = Conv(128, 64, 64, (56, 56), (3, 3), padding=ONE, taps_last=True, dtype="bf16")
    stem = Conv(128, 3, 64, (224, 224), (7, 7), (2, 2), (3, 3), taps_last=True, dtype="bf16")
    last = Conv(128, 512, 512, (7, 7), (3, 3), padding=ONE, taps_last=True, dtype="bf16")
    wide = Conv(
        64, 96, 96, (112, 112), (3, 3), (2, 2), ONE, groups=96, taps_last=True, dtype="bf16"
    )
    return [
        linear(8192, 768, 3072, "bf16", lambda x, r: [b("add", x, r)]),
        linear(8192, 768, 3072, "bf16", lambda x, r: [x, gelu(b("convert", x, dtype="f32"))]),
        make(
            "gradient of a weight",
            [Arg((8192, 768), "bf16", (1, 8192)), Arg((768, 3072), "bf16")],
            lambda x, y: [b("matmul", x, y)],
        ),
        product(8192, 768, 50257, "bf16", b=Arg((768, 50257), "bf16", (1, 768))),
        linear(8192, 768, 3072, "f32", lambda x, r: [b("add", x, r)]),
        *(stage.case(op, after=True) for op in (FORWARD, INPUT, WEIGHT)),
        *(stem.case(op) for op in (FORWARD, WEIGHT)),
        last.case(INPUT),
        *(wide.case(op, after=True) for op in (FORWARD, INPUT, WEIGHT)),
    ]


@pytest.mark.parametrize("arch", [pytest.param(80, marks=pytest.mark.sweep), 90])
def test_machine_code(arch: int) -> None:
    kernels: dict[str, TritonKernel] = {}
    for case in cases():
        target = f"cuda:{arch}"
        options = CompileOptions(target=target, pipeline=pipeline_of(target))
        kernels |= compile_module(case.module, options).triton
    code = compile_kernels([(k, 0) for k in kernels.values()], arch)
    assert len(code) == len(kernels)
    spilled = {name: c.spills for name, c in code.items() if c.spills}
    assert not spilled, spilled
    wanted = "wgmma" if arch == 90 else "mma"
    for key, c in code.items():
        k = kernels[key.split("/")[0]]
        halves = "tl.dot" in k.source and k.parameters["a"] == "*bf16"
        assert not halves or any(i.startswith(wanted) for i in c.instructions), (
            key,
            c.instructions,
        )
