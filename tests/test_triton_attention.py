"""Attention's Triton kernels: under the interpreter against float64, and as text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ir_interpreter import DTYPES, run_module

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.toolchain.device_code import AROUND, add_device_code
from gflow.compiler.kernel.selection.gpu.attention import configs
from gflow.compiler.reports.sass.instructions import disassembled, parsed
from gflow.compiler.targets import CUDA_ARCHS, Target, parse_target
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.dialects.program import LaunchStep, Program
from gflow.dialects.program.form import unpacked
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

Tensor = torch.Tensor


def module_text(name: str, types: list[str], attrs: dict[str, Any]) -> str:
    with make_context():
        return _function(types, lambda args: builder.build_op(name, args, attrs).results)


def compiled(text: str) -> Program:
    with make_context():
        return compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))


def run_program(program: Program, args: list[Tensor]) -> list[Tensor]:
    """What a program gives, by Triton's interpreter."""
    return Executable(program, InterpreterDevice())(args)


def oracle(text: str, args: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """What the op's definition gives, computed in `dtype`."""
    with make_context():
        wide = {torch.float64: "f64", torch.float32: "f32"}[dtype]
        for half in ("xf32", "xf16", "xbf16"):
            text = text.replace(half, f"x{wide}")
        given = [a.to(dtype) if a.is_floating_point() else a for a in args]
        return [r.contiguous() for r in run_module(ir.Module.parse(text), given)]


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return "x".join([*map(str, shape), dtype])


PLAIN = {"scale": 0.4, "causal": False}
CAUSAL = {"scale": 0.3, "causal": True}
DROPOUT = {"scale": 0.3, "causal": True, "dropout": 0.3, "stream": 5}

WINDOW = {"scale": 0.3, "causal": False, "window": (20, 30)}
SLIDING = {"scale": 0.3, "causal": True, "window": (39, 0)}
APART = {"scale": 0.3, "causal": False, "window": (-10, 60)}

#: q, k, v, attributes, bias, and whether there are documents: none, in order, in any order
CASES: dict[str, tuple[Any, ...]] = {
    "grouped": ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8), PLAIN, None),
    "causal, odd sizes": ((1, 35, 1, 20), (1, 37, 1, 20), (1, 37, 1, 24), CAUSAL, None),
    "causal, blocks of both kinds": ((1, 160, 2, 16), (1, 160, 1, 16), (1, 160, 1, 16), CAUSAL, None),
    "causal, many keys": ((1, 36, 1, 16), (1, 150, 1, 16), (1, 150, 1, 16), CAUSAL, None),
    "negative scale": ((1, 40, 1, 16), (1, 40, 1, 16), (1, 40, 1, 16), {"scale": -0.3, "causal": True}, None),
    "scale of zero": ((1, 20, 1, 16), (1, 40, 1, 16), (1, 40, 1, 16), {"scale": 0.0, "causal": True}, None),
    "causal, few keys": ((1, 40, 1, 16), (1, 18, 1, 16), (1, 18, 1, 16), CAUSAL, None),
    "dropout": ((1, 20, 1, 16), (1, 36, 1, 16), (1, 36, 1, 16), DROPOUT, None),
    "dropout, odd": ((1, 10, 2, 16), (1, 37, 1, 16), (1, 37, 1, 16), DROPOUT, None),
    "mask": ((2, 5, 2, 16), (2, 37, 2, 16), (2, 37, 2, 16), PLAIN, ((2, 1, 1, 37), "i1")),
    "bias": ((1, 33, 1, 16), (1, 37, 1, 16), (1, 37, 1, 16), PLAIN, ((1, 1, 33, 37), "f32")),
    "mask of pairs": ((2, 36, 1, 16), (2, 40, 1, 16), (2, 40, 1, 16), CAUSAL, ((2, 1, 36, 40), "i1")),
    "mask of keys, causal": ((2, 40, 4, 16), (2, 70, 2, 16), (2, 70, 2, 16), CAUSAL, ((2, 4, 1, 70), "i1")),
    "many blocks, bias of keys": (
        (1, 64, 2, 64), (1, 128, 1, 64), (1, 128, 1, 64), {**PLAIN, "scale": 0.1}, ((1, 1, 1, 128), "f32")
    ),
    "many blocks, bias of pairs": (
        (1, 64, 2, 64), (1, 128, 2, 64), (1, 128, 2, 64), {**PLAIN, "scale": 0.1}, ((1, 2, 64, 128), "bf16")
    ),
    "bias of positions": ((2, 33, 2, 16), (2, 37, 2, 16), (2, 37, 2, 16), PLAIN, ((2, 1, 33, 1), "f32")),
    "bias of heads": ((1, 20, 4, 16), (1, 20, 2, 16), (1, 20, 2, 16), PLAIN, ((1, 4, 1, 1), "f32")),
    "bias, negative scale": (
        (1, 33, 1, 16), (1, 37, 1, 16), (1, 37, 1, 16), {**PLAIN, "scale": -0.3}, ((1, 1, 33, 37), "f32")
    ),
    "broadcast bias": ((2, 18, 2, 16), (2, 20, 1, 16), (2, 20, 1, 16), PLAIN, ((1, 1, 1, 20), "f32")),
    "window": ((1, 160, 2, 16), (1, 170, 1, 16), (1, 170, 1, 16), WINDOW, None),
    "sliding, whole blocks": ((1, 256, 1, 16), (1, 256, 1, 16), (1, 256, 1, 16), {**SLIDING, "window": (130, 0)}, None),
    "sliding, few keys": ((1, 160, 1, 16), (1, 70, 1, 16), (1, 70, 1, 16), SLIDING, None),
    "window apart": ((1, 90, 1, 16), (1, 128, 1, 16), (1, 128, 1, 16), APART, None),
    "sliding, dropout": ((1, 70, 1, 16), (1, 72, 1, 16), (1, 72, 1, 16), {**DROPOUT, "window": (33, 0)}, None),
    "sliding, wide, bias": (
        (1, 96, 1, 200), (1, 96, 1, 200), (1, 96, 1, 200), {**SLIDING, "scale": 0.05}, ((1, 1, 96, 96), "f32")
    ),
    "many channels, all keys": ((1, 20, 1, 130), (1, 34, 1, 130), (1, 34, 1, 130), {**PLAIN, "scale": 0.05}, None),
    "many channels, window": (
        (1, 70, 1, 136), (1, 140, 1, 136), (1, 140, 1, 136), {"scale": 0.05, "causal": False, "window": (20, 40)}, None
    ),
    "many channels": ((1, 70, 4, 136), (1, 150, 2, 136), (1, 150, 2, 136), {"scale": 0.05, "causal": True}, None),
    "many channels, dropout, documents": (
        (1, 70, 1, 136), (1, 140, 1, 136), (1, 140, 1, 136), {**DROPOUT, "window": (60, 0)}, None, "ordered"
    ),
    "many channels, scores ahead": (
        (1, 70, 1, 200), (1, 66, 1, 200), (1, 66, 1, 200), {"scale": 0.05, "causal": True}, None
    ),
    "many blocks": ((1, 256, 1, 128), (1, 256, 1, 128), (1, 256, 1, 128), {"scale": 0.05, "causal": True}, None),
    "many whole blocks": ((1, 128, 1, 100), (1, 256, 1, 100), (1, 256, 1, 100), {**PLAIN, "scale": 0.05}, None),
    "many blocks, ragged": ((1, 64, 1, 128), (1, 300, 1, 128), (1, 300, 1, 128), {**PLAIN, "scale": 0.05}, None),
    "many channels in parts": ((1, 70, 2, 96), (1, 150, 1, 96), (1, 150, 1, 80), {**CAUSAL, "scale": 0.1}, None),
    "many channels in parts, dropout": (
        (1, 40, 1, 192), (1, 70, 1, 192), (1, 70, 1, 128), {**DROPOUT, "scale": 0.05}, ((1, 1, 40, 70), "f32")
    ),
    "documents": ((2, 160, 2, 16), (2, 160, 1, 16), (2, 160, 1, 16), PLAIN, None, "ordered"),
    "documents, sliding": ((2, 160, 1, 16), (2, 170, 1, 16), (2, 170, 1, 16), SLIDING, None, "ordered"),
    "documents in any order": ((1, 50, 1, 16), (1, 90, 1, 16), (1, 90, 1, 16), CAUSAL, None, "mixed"),
    "documents, bias": ((1, 40, 2, 16), (1, 50, 2, 16), (1, 50, 2, 16), PLAIN, ((1, 1, 1, 50), "f32"), "mixed"),
}  # fmt: skip


def _inputs(case: tuple[Any, ...], dtype: str) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Types of the operands, then q, k, v, then the optional operands."""
    q, k, v, attrs, bias, *kinds = case
    types = [_type(shape, dtype) for shape in (q, k, v)]
    tensors = [torch.randn(shape).to(DTYPES[dtype]) for shape in (q, k, v)]
    extra = []
    if bias is not None:
        shape, kind = bias
        kind = "f32" if (kind, shape[2]) == ("f32", 1) else dtype if kind != "i1" else kind
        types.append(_type(shape, kind))
        extra.append(
            torch.rand(shape) > 0.4 if kind == "i1" else torch.randn(shape).to(DTYPES[kind])
        )
        if kind == "i1":
            extra[0][0] = False  # nobody takes part
    if "dropout" in attrs:
        types.append("2xi64")
        extra.append(torch.tensor([0x123456789AB, 3]))
    for order in kinds:
        for shape in (q[:2], k[:2]):
            types.append(_type(shape, "i64"))
            found = (
                torch.randint(5, shape)
                if order == "mixed"
                else torch.arange(shape[1]) // 48 + torch.arange(shape[0])[:, None]
            )
            extra.append(found)
    return types, tensors, extra


_LIMITS = {"f32": 3e-6, "f16": 2e-3, "bf16": 1.5e-2}


def _near(ours: Tensor, wanted: Tensor, dtype: str) -> None:
    limit = _LIMITS[dtype] * max(float(wanted.abs().max()), 0.1)
    assert float((ours.double() - wanted).abs().max()) <= limit


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "f32") for name in CASES if not name.startswith("many")),
        *((name, "bf16") for name in CASES if name.startswith("many")),
        *(
            ("grouped", "f16"),
            ("dropout", "bf16"),
            ("bias", "bf16"),
            ("many channels, all keys", "f32"),
        ),
    ],
)
def test_numerics(name: str, dtype: str) -> None:
    """Forward and backward; a bias's gradient, too."""
    case = CASES[name]
    q, _, v, attrs, bias = case[:5]
    types, tensors, extra = _inputs(case, dtype)
    text = module_text("attention", types, attrs)
    wanted = oracle(text, [*tensors, *extra])
    ours = run_program(compiled(text), [*tensors, *extra])
    _near(ours[0], wanted[0], dtype)
    _near(ours[1], wanted[1], "f32" if dtype == "f32" else dtype)

    grad_attrs = dict(attrs)
    # a number that is the same for all keys of a row changes nothing: its gradient is rounding errors alone
    if bias is not None and bias[1] != "i1" and bias[0][3] > 1:
        grad_attrs["bias_grad"] = True
    shape = (*q[:3], v[3])
    y = _type(shape, dtype)
    types = [y, *types[:3], y, _type((q[0], q[2], q[1]), "f32"), *types[3:]]
    dy = torch.randn(shape).to(DTYPES[dtype])
    text = module_text("attention_grad", types, grad_attrs)
    wanted = oracle(text, [dy, *tensors, wanted[0], wanted[1], *extra])
    found = run_program(compiled(text), [dy, *tensors, *ours, *extra])
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        _near(a, b, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("number", [-1e10, -1e30])
def test_large_negative_biases(dtype: str, number: float) -> None:
    """Where every key has one, float32 absorbs the scores: weights are equal. A key without it has all weight."""
    shape = (2, 40, 2, 16)
    bias = torch.full((2, 1, 1, 40), number)
    bias[1, ..., 7] = 0.0
    types = [*[_type(shape, dtype)] * 3, "2x1x1x40xf32"]
    q, k, v, dy = (torch.randn(shape).to(DTYPES[dtype]) for _ in range(4))
    y, sums = run_program(compiled(module_text("attention", types, PLAIN)), [q, k, v, bias])
    _near(y[0], v[0].double().mean(0).expand(40, 2, 16), dtype)
    assert torch.equal(y[1], v[1, 7].expand(40, 2, 16))
    types = [types[0], *types[:3], types[0], "2x2x40xf32", types[3]]
    text = module_text("attention_grad", types, PLAIN)
    dq, dk, dv = run_program(compiled(text), [dy, q, k, v, y, sums, bias])
    assert all(bool(g.isfinite().all()) for g in (dq, dk, dv))
    _near(dv[1, 7], dy[1].double().sum(0), dtype)


def test_layouts() -> None:
    """q, k and v as slices of one projection: read where they lie, written as the next one reads."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        one, parts = [1] * 5, []
        for i in range(3):
            attrs = {"starts": [0, 0, i, 0, 0], "limits": [2, 9, i + 1, 2, 16], "strides": one}
            part = builder.build("slice", [args[0]], attrs)
            parts.append(builder.reshape(part, (2, 9, 2, 16)))
        y = builder.build_op("attention", parts, {"causal": True, "scale": 0.25}).results[0]
        return [builder.reshape(y, (2, 9, 32))]

    with make_context():
        text = _function(["2x9x3x2x16xf32"], body)
    x = torch.randn(2, 9, 3, 2, 16)
    program = compiled(text)
    with make_context():
        (wanted,) = run_module(ir.Module.parse(text), [x])
    torch.testing.assert_close(run_program(program, [x])[0], wanted)
    launches = [s for s in program.steps if isinstance(s, LaunchStep)]
    assert "attention" in launches[0].kernel


@pytest.mark.parametrize("shape", [(2, 1, 36, 40), (2, 2, 36, 40)])
def test_expanded_masks(shape: tuple[int, ...]) -> None:
    """A padding mask that is expanded, then turned into numbers: the program has one number a key."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        q, k, mask = args
        whole = builder.broadcast(mask, shape, (0, 3))
        ty = builder.type_of(whole)
        visible, hidden = (builder.splat(n, type(ty)(shape, "f32")) for n in (0.5, float("-inf")))
        bias = builder.build("select", [whole, visible, hidden])
        return list(builder.build_op("attention", [q, k, k, bias], PLAIN).results)

    with make_context():
        text = _function(["2x36x2x16xf32", "2x40x2x16xf32", "2x40xi1"], body)
    mask = torch.rand(2, 40) > 0.4
    q, k = torch.randn(2, 36, 2, 16), torch.randn(2, 40, 2, 16)
    program = compiled(text)
    ours, _ = run_program(program, [q, k, mask])
    wide, keys = (x.double().transpose(1, 2) for x in (q, k))
    visible = mask[:, None, None]
    eager = torch.nn.functional.scaled_dot_product_attention
    _near(ours, eager(wide, keys, keys, visible, scale=0.4).transpose(1, 2), "f32")
    assert program.ir is not None
    assert "x36x40x" not in program.ir


def test_layers_share_a_kernel() -> None:
    """Sizes and scales are no part of a kernel; what its text decides is."""

    def kernel(*case: Any) -> set[str]:
        types, _, _ = _inputs((*case, None), "bf16")
        return set(compiled(module_text("attention", types, case[3])).triton)

    one = kernel((2, 256, 4, 64), (2, 256, 4, 64), (2, 256, 4, 64), {"scale": 0.1, "causal": True})
    two = kernel((8, 512, 8, 64), (8, 512, 8, 64), (8, 512, 8, 64), {"scale": 0.3, "causal": True})
    three = kernel((2, 256, 4, 64), (2, 256, 4, 64), (2, 256, 4, 64), PLAIN)
    assert one == two
    assert one != three


@pytest.mark.parametrize("arch", CUDA_ARCHS)
@pytest.mark.parametrize("channels", [16, 64, 80, 128, 256])
def test_every_device_gets_a_config(arch: int, channels: int) -> None:
    block = min(channels, 64) if channels % 64 else channels
    sizes = {"BLOCK_D": block, "BLOCK_DV": block, "REST_D": channels - block, "REST_DV": 0}
    sizes |= {"BIAS": 1, "BIAS_I": 1, "BIAS_J": 1, "DROPOUT": 1, "EDGES": 1}
    for stem in ("attention", "attention_query_grad", "attention_key_grad", "attention_bias_grad"):
        for dtype in ("f32", "bf16"):
            found = configs(stem, dtype, sizes, Target("cuda", arch))
            assert found
            assert all(min(c.constants.values()) >= 16 for c in found)
    if channels > 128:
        assert configs("attention_value_grad", "bf16", sizes, Target("cuda", arch))


@pytest.mark.parametrize(
    ("rows", "channels", "causal"),
    [(256, 128, True), (256, 128, False), pytest.param(1000, 192, False, marks=pytest.mark.slow)],
)
def test_spills_are_around_loops(rows: int, channels: int, causal: bool) -> None:
    """The forward of many channels fills the registers of sm_90; addresses may be spilled, but not in its loops."""
    types = [_type((2, rows, 4, channels), "bf16")] * 3
    with make_context():
        text = module_text("attention", types, {"scale": 0.125, "causal": causal})
        program = compile_module(ir.Module.parse(text), CompileOptions(target="cuda:90"))
    add_device_code(program)
    (launch,) = [s for s in program.steps if isinstance(s, LaunchStep)]
    code = program.device_code[f"{launch.kernel}/{launch.config}"]
    assert launch.config == 0
    assert code.spills <= AROUND["attention"]
    found = parsed(disassembled(unpacked(code.image), encodings=True))
    assert found.loops()
    for first, last in found.loops():
        assert not {i.kind for i in found.instructions[first : last + 1]} & {"STL", "LDL"}


@pytest.mark.parametrize(
    ("arch", "channels", "kernels"),
    [
        (80, 64, 2),
        (90, 64, 2),
        pytest.param(80, 256, 3, marks=pytest.mark.slow),
        pytest.param(90, 256, 3, marks=pytest.mark.slow),
    ],
)
def test_machine_code(arch: int, channels: int, kernels: int) -> None:
    """Tensor cores, no spills; in half precision with many channels, dk and dv have a kernel each."""
    shape = (2, 256, 4, channels)
    types = [_type(shape, "bf16")] * 3
    attrs = {"scale": 0.125, "causal": True}
    grads = [types[0], *types, types[0], _type((2, 4, 256), "f32")]
    for name, given in (("attention", types), ("attention_grad", grads)):
        text = module_text(name, given, attrs)
        with make_context():
            options = CompileOptions(target=f"cuda:{arch}")
            program = compile_module(ir.Module.parse(text), options)
        add_device_code(program)
        assert len(program.device_code) == (1 if name == "attention" else kernels)
        for code in program.device_code.values():
            assert not code.spills
            assert code.shared <= parse_target(f"cuda:{arch}").device.shared_memory
            assert any(i.startswith("wgmma" if arch == 90 else "mma") for i in code.instructions)
