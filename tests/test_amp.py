"""Mixed precision: the pass on IR, kernels and contractions in halves, training beside autocast."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from ir_interpreter import run_module
from random_ir import random_args, random_module
from torch import nn

import gflow
from benchmarks.workloads.mixed_precision import (
    Training,
    batches,
    compiled_curve,
    eager_curve,
    make,
    optimizer_of,
)
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.dialects import amp, builder
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import AMP_CLASSES
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, type_of

HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
#: the unit roundoff
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}


def run_amp(module: ir.Module, dtype: str) -> None:
    with module.context:
        run_pipeline(module, f"builtin.module(func.func(gflow-amp{{dtype={dtype}}}))")
        assert module.operation.verify()


def ops_of(module: ir.Module) -> list[ir.Operation]:
    return [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]


# -- the pass


def smooth_module(context: ir.Context, seed: int, ops: int = 30) -> ir.Module:
    """A random function of matrix products and ops that keep small errors small."""
    choose = random.Random(seed)
    shapes = [(6, 8), (8, 8), (6, 8), (8,)]
    with context, ir.Location.unknown():
        module = ir.Module.create()
        types = [TensorType(s, "f32").mlir() for s in shapes]
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get(types, []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            _, weight, _, row = block.arguments
            values = [block.arguments[0], block.arguments[2]]
            while len(values) < ops:
                values.append(_smooth_op(choose, values, weight, row))
            results = values[-3:] + values[5::9]
            func.ReturnOp(results)
        kind = ir.FunctionType.get(types, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        roles = ("input", "parameter", "input", "parameter")
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get({"gflow.role": ir.StringAttr.get(r)}) for r in roles]
        )
    return module


def _smooth_op(
    choose: random.Random, values: list[ir.Value], weight: ir.Value, row: ir.Value
) -> ir.Value:
    build, x, y = builder.build, choose.choice(values[-8:]), choose.choice(values[-8:])
    ty = type_of(x)
    half = builder.splat(0.5, ty)
    match choose.choice(
        ("matmul", "matmul", "transposed", "tanh", "sigmoid", "add", "mul", "relu", "bias",
         "softmax", "center", "select", "slices", "neg")
    ):  # fmt: skip
        case "matmul":
            return build("mul", [build("matmul", [x, weight]), builder.splat(0.3, ty)])
        case "transposed":
            return build("matmul", [x, builder.transpose(weight, (1, 0))])
        case "add":
            return build("mul", [build("add", [x, y]), half])
        case "mul":
            return build("mul", [build("tanh", [x]), y])
        case "relu":
            return build("maximum", [x, builder.splat(0.0, ty)])
        case "bias":
            return build("add", [x, builder.broadcast(row, ty.shape)])
        case "softmax":
            e = build("exp", [build("tanh", [x])])
            total = build("reduce", [e], {"kind": "sum", "dims": [1]})
            return build("div", [e, builder.broadcast(total, ty.shape, (0,))])
        case "center":
            mean = build("reduce", [x], {"kind": "sum", "dims": [1]})
            mean = build("mul", [mean, builder.splat(0.125, type_of(mean))])
            return build("sub", [x, builder.broadcast(mean, ty.shape, (0,))])
        case "select":
            mask = build("compare", [values[0], values[1]], {"predicate": "gt"})
            return build("select", [mask, x, y])
        case "slices":
            parts = [
                build("slice", [v], {"starts": [0, a], "limits": [6, a + 4], "strides": [1, 1]})
                for v, a in ((x, 4), (y, 0))
            ]
            return build("concatenate", parts, {"dim": 1})
        case name:
            return build(name, [x])


@pytest.mark.parametrize("dtype", HALVES)
def test_random_programs_give_near_results_of_the_same_types(dtype: str) -> None:
    for seed in range(60):
        with make_context() as context:
            module = smooth_module(context, seed)
            args = random_args(module, seed)
            want = run_module(module, args)
            products = sum(op.name == "gflow.matmul" for op in ops_of(module))
            run_amp(module, dtype)
            ops = ops_of(module)
            halves = [op for op in ops if op.name == "gflow.matmul"]
            assert len(halves) <= products
            assert all(type_of(op.results[0]).dtype == dtype for op in halves)
            assert_no_double_casts(ops)
            for got, expected in zip(run_module(module, args), want, strict=True):
                assert got.dtype == expected.dtype
                scale = 1 + expected.abs().max().item()
                error = (got - expected).abs().max().item()
                assert error <= 64 * ROUNDING[dtype] * scale, f"seed {seed}: {error}"


def assert_no_double_casts(ops: list[ir.Operation]) -> None:
    """No value is cast twice, and no half is widened only to be rounded again."""
    casts = [op for op in ops if op.name == "gflow.convert"]
    pairs = Counter((op.operands[0], str(op.results[0].type)) for op in casts)
    assert all(count == 1 for count in pairs.values())
    for op in casts:
        source = op.operands[0].owner
        if not isinstance(source, ir.Block) and source.name == "gflow.convert":
            widened = type_of(source.operands[0]).dtype in HALVES
            assert not widened or op.results[0].type != source.operands[0].type


@pytest.mark.parametrize("dtype", HALVES)
def test_compiled_programs_do_what_the_ir_says(dtype: str) -> None:
    """Every kernel, product and cast against the interpreter, rounding by rounding."""
    from gflow.compiler import CompileOptions, compile_module
    from gflow.runtime import Executable

    for seed in range(8):
        with make_context() as context:
            module = smooth_module(context, seed)
            args = random_args(module, seed)
            run_amp(module, dtype)
            want = run_module(module, args)
            options = CompileOptions(passes=PipelineOptions())
            got = Executable(compile_module(module, options))([a.clone() for a in args])
            for a, b in zip(got, want, strict=True):
                tolerance = 8 * ROUNDING[dtype]  # sums in another order may round otherwise
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_without_contractions_nothing_changes() -> None:
    for seed in range(20):
        with make_context() as context:
            module = random_module(context, seed)
            with context:
                run_pipeline(module, "builtin.module(func.func(cse))")
                before = [op.name for op in ops_of(module)]
                run_amp(module, "bf16")
            names = [op.name for op in ops_of(module)]
            assert Counter(names) <= Counter(before)


def test_every_op_has_a_class() -> None:
    assert {op.amp for op in OPS.values()} <= set(AMP_CLASSES)
    assert {kind for op in OPS.values() for kind in op.amp_kinds.values()} <= set(AMP_CLASSES)
    assert {call.kind for call in amp.ATEN.values()} <= set(AMP_CLASSES)
    from gflow.dialects.aten.calls import find_overload

    for overload in amp.ATEN:
        find_overload(overload)


def test_an_unknown_type_is_an_error() -> None:
    from gflow.compiler.driver.pass_manager import PipelineError

    with make_context() as context:
        module = smooth_module(context, 0)
        with pytest.raises(PipelineError, match="dtype must be f16 or bf16, found 'f8'"):
            run_amp(module, "f8")


# -- contractions in halves on the CPU


class Contractions(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, 2, 1, dtype=dtype)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False, dtype=dtype)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2, dtype=dtype)
        self.line = nn.Conv1d(8, 4, 3, dtype=dtype)
        self.volume = nn.Conv3d(1, 2, 2, dtype=dtype)
        self.linear = nn.Linear(4, 5, dtype=dtype)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.conv(x).relu()
        y = self.grouped(self.depthwise(y))
        z = self.line(y.flatten(2))
        return [
            y,
            z,
            self.volume(y[:, None]),
            self.linear(z.mT),
            z.mT @ z,
            z[:, :, :0] @ z.mT[:, :0],
        ]


class Inference(gflow.nn.Graph):
    def __init__(self, model: nn.Module, amp: Any = None) -> None:
        super().__init__()
        self.model = model
        if amp is not None:
            self.config.enable_amp(True, dtype=amp)

    def build(self, x: torch.Tensor) -> Any:
        return self.model(x)


@pytest.mark.parametrize("dtype", HALVES.values())
def test_half_modules_give_what_float32_gives_rounded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    half, full = Contractions(dtype), Contractions(torch.float32)
    full.load_state_dict(half.state_dict())
    x = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        got, want = Inference(half)(x.to(dtype)), full(x)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(a.float(), b, rtol=8 * rounding, atol=8 * rounding)


# -- training


@pytest.mark.parametrize("name", ["mlp", "decoder", "convnet"])
def test_loss_curves_stay_with_autocast(name: str) -> None:
    """Over 50 steps, compared with how far autocast itself is from float32."""
    full, cast = eager_curve(name, 50), eager_curve(name, 50, torch.bfloat16)
    own = compiled_curve(name, 50, torch.bfloat16)
    apart = (cast - full).abs().mean().item()
    assert (own - full).abs().mean().item() <= 3 * apart + 1e-4
    assert (own - cast).abs().mean().item() <= 3 * apart + 1e-4
    assert abs(own[-5:].mean() - cast[-5:].mean()) <= 0.02 * cast[-5:].mean()


@pytest.mark.parametrize("name", ["mlp", "decoder", "convnet"])
def test_float16_with_a_scaler_stays_with_float32(name: str) -> None:
    full, cast = eager_curve(name, 50), eager_curve(name, 50, torch.bfloat16)
    scaler = gflow.amp.GradScaler(init_scale=2.0**10)
    own = compiled_curve(name, 50, torch.float16, scaler)
    assert (own - full).abs().mean().item() <= 1.5 * (cast - full).abs().mean().item() + 1e-4


def test_master_weights_and_state_stay_float32() -> None:
    model = make("mlp")
    optimizer = optimizer_of(model)
    graph = Training(model, optimizer, torch.bfloat16)
    for x, y in batches("mlp", 2):
        assert graph(x, y).dtype == torch.float32
    text = graph.ir(generic=True)
    assert "bf16" in text
    for p in model.parameters():
        assert p.dtype == torch.float32
        assert optimizer.state[p]["momentum_buffer"].dtype == torch.float32


def test_outputs_keep_their_type() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    with torch.no_grad():
        got = Inference(model, torch.bfloat16)(x)
        want = model(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    assert not torch.equal(got, want)


def test_each_weight_is_cast_once() -> None:
    model = make("decoder")
    graph = Training(model, optimizer_of(model), torch.bfloat16)
    graph(*batches("decoder", 1)[0])
    with make_context():
        module = ir.Module.parse(graph.ir("traced", generic=True))
        run_pipeline(module, "builtin.module(func.func(gflow-simplify,cse,gflow-amp{dtype=bf16}))")
        arguments = list(module.body.operations[0].regions[0].blocks[0].arguments)
        casts = Counter(
            op.operands[0] for op in ops_of(module)
            if op.name == "gflow.convert" and op.operands[0] in arguments
            and type_of(op.results[0]).dtype == "bf16"
        )  # fmt: skip
        assert set(casts.values()) == {1}
        matrices = [a for a in arguments if type_of(a).rank == 2 and type_of(a).dtype == "f32"]
        assert len(casts) >= 9
        assert set(casts) <= set(matrices)


def test_checkpointed_modules_recompute_in_halves() -> None:
    losses = []
    for checkpointing in (False, True):
        model = make("decoder")
        graph = Training(model, optimizer_of(model), torch.bfloat16)
        if checkpointing:
            for layer in model.layers:
                layer.to(gflow.nn.graph.GraphModule).activation_checkpointing = True
        losses.append([graph(x, y).item() for x, y in batches("decoder", 5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_optimizers_with_matrix_products_stay_float32() -> None:
    class Whitened(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
                if p.ndim == 2:
                    p -= 0.1 * (p.grad @ p.grad.mT) @ p.grad

    model = make("mlp")
    graph = Training(model, Whitened(model.parameters()), torch.bfloat16)
    graph(*batches("mlp", 1)[0])
    with make_context():
        module = ir.Module.parse(graph.ir("traced", generic=True))
        run_pipeline(module, "builtin.module(func.func(gflow-simplify,cse,gflow-amp{dtype=bf16}))")
        dtypes = {
            '"optimizer:' in str(op.location): type_of(op.results[0]).dtype
            for op in ops_of(module)
            if op.name == "gflow.matmul"
        }
    assert dtypes == {False: "bf16", True: "f32"}


@pytest.mark.parametrize("arguments", [{"dtype": torch.float64}, {"dtype": "bf16"}, {"mode": 1}])
def test_enable_amp_refuses_what_it_cannot_do(arguments: dict[str, Any]) -> None:
    graph = Inference(nn.Linear(2, 2))
    with pytest.raises(gflow.GraphError, match=r"test_amp.py:\d+: enable_amp\(\) takes"):
        graph.config.enable_amp(**arguments)


def test_amp_can_be_switched_off_again() -> None:
    model = nn.Linear(4, 4)
    graph = Inference(model, torch.bfloat16)
    graph.config.enable_amp(False)
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))
    assert "bf16" not in graph.ir(generic=True)


def test_the_pipeline_has_the_pass_only_when_asked() -> None:
    assert "gflow-amp" not in pipeline_for("cpu", PipelineOptions())
    assert "gflow-amp{dtype=bf16}" in pipeline_for("cpu", PipelineOptions(amp="bf16"))
