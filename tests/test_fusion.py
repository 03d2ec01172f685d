"""gflow-fuse: what it may never do, on random programs; and what it must do, on known ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module

from gflow.compiler.ir.ssa import Body, read_body
from gflow.compiler.kernel.description import describe
from gflow.compiler.passes.fusion import fuse
from gflow.compiler.passes.fusion.dataflow import Dataflow
from gflow.compiler.passes.fusion.groups import FuseOptions, Grouping
from gflow.compiler.passes.fusion.grow import grow, merge_siblings
from gflow.compiler.passes.fusion.recompute import recompute
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import row_major_strides, type_of

CONTEXT = make_context()
FREE = {"constant", "broadcast", "iota", "reshape"}
OPTIONS = {
    "default": FuseOptions(),
    "tiny kernels": FuseOptions(max_ops=3, max_inputs=3),
    "nothing twice": FuseOptions(recompute_cost=-1),
    "all twice": FuseOptions(recompute_cost=10_000),
    "tiny kernels, all twice": FuseOptions(max_ops=4, recompute_cost=10_000),
    "as for CUDA": FuseOptions(recompute_cost=80, recompute_normalized=True, split_reductions=True),
}


def parse(text: str) -> ir.Module:
    with CONTEXT:
        return ir.Module.parse(text)


def function_of(module: ir.Module) -> func.FuncOp:
    return module.body.operations[0].operation.opview


def fuse_module(module: ir.Module, options: FuseOptions | None = None) -> None:
    with CONTEXT, ir.Location.unknown():
        fuse.run(function_of(module), options or FuseOptions())
        assert module.operation.verify()


def kernels(module: ir.Module) -> list[ir.Operation]:
    block = function_of(module).regions[0].blocks[0]
    return [o.operation for o in block.operations if o.operation.name == "gflow.fused"]


def inside(kernel: ir.Operation) -> list[ir.Operation]:
    """The ops of a kernel, without its yield."""
    return [o.operation for o in kernel.regions[0].blocks[0].operations][:-1]


def short(op: ir.Operation) -> str:
    return op.name.removeprefix("gflow.")


def source(op: ir.Operation) -> str:
    """Where an op came from: random programs give each step a name."""
    return f"{short(op)} {op.location}"


def alive(body: Body) -> set[int]:
    """Numbers of the ops that results depend on."""
    stack, found = list(body.returned), set()
    while stack:
        p = body.producer[stack.pop()]
        if p >= 0 and p not in found:
            found.add(p)
            stack += body.ops[p].operands
    return found


def random_modules(count: int, **kwargs: bool) -> Iterator[tuple[int, ir.Module]]:
    for seed in range(count):
        shapes = LARGE if seed % 2 else SMALL
        yield seed, random_module(CONTEXT, seed, 25 + seed, shapes, **kwargs)


# -- never


_TWO_PRODUCTS = """
func.func @f(%a: T, %b: T, %c: T, %p: tensor<2x2xi1>, %n: tensor<2x2xi64>) -> T {
  %0 = "gflow.constant"() {value = dense<0> : tensor<2x2xi64>} : () -> tensor<2x2xi64>
  %1 = "gflow.matmul"(%a, %b) : (T, T) -> T
  %2 = "gflow.select"(%p, %1, %a) : (tensor<2x2xi1>, T, T) -> T
  %3 = "gflow.matmul"(%b, %c) : (T, T) -> T
  %4 = "gflow.compare"(%n, %0) {predicate = "ge"} : (tensor<2x2xi64>, tensor<2x2xi64>) -> tensor<2x2xi1>
  %5 = "gflow.select"(%4, %3, %a) : (tensor<2x2xi1>, T, T) -> T
  %6 = "gflow.add"(%2, %5) : (T, T) -> T
  %7 = "gflow.matmul"(%c, %6) : (T, T) -> T
  return %7 : T
}
"""


def test_one_kernel_reads_two_products() -> None:
    """It follows the first; a part of it that was also to follow the second is not waited for."""
    with CONTEXT:
        module = ir.Module.parse(_TWO_PRODUCTS.replace("T", "tensor<2x2xf64>"))
    args = random_args(module, 1)
    want = run_module(module, args)
    fuse_module(module, OPTIONS["default"])
    for got, expected in zip(run_module(module, args), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_random_programs_mean_the_same(name: str) -> None:
    for seed, module in random_modules(16):
        args = random_args(module, seed)
        want = run_module(module, args)
        fuse_module(module, OPTIONS[name])
        for n, (got, expected) in enumerate(zip(run_module(module, args), want, strict=True)):
            torch.testing.assert_close(
                got, expected, rtol=0, atol=0, equal_nan=True, msg=f"seed {seed}, result {n}"
            )


def widens(op: ir.Operation) -> bool:
    """Whether an op makes a half wider: repeated where it is read."""
    types = [str(v.type.element_type) for v in (*op.operands, *op.results)]
    return short(op) == "convert" and types[0] in ("f16", "bf16") and types[1] in ("f32", "f64")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_op_is_in_a_kernel(name: str) -> None:
    """In exactly one, unless it was worth repeating; what stays outside are others and views."""
    for seed, module in random_modules(16):
        body = read_body(function_of(module))
        kind = Dataflow(body).kind
        wanted = Counter(
            source(body.ops[i].op)
            for i in alive(body)
            if kind[i] in ("elementwise", "reduce") and not widens(body.ops[i].op)
        )
        fuse_module(module, OPTIONS[name])
        found = Counter(
            source(op)
            for kernel in kernels(module)
            for op in inside(kernel)
            if short(op) not in FREE and not widens(op)
        )
        after = read_body(function_of(module))
        outside = set(Dataflow(after).kind) - {"free", "other"}
        assert not outside, f"seed {seed}: {outside}"
        if name == "nothing twice":
            assert found == wanted, f"seed {seed}"
        assert set(found) == set(wanted), f"seed {seed}"


@pytest.mark.parametrize("name", OPTIONS)
def test_limits_hold_and_kernels_can_be_generated(name: str) -> None:
    options = OPTIONS[name]
    for seed, module in random_modules(16):
        fuse_module(module, options)
        for kernel in kernels(module):
            members = [op for op in inside(kernel) if short(op) not in FREE and not widens(op)]
            assert len(members) <= options.max_ops, f"seed {seed}"
            assert len(kernel.operands) <= options.max_inputs, f"seed {seed}"
            strides = [
                [row_major_strides(type_of(v).shape) for v in values]
                for values in (kernel.operands, kernel.results)
            ]
            describe(kernel, *strides)  # raises if it isn't one kernel


def test_nothing_is_done_twice() -> None:
    """Fusing again changes nothing: kernels are closed."""
    for _, module in random_modules(8):
        fuse_module(module)
        once = str(module)
        fuse_module(module)
        assert str(module) == once


def test_time_grows_with_the_program() -> None:
    """A chain of kernels and contractions: eight times the ops, about eight times the work."""

    def work(layers: int) -> int:
        calls = 0
        module = parse(mlp(layers))
        flow = Dataflow(read_body(function_of(module)))
        pull = flow.pull

        def counted(value: int, dim_map: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
            nonlocal calls
            calls += 1
            return pull(value, dim_map)

        flow.pull = counted  # type: ignore[method-assign]
        grouping = Grouping(flow, FuseOptions())
        grow(grouping)
        merge_siblings(grouping)
        recompute(grouping)
        return calls

    assert work(160) <= 1.2 * 8 * work(20)


def mlp(layers: int) -> str:
    lines, x, t = [], "%x", "tensor<8x8xf32>"
    for i in range(layers):
        lines.append(f'%m{i} = "gflow.matmul"({x}, %w) : ({t}, {t}) -> {t}')
        lines.append(f'%a{i} = "gflow.add"(%m{i}, %w) : ({t}, {t}) -> {t}')
        lines.append(f'%b{i} = "gflow.tanh"(%a{i}) : ({t}) -> {t}')
        lines.append(f'%c{i} = "gflow.mul"(%b{i}, {x}) : ({t}, {t}) -> {t}')
        x = f"%c{i}"
    inner = "\n".join(lines)
    return f"func.func @f(%x: {t}, %w: {t}) -> {t} {{\n{inner}\nreturn {x} : {t}\n}}"


# -- known programs


def test_a_value_in_the_shape_without_ones_joins_a_reduction() -> None:
    module = parse("""
      func.func @f(%x: tensor<1x3xf32>) -> (tensor<3xf32>, tensor<f32>) {
        %0 = "gflow.exp"(%x) : (tensor<1x3xf32>) -> tensor<1x3xf32>
        %1 = "gflow.reshape"(%0) {shape = array<i64: 3>} : (tensor<1x3xf32>) -> tensor<3xf32>
        %2 = "gflow.neg"(%1) : (tensor<3xf32>) -> tensor<3xf32>
        %3 = "gflow.reduce"(%0) {dims = array<i64: 0, 1>, kind = "sum"}
            : (tensor<1x3xf32>) -> tensor<f32>
        return %2, %3 : tensor<3xf32>, tensor<f32>
      }""")
    fuse_module(module)
    (kernel,) = kernels(module)
    k = describe(kernel, [(3, 1)], [(1,), ()])
    assert k.sizes == (3,)
    assert sorted(s.strides for s in k.stores) == [(0,), (1,)]


def test_a_kernel_that_nobody_needs_leaves_no_trace() -> None:
    """%0 is recomputed by its reader; the broadcast of it, read by nobody else, goes with it."""
    module = parse("""
      func.func @f(%x: tensor<4xf32>, %y: tensor<8x4xf32>, %w: tensor<8x8xf32>)
          -> tensor<8x4xf32> {
        %0 = "gflow.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "gflow.broadcast"(%0) {dims = array<i64: 1>, shape = array<i64: 8, 4>}
            : (tensor<4xf32>) -> tensor<8x4xf32>
        %2 = "gflow.matmul"(%w, %y) : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        return %2 : tensor<8x4xf32>
      }""")
    fuse_module(module)
    assert [o.name for o in read_body(function_of(module)).ops] == ["matmul"]


def test_a_cheap_value_is_recomputed_not_stored() -> None:
    """relu's mask is made from what its reader loads anyway."""
    text = """
      func.func @f(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
        %zero = "gflow.constant"() {value = dense<0.0> : tensor<64x64xf32>}
            : () -> tensor<64x64xf32>
        %m = "gflow.compare"(%x, %zero) {predicate = "gt"}
            : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xi1>
        %y = "gflow.select"(%m, %x, %zero)
            : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %p = "gflow.matmul"(%y, %g)
            : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %d = "gflow.select"(%m, %p, %x)
            : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        return %d : tensor<64x64xf32>
      }"""
    module = parse(text)
    fuse_module(module)
    assert [len(k.results) for k in kernels(module)] == [1, 1]
    module = parse(text)
    fuse_module(module, FuseOptions(recompute_cost=-1))
    assert [len(k.results) for k in kernels(module)] == [2, 1]


SOFTMAX = """
  func.func @f(%x: tensor<64x32xf32>, %b: tensor<64x32xf32>) -> tensor<64x32xf32> {
    %0 = "gflow.add"(%x, %b) : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>
    %1 = "gflow.reduce"(%0) {dims = array<i64: DIM>, kind = "max"}
        : (tensor<64x32xf32>) -> tensor<KEPTxf32>
    %2 = "gflow.broadcast"(%1) {dims = array<i64: OTHER>, shape = array<i64: 64, 32>}
        : (tensor<KEPTxf32>) -> tensor<64x32xf32>
    %3 = "gflow.sub"(%0, %2) : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>
    %4 = "gflow.tanh"(%3) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %4 : tensor<64x32xf32>
  }"""


def test_a_row_kernel_goes_on_over_the_whole_space() -> None:
    module = parse(SOFTMAX.replace("DIM", "1").replace("OTHER", "0").replace("KEPT", "64"))
    fuse_module(module)
    (kernel,) = kernels(module)
    assert ir.StringAttr(kernel.attributes["kind"]).value == "row"


def test_a_column_kernel_ends_with_the_reduced_shape() -> None:
    module = parse(SOFTMAX.replace("DIM", "0").replace("OTHER", "1").replace("KEPT", "32"))
    fuse_module(module)
    found = [ir.StringAttr(k.attributes["kind"]).value for k in kernels(module)]
    assert found == ["column", "pointwise"]


def test_what_follows_a_column_reduction_in_its_shape_joins() -> None:
    """The epilogue of statistics: a mean and its running average are one kernel."""
    module = parse("""
      func.func @f(%x: tensor<64x32xf32>, %old: tensor<32xf32>) -> tensor<32xf32> {
        %0 = "gflow.mul"(%x, %x) : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>
        %1 = "gflow.reduce"(%0) {dims = array<i64: 0>, kind = "sum"}
            : (tensor<64x32xf32>) -> tensor<32xf32>
        %2 = "gflow.sqrt"(%1) : (tensor<32xf32>) -> tensor<32xf32>
        %3 = "gflow.add"(%2, %old) : (tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32>
        return %3 : tensor<32xf32>
      }""")
    fuse_module(module)
    (kernel,) = kernels(module)
    assert len(kernel.results) == 1


def test_siblings_share_a_load() -> None:
    """Two kernels that read one large value, and not each other, become one."""
    text = """
      func.func @f(%x: tensor<64x32xf32>, %w: tensor<32x8xf32>)
          -> (tensor<64x32xf32>, tensor<64x32xf32>) {
        %0 = "gflow.exp"(%x) : (tensor<64x32xf32>) -> tensor<64x32xf32>
        %1 = "gflow.tanh"(%x) : (tensor<64x32xf32>) -> tensor<64x32xf32>
        return %0, %1 : tensor<64x32xf32>, tensor<64x32xf32>
      }"""
    module = parse(text)
    fuse_module(module)
    assert len(kernels(module)) == 1
    module = parse(text.replace("64x32", "4x2").replace("32x8", "2x8"))
    fuse_module(module)
    assert len(kernels(module)) == 2, "a small load isn't worth it"


def test_siblings_that_depend_on_each_other_stay_apart() -> None:
    """%1 needs %0 by way of a contraction, so one kernel for both would read its own result."""
    module = parse("""
      func.func @f(%x: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
        %0 = "gflow.exp"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
        %m = "gflow.matmul"(%0, %x)
            : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %1 = "gflow.add"(%m, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
      }""")
    fuse_module(module)
    assert len(kernels(module)) == 2
