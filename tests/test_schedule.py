"""gflow-schedule: updates come early, after the last reader of the old value; nothing else does."""

from __future__ import annotations

import time

import pytest
from random_ir import LARGE, SMALL, random_module

from gflow.compiler.passmanager import run_pipeline
from gflow.compiler.schedule.dependences import dependences_of
from gflow.compiler.schedule.lists import updates_first
from gflow.compiler.ssa import Body, aliases, read_body
from gflow.compiler.views import VIEW_OPS
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


# -- time


@pytest.mark.parametrize("late_reader", [False, True])
def test_time_grows_with_the_program(late_reader: bool) -> None:
    """From a thousand to eight thousand ops: about eight times as long, not sixty-four."""

    def seconds(count: int) -> float:
        module = parse(layers(count, late_reader))
        function = function_of(module)
        body = read_body(function)
        times = []
        for _ in range(3):
            start = time.process_time()
            updates_first(dependences_of(function, body))
            times.append(time.process_time() - start)
        return min(times)

    small, large = seconds(250), seconds(2000)
    assert large < 20 * max(small, 1e-3)
