"""gflow-schedule: updates come early, after the last reader of the old value; nothing else does."""

from __future__ import annotations

import pytest
import torch
from call_count import lines
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module

from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.ir.ssa import Body, aliases, read_body
from gflow.compiler.ir.views import VIEW_OPS
from gflow.compiler.passes.schedule.dependences import dependences_of
from gflow.compiler.passes.schedule.lists import host_early, short_last, updates_first
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir

CONTEXT = make_context()
T = "tensor<8x8xf32>"


def parse(text: str) -> ir.Module:
    with CONTEXT:
        return ir.Module.parse(text)


def function_of(module: ir.Module) -> func.FuncOp:
    return module.body.operations[0].operation.opview


def run(module: ir.Module) -> Body:
    with CONTEXT:
        run_pipeline(module, "builtin.module(func.func(gflow-schedule))", verify_each=True)
    return read_body(function_of(module))


def order_of(module: ir.Module) -> list[int]:
    """The new order, as numbers in the old one."""
    function = function_of(module)
    body = read_body(function)
    return updates_first(dependences_of(function, body))


def roots(body: Body) -> list[int]:
    """The value whose memory each value may look at."""
    root = list(range(len(body.values)))
    for o in body.ops:
        if o.name in VIEW_OPS:
            root[o.results[0]] = root[o.operands[0]]
    return root


def layers(count: int, late_reader: bool = False) -> str:
    """A training step of `count` layers: forward, backward, then all updates.

    late_reader: each old weight is also read after its update, by an op that doesn't need it.
    """
    args = [f"%w{i}: {T}" for i in range(count)]
    results = [f"{T} {{gflow.alias = {i + 1} : i64}}" for i in range(count)]
    lines = []

    def op(name: str, to: str, *operands: str) -> None:
        types = ", ".join([T] * len(operands))
        lines.append(f'{to} = "gflow.{name}"({", ".join(operands)}) : ({types}) -> {T}')

    for i in range(count):
        op("matmul", f"%x{i + 1}", f"%x{i}", f"%w{i}")
    op("neg", f"%d{count}", f"%x{count}")
    for i in reversed(range(count)):
        op("matmul", f"%g{i}", f"%x{i}", f"%d{i + 1}")
        op("matmul", f"%d{i}", f"%d{i + 1}", f"%w{i}")
    for i in range(count):
        op("sub", f"%u{i}", f"%w{i}", f"%g{i}")
    if late_reader:
        for i in range(count):
            op("neg", f"%late{i}", f"%w{i}")
    updates = [f"%u{i}" for i in range(count)]
    extra = [f"%late{count - 1}"] if late_reader else ["%d0"]
    inner = "\n".join(lines)
    return f"""
      func.func @f(%x0: {T}, {", ".join(args)}) -> ({", ".join([*results, T])}) {{
        {inner}
        return {", ".join([*updates, *extra])} : {", ".join([T] * (count + 1))}
      }}"""


# -- any program


def test_random_programs_stay_valid() -> None:
    """The verifier sees uses before definitions; old values are read before they are replaced."""
    moved = early = 0
    for seed in range(40):
        module = random_module(CONTEXT, seed, 30 + seed, LARGE if seed % 2 else SMALL, updates=True)
        with CONTEXT:
            run_pipeline(module, "builtin.module(func.func(gflow-fuse))")
        before = read_body(function_of(module))
        order = order_of(module)
        assert sorted(order) == list(range(len(before.ops))), f"seed {seed}"
        position = {i: n for n, i in enumerate(order)}
        for o in before.ops:
            for v in o.operands:
                p = before.producer[v]
                assert p < 0 or position[p] < position[o.index], f"seed {seed}"
        moved += order != sorted(order)
        target = aliases(function_of(module), before)
        root = roots(before)
        for v, alias in zip(before.returned, target):
            p = before.producer[v]
            if alias is None or p < 0:
                continue
            readers = {
                o.index
                for o in before.ops
                if any(root[w] == before.arguments[alias] for w in o.operands)
            } - {p}
            old = {r for r in readers if r < p}
            assert all(position[r] < position[p] for r in old), f"seed {seed}: read after write"
            early += bool(readers)
        run(module)
    assert moved
    assert early


def test_scheduling_again_changes_nothing() -> None:
    module = parse(layers(6))
    run(module)
    once = str(module)
    run(module)
    assert str(module) == once


# -- known programs


def test_updates_come_as_soon_as_they_can() -> None:
    """Each gradient dies before the next but one is made."""
    body = run(parse(layers(6)))
    for update in (o for o in body.ops if o.name == "sub"):
        weight, gradient = update.operands
        others = [u for u in body.users[weight] if u != update.index]
        ready = max([body.producer[gradient], *others])
        assert update.index == ready + 1


def test_all_but_updates_keep_their_order() -> None:
    order = order_of(parse(layers(6)))
    updates = set(range(len(order) - 6, len(order)))
    rest = [i for i in order if i not in updates]
    assert rest == sorted(rest)


def test_a_program_without_updates_is_left_alone() -> None:
    module = random_module(CONTEXT, 3, 50)
    before = str(module)
    run(module)
    assert str(module) == before


def test_a_reader_after_the_update_comes_before_it() -> None:
    """It needs the old value, and nothing of the update."""
    body = run(parse(layers(3, late_reader=True)))
    for update in (o for o in body.ops if o.name == "sub"):
        assert all(u <= update.index for u in body.users[update.operands[0]])


def test_a_reader_of_the_update_and_the_old_value() -> None:
    """No order serves it in place: the program's order stays, and a copy will be made."""
    module = parse(f"""
      func.func @f(%w: {T}, %g: {T}) -> ({T} {{gflow.alias = 0 : i64}}, {T}) {{
        %u = "gflow.sub"(%w, %g) : ({T}, {T}) -> {T}
        %d = "gflow.sub"(%u, %w) : ({T}, {T}) -> {T}
        return %u, %d : {T}, {T}
      }}""")
    assert order_of(module) == [0, 1]


def test_updates_that_wait_for_each_other() -> None:
    """Two arguments swapped by way of new values: neither update can come first in place."""
    module = parse(f"""
      func.func @f(%a: {T}, %b: {T})
          -> ({T} {{gflow.alias = 0 : i64}}, {T} {{gflow.alias = 1 : i64}}) {{
        %u = "gflow.neg"(%b) : ({T}) -> {T}
        %v = "gflow.neg"(%a) : ({T}) -> {T}
        return %u, %v : {T}, {T}
      }}""")
    assert order_of(module) == [0, 1]


def test_a_view_of_the_old_value_counts_as_a_reader() -> None:
    module = parse(f"""
      func.func @f(%w: {T}, %g: {T}) -> ({T} {{gflow.alias = 0 : i64}}, {T}) {{
        %t = "gflow.transpose"(%w) {{permutation = array<i64: 1, 0>}} : ({T}) -> {T}
        %u = "gflow.sub"(%w, %g) : ({T}, {T}) -> {T}
        %m = "gflow.matmul"(%t, %g) : ({T}, {T}) -> {T}
        return %u, %m : {T}, {T}
      }}""")
    assert [o.name for o in run(module).ops] == ["transpose", "matmul", "sub"]


# -- the algorithms

FUSED = "gflow-fuse,gflow-schedule{{{}}},gflow-materialize,gflow-plan-memory,gflow-verify-memory"


@pytest.mark.parametrize(
    "algorithm", ["MemoryFirst", "SpeedFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu"]
)
def test_every_order_gives_the_same_results(algorithm: str) -> None:
    for seed in range(6):
        module = random_module(CONTEXT, 300 + seed, 40, LARGE if seed % 2 else SMALL, updates=True)
        args = random_args(module, seed)
        want = run_module(module, [a.clone() for a in args])
        with CONTEXT:
            run_pipeline(
                module, f"builtin.module(func.func(gflow-schedule{{algorithm={algorithm}}}))"
            )
        got = run_module(module, [a.clone() for a in args])
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a.isnan(), b.isnan())
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), f"seed {seed}"
        with CONTEXT:  # and what it does to memory is sound
            run_pipeline(module, f"builtin.module(func.func({FUSED.format('')}))")


def bound_of(module: ir.Module) -> int:
    return ir.IntegerAttr(function_of(module).operation.attributes["gflow.lower_bound"]).value


def test_memory_first_never_needs_more_than_program_order() -> None:
    less = 0
    for seed in range(40):
        shapes = LARGE if seed % 2 else SMALL
        bounds = {}
        for algorithm in ("Disable", "MemoryFirst"):
            module = random_module(CONTEXT, 400 + seed, 30 + seed, shapes, updates=seed % 3 > 0)
            with CONTEXT:
                settings = f"algorithm={algorithm}"
                run_pipeline(module, f"builtin.module(func.func({FUSED.format(settings)}))")
            bounds[algorithm] = bound_of(module)
        assert bounds["MemoryFirst"] <= bounds["Disable"], f"seed {seed}"
        less += bounds["MemoryFirst"] < bounds["Disable"]
    assert less > 10


def test_memory_first_frees_before_it_needs() -> None:
    """%a dies in the first product of the second row, so that one comes before %b is made."""
    module = parse(f"""
      func.func @f(%x: {T}) -> {T} {{
        %a = "gflow.matmul"(%x, %x) : ({T}, {T}) -> {T}
        %b = "gflow.matmul"(%x, %x) : ({T}, {T}) -> {T}
        %c = "gflow.reverse"(%b) {{dims = array<i64: 0>}} : ({T}) -> {T}
        %n = "gflow.slice"(%a) {{starts = array<i64: 0, 0>, limits = array<i64: 1, 1>,
            strides = array<i64: 1, 1>}} : ({T}) -> tensor<1x1xf32>
        %m = "gflow.reverse"(%n) {{dims = array<i64: 0>}} : (tensor<1x1xf32>) -> tensor<1x1xf32>
        %w = "gflow.broadcast"(%m) {{dims = array<i64: 0, 1>, shape = array<i64: 8, 8>}}
            : (tensor<1x1xf32>) -> {T}
        %r = "gflow.add"(%c, %w) : ({T}, {T}) -> {T}
        return %r : {T}
      }}""")
    with CONTEXT:
        run_pipeline(module, "builtin.module(func.func(gflow-schedule{algorithm=MemoryFirst}))")
    names = [o.name for o in read_body(function_of(module)).ops]
    assert names.index("slice") < len(names) - 1 - names[::-1].index("matmul")


def test_steps_through_pytorch_come_while_kernels_run() -> None:
    """The kernels are queued first; the step that needs nothing of them doesn't wait for them."""
    step = 'overload = "aten.sort.default", args = "[[{\\22t\\22: 0}], {}]"'
    one = "SegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>"
    segments = f"operand{one}, result{one}"
    module = parse(f"""
      func.func @f(%x: {T}, %y: {T}) -> {T} {{
        %a = "gflow.matmul"(%x, %x) : ({T}, {T}) -> {T}
        %b = "gflow.matmul"(%a, %x) : ({T}, {T}) -> {T}
        %s = "gflow.aten"(%y) {{{step}, {segments}}} : ({T}) -> {T}
        %t = "gflow.aten"(%b) {{{step}, {segments}}} : ({T}) -> {T}
        %r = "gflow.add"(%s, %t) : ({T}, {T}) -> {T}
        return %r : {T}
      }}""")
    body = read_body(function_of(module))
    found = dependences_of(function_of(module), body)
    host = [o.name == "aten" for o in body.ops]
    assert host_early(found, host, [1.0] * len(body.ops)) == [2, 0, 1, 3, 4]
    # a kernel is queued, not waited for, before a step that needs it
    assert host_early(found, [False, False, True, True, False], [1e-9] * 5)[:1] == [2]


def test_short_kernels_wait_for_long_ones() -> None:
    module = parse(layers(3))
    found = dependences_of(function_of(module), read_body(function_of(module)))
    names = [o.name for o in found.body.ops]
    order = short_last(found, [name == "sub" for name in names])
    assert [names[i] for i in order][-3:] == ["sub"] * 3


def test_an_unknown_algorithm_is_an_error() -> None:
    with CONTEXT, pytest.raises(PipelineError, match="no algorithm 'Fast'; there are SpeedFirst"):
        run_pipeline(parse(layers(1)), "builtin.module(func.func(gflow-schedule{algorithm=Fast}))")


# -- work


@pytest.mark.parametrize("late_reader", [False, True])
def test_work_grows_with_the_program(late_reader: bool) -> None:
    """From a thousand to eight thousand ops: eight times the lines, not sixty-four."""

    def work(count: int) -> int:
        module = parse(layers(count, late_reader))
        function = function_of(module)
        body = read_body(function)
        return lines(lambda: updates_first(dependences_of(function, body)))

    assert work(2000) < 12 * work(250)
