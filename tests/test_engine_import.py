"""StableHLO read into the dialect: what our writer writes, and what JAX exports."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from codegen_harness import CONTEXT
from engine_cases import EngineCase, all_cases, check
from ir_interpreter import run_module

import gflow as flow
from gflow import nn
from gflow.compiler.engines.form import EngineError
from gflow.compiler.engines.stablehlo.read import prepare, read_module
from gflow.compiler.engines.stablehlo.write import write_function
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.tools.opt import main
from gflow.dialects.mlir import ir
from gflow.functions.imported import read_function
from gflow.functions.torch_ops import OPERATIONS

#: what the writer writes that is not read, or not in all forms
NOT_READ = ("stablehlo.scatter", "stablehlo.gather", "stablehlo.reduce",
            "stablehlo.while", "stablehlo.sort")  # fmt: skip


def written(case: EngineCase) -> str:
    return str(write_function(entry_function(case.module)).module)


def read(text: str, context: ir.Context = CONTEXT) -> ir.Module:
    prepare(context)
    with context:
        return read_module(ir.Module.parse(text).operation)


def round_trips(every: int) -> None:
    """What the writer writes runs as before it was written, but for ops that are named."""
    found = {}
    cases = all_cases()[::every]
    for case in cases:
        try:
            module = read(written(case))
        except EngineError as error:
            for line in str(error).splitlines()[1:]:
                assert line.strip().startswith(NOT_READ), (case.name, line)
            continue
        found[case.name] = module
        (function,) = module.body.operations
        ops = {o.operation.name for o in function.operation.regions[0].blocks[0].operations}
        names = {name.removeprefix("gflow.") for name in ops}
        assert names - {"func.return", "constant"} <= set(OPERATIONS), case.name
    assert len(found) > 0.8 * len(cases)
    kept = [case for case in cases if case.name in found]
    check(kept, lambda case: run_module(found[case.name], case.args))
    check(kept[::4], _by_torch)


def test_round_trip() -> None:
    round_trips(7)


@pytest.mark.sweep
def test_round_trip_of_all() -> None:
    round_trips(1)


def _by_torch(case: EngineCase) -> list[torch.Tensor]:
    try:
        module = read_function(written(case))
    except flow.GraphError as error:
        if "PyTorch does not compute in ui" not in str(error):
            raise
        return run_module(case.module, case.args)
    found = module(*case.args)
    return list(found) if isinstance(found, tuple) else [found]


# -- what JAX exports


def exported(function: Callable[..., Any], *args: Any) -> str:
    jax = pytest.importorskip("jax")
    from jax import export

    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
    return str(export.export(jax.jit(function))(*shapes).mlir_module())


def same(function: Callable[..., Any], *args: np.ndarray, tol: float = 2e-5) -> None:
    """A function of jax.numpy by JAX, and imported: interpreted, and on our kernels."""
    jax = pytest.importorskip("jax")
    text = exported(function, *args)
    want = [np.array(x) for x in jax.tree.leaves(jax.jit(function)(*args))]
    given = [torch.from_numpy(np.array(a)) for a in args]
    found = flow.from_stablehlo(text)(*given)
    ours = list(found) if isinstance(found, tuple) else [found]
    for results in (run_module(read(text), given), ours):
        for a, w in zip(results, want, strict=True):
            torch.testing.assert_close(
                a, torch.from_numpy(w), rtol=tol, atol=tol, check_stride=False
            )


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_network_of_jax() -> None:
    jax = pytest.importorskip("jax")
    np_ = jax.numpy

    def f(x: Any, w: Any, b: Any) -> Any:
        h = jax.nn.gelu(x @ w + b, approximate=False)
        h = jax.nn.softmax(h) + jax.nn.relu(h) - np_.clip(h, -1, 1)
        return (
            h,
            jax.nn.logsumexp(h, axis=1),
            jax.nn.silu(h).mean(),
            np_.where(h > 0, h, np_.tan(h)),
        )

    same(f, rand(4, 8), rand(8, 6), rand(6))


def test_contractions_of_jax() -> None:
    jax = pytest.importorskip("jax")
    einsum = jax.numpy.einsum

    def f(a: Any, b: Any) -> Any:
        return (
            einsum("bihd,bjhd->bhij", a, b), einsum("bihd,bjhd->bij", a, b),
            einsum("bihd,bjhd->hj", a, b), einsum("bihd,bjhd->", a, b), einsum("bihd,bjxd->dxi", a, b),
        )  # fmt: skip

    same(f, rand(2, 3, 4, 5), rand(2, 6, 4, 5))
    same(lambda a, b: einsum("i,j->ij", a, b), rand(3), rand(4))


@pytest.mark.parametrize(
    "layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CNHW", "IHWO", "HWNC")]
)
@pytest.mark.parametrize(
    "window",
    [
        {"window_strides": (1, 2), "padding": "SAME"},
        {"window_strides": (2, 1), "padding": ((2, 0), (-1, 3)), "rhs_dilation": (1, 2)},
        {"window_strides": (1, 1), "padding": ((1, 1), (0, 2)), "lhs_dilation": (2, 3)},
        {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2},
    ],
)
def test_convolutions_of_jax(layout: tuple[str, str, str], window: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax")
    sizes = {"N": 2, "C": 4, "H": 7, "W": 9}
    kernel = {"O": 6, "I": 4 // window.get("feature_group_count", 1), "H": 3, "W": 2}

    def f(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, dimension_numbers=layout, **window)

    x, w = (rand(*(s[c] for c in name)) for s, name in ((sizes, layout[0]), (kernel, layout[1])))
    same(f, x, w, tol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_windows_of_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    lax, inf = jax.lax, np.array(np.inf if dtype == "float32" else 2**31 - 1, dtype)
    zero, one = np.zeros((), dtype), np.ones((), dtype)

    def f(x: Any, line: Any) -> Any:
        return (
            lax.reduce_window(x, -inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, inf, lax.min, (1, 1, 2, 3), (1, 3, 1, 2), "VALID"),
            lax.reduce_window(x, zero, lax.add, (1, 1, 2, 2), (1, 1, 2, 1), ((0, 0), (0, 0), (2, 1), (1, 1))),
            lax.reduce_window(x, one, lax.add, (2, 1, 1, 1), (1, 1, 1, 1), "VALID"),
            lax.reduce_window(x, one, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME", window_dilation=(1, 2, 1, 1)),
            lax.reduce_window(x, zero, lax.add, (2, 1, 2, 2), (1, 1, 2, 1), "SAME", base_dilation=(1, 2, 1, 2)),
            lax.reduce_window(x, one, lax.mul, (1, 2, 1, 1), (1, 1, 1, 1), "VALID"),
            lax.reduce_window(line, -inf, lax.max, (3,), (2,), "VALID"),
            jax.numpy.cumsum(line),
        )  # fmt: skip

    same(f, (4 * rand(2, 6, 7, 4)).astype(dtype), (4 * rand(9)).astype(dtype))


def test_gradients_of_windows_of_jax() -> None:
    jax = pytest.importorskip("jax")
    lax = jax.lax

    def f(x: Any) -> Any:
        most = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        total = lax.reduce_window(x, 0.0, lax.add, (1, 2, 1, 1), (1, 1, 1, 1), "SAME")
        return most.sum() + (total * total).sum()

    x = rand(2, 6, 7, 4)
    given = torch.from_numpy(x).requires_grad_()
    flow.from_stablehlo(exported(f, x))(given).backward()
    want = torch.from_numpy(np.array(jax.grad(f)(x)))
    torch.testing.assert_close(given.grad, want, rtol=1e-5, atol=1e-5)


def test_indexing_of_jax() -> None:
    jax = pytest.importorskip("jax")
    np_, lax = jax.numpy, jax.lax
    index = np.array([[0, -1], [3, 2]], np.int32)

    def f(x: Any, i: Any) -> Any:
        return (
            x[i], x[:, i], np_.take(x, i, axis=1, mode="clip"),
            lax.dynamic_slice(x, (i[1, 0], i[0, 1] + 9), (2, 3)), x[::-1, 1:6:2],
            lax.pad(x, -1.5, ((1, -2, 0), (-1, 2, 2))), lax.pad(x, 2.0, ((-5, 3, 1), (0, 0, 0))),
            np_.concatenate([x, x[:1] * 2]), np_.arange(3),
        )  # fmt: skip

    same(f, rand(4, 6), index)


def test_symbolic_shapes_of_jax() -> None:
    """A program with dynamic dimensions is read for shapes, which its assertions are checked against."""
    jax = pytest.importorskip("jax")
    export = pytest.importorskip("jax.export")
    np_ = jax.numpy

    def f(x: Any, y: Any, i: Any) -> Any:
        n = x.shape[0]
        return (
            x[: n - 1].reshape(-1) * 2, np_.arange(n) + 1, np_.take(x, i, axis=0, mode="clip").sum(0),
            jax.nn.softmax(x, 0), np_.pad(x, ((0, n), (0, 0))), np_.broadcast_to(y[:1], (n, y.shape[1])),
            np_.concatenate([x, 2 * x]), x.mean(0),
        )  # fmt: skip

    a, b = export.symbolic_shape("a, b", constraints=["a >= 2"])
    kinds = ((a, 4), np.float32), ((4, b), np.float32), ((b,), np.int32)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds]
    text = export.export(jax.jit(f))(*types).mlir_module()
    for n, m in ((3, 2), (5, 4)):
        args = (rand(n, 4), rand(4, m), (np.arange(m) % n).astype(np.int32))
        got = flow.from_stablehlo(text, shapes=[x.shape for x in args])(
            *map(torch.from_numpy, args)
        )
        for x, want in zip(got, f(*args), strict=True):
            torch.testing.assert_close(x, torch.from_numpy(np.array(want)), rtol=1e-5, atol=1e-6)
    for shapes, message in (
        ([(1, 4), (4, 2), (2,)], "a >= 2"),
        ([(3, 4), (4, 2), (5,)], "cannot be read for these shapes"),
        ([(3, 4), (4, 2)], "takes 3 arguments, and shapes has 2"),
        ([(3, 5), (4, 2), (2,)], r"has tensor<\?x4xf32> as argument 0"),
    ):
        with pytest.raises(flow.GraphError, match=message):
            flow.from_stablehlo(text, shapes=shapes)


def test_integers_of_jax() -> None:
    jax = pytest.importorskip("jax")
    np_, lax = jax.numpy, jax.lax

    def f(a: Any, b: Any) -> Any:
        return (
            a // b, a % b, lax.div(a, b), lax.rem(a, b), a & b, a | b, a ^ b, ~a, a << 2, a >> 1,
            lax.shift_right_logical(a, b & 31), a.sum(), a.max(), (a > b).any(), (a > b).all(),
            a.astype(np_.float32), (a > 0).astype(np_.int32), np_.sign(a), abs(a), a.prod(axis=0),
        )  # fmt: skip

    random = np.random.default_rng(0)
    a = random.integers(-50, 50, (3, 5)).astype(np.int32)
    b = random.integers(1, 9, (3, 5)).astype(np.int32)
    same(f, a, b)


def test_constants_of_jax() -> None:
    pytest.importorskip("jax")
    table = rand(30, 7)
    same(lambda x: x @ table + 1, rand(2, 30))


def test_a_gradient_of_jax() -> None:
    """A step that JAX has differentiated."""
    jax = pytest.importorskip("jax")

    def loss(w: Any, x: Any, k: Any) -> Any:
        h = jax.lax.conv_general_dilated(x, k, (2, 2), "SAME")
        return (jax.numpy.tanh(h.reshape(2, -1) @ w) ** 2).mean()

    same(
        jax.value_and_grad(loss, (0, 1, 2)),
        rand(64, 3),
        rand(2, 3, 8, 8),
        rand(4, 3, 3, 3),
        tol=1e-4,
    )


def test_trains() -> None:
    """Gradients of the imported program are JAX's; it trains in a graph as its copy in PyTorch does."""
    jax = pytest.importorskip("jax")

    def f(x: Any, w: Any, i: Any) -> Any:
        return jax.nn.softmax(x @ w[i].T).max(axis=1)

    x, w, i = rand(4, 8), rand(9, 8), np.array([1, 5, 1], np.int32)
    run = flow.from_stablehlo(exported(f, x, w, i))
    weight = torch.nn.Parameter(torch.from_numpy(w.copy()))
    run(torch.from_numpy(x), weight, torch.from_numpy(i)).sum().backward()
    want = jax.grad(lambda w: f(x, w, i).sum())(w)
    torch.testing.assert_close(weight.grad, torch.from_numpy(np.array(want)), rtol=1e-5, atol=1e-6)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.run = run
            self.weight = weight
            self.add_optimizer(torch.optim.SGD([weight], lr=0.1))

        def build(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            loss = self.run(x, weight, i).sum()
            loss.backward()
            return loss

    weight.grad = None
    graph, expected = Train(), jax.numpy.array(w)
    for _ in range(3):
        loss, grad = jax.value_and_grad(lambda w: f(x, w, i).sum())(expected)
        got = graph(torch.from_numpy(x), torch.from_numpy(i))
        torch.testing.assert_close(got.item(), float(loss), rtol=1e-5, atol=1e-6)
        expected = expected - 0.1 * grad
    torch.testing.assert_close(weight.detach(), torch.from_numpy(np.array(expected)))


# -- what is refused

SORT = """func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.cbrt %0 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


def test_what_is_not_read_is_named() -> None:
    with pytest.raises(flow.GraphError) as caught:
        flow.from_stablehlo(SORT)
    assert "stablehlo.sort at stablehlo:2: gflow has no form for it" in str(caught.value)
    assert "stablehlo.cbrt at stablehlo:7" in str(caught.value)
    with pytest.raises(flow.GraphError, match="stablehlo:1"):
        flow.from_stablehlo("module { nonsense }")
    with pytest.raises(flow.GraphError, match=r"dynamic dimensions \(tensor<\?xf32>\).*shapes="):
        flow.from_stablehlo(
            "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"
        )


def test_arguments_are_checked() -> None:
    run = flow.from_stablehlo("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
                              "  %0 = stablehlo.tanh %x : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}")  # fmt: skip
    x = torch.randn(4)
    torch.testing.assert_close(run(x), x.tanh())
    with pytest.raises(
        flow.GraphError, match=r"argument 0 .* torch.float32\[4\], got torch.float32\[5\]"
    ):
        run(torch.randn(5))
    with pytest.raises(flow.GraphError, match="takes 1 tensors, got 2"):
        run(x, x)


def test_opt(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.mlir"
    file.write_text(SORT)
    assert main([str(file), "--import=stablehlo"]) == 1
    assert f"stablehlo.sort at {file}:2" in capsys.readouterr().err
    assert main([str(file), "--import=onnx"]) == 1
    assert "no form 'onnx' to import" in capsys.readouterr().err


FLATTEN = """func.func public @main(%x: tensor<?x4xf32>, %s: tensor<f32>) -> tensor<?xf32> {
  %c = stablehlo.constant dense<4> : tensor<i32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
  %m = stablehlo.multiply %n, %c : tensor<i32>
  %d = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
  %0 = stablehlo.dynamic_reshape %x, %d : (tensor<?x4xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""


@pytest.mark.parametrize(
    ("shapes", "status", "text"),
    [
        (None, 1, r"dynamic dimensions \(tensor<\?x4xf32>\).*--import-shapes="),
        ("3x4,scalar", 0, r"-> tensor<12xf32>"),
        ("0x4,scalar", 0, r"-> tensor<0xf32>"),
        ("3x5,scalar", 1, r"tensor<\?x4xf32> as argument 0, and shapes has \[3, 5\]"),
        ("3x4", 1, "takes 2 arguments, and shapes has 1"),
        ("3x-4,scalar", 1, "'-4' is no size"),
    ],
)
def test_opt_for_shapes(
    shapes: str | None, status: int, text: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.mlir"
    file.write_text(FLATTEN)
    options = [] if shapes is None else [f"--import-shapes={shapes}"]
    assert main([str(file), "--import=stablehlo", *options]) == status
    assert re.search(text, "".join(capsys.readouterr()))
