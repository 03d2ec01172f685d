"""gflow-materialize and gflow-plan-memory: buffers that are live together never overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.ir.ssa import Body, aliases, read_body
from gflow.compiler.ir.views import Layout, is_view, layouts
from gflow.compiler.memory.in_place import reads_where_it_writes
from gflow.compiler.memory.liveness import ALIGN, Buffer, aligned, lower_bound
from gflow.compiler.passes.memory.search import choose
from gflow.compiler.passes.memory.strategies import STRATEGIES, Offsets
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program
from gflow.dialects.types import row_major_strides
from gflow.runtime import Executable

CONTEXT = make_context()
PIPELINE = (
    "builtin.module(func.func(gflow-fuse,gflow-schedule,gflow-materialize,gflow-repeat-copies,"
    "gflow-select-kernels,gflow-plan-memory,gflow-verify-memory))"
)


def parse(text: str) -> ir.Module:
    with CONTEXT:
        return ir.Module.parse(text)


def function_of(module: ir.Module) -> func.FuncOp:
    return module.body.operations[0].operation.opview


def planned(module: ir.Module) -> Plan:
    with CONTEXT:
        run_pipeline(module, PIPELINE)
        return Plan(module)


def random_modules(count: int) -> Iterator[tuple[int, ir.Module]]:
    for seed in range(count):
        shapes = LARGE if seed % 2 else SMALL
        yield seed, random_module(CONTEXT, 100 + seed, 20 + seed, shapes, updates=True)


# -- offsets


buffer_lists = st.lists(
    st.builds(
        lambda size, start, length: Buffer(aligned(size), start, start + length),
        st.integers(0, 5000),
        st.integers(0, 60),
        st.integers(0, 20),
    ),
    max_size=60,
)


def searched(buffers: Sequence[Buffer]) -> Offsets:
    return choose(buffers, ("timeline",), 20, 60.0)


@pytest.mark.parametrize("find", [*STRATEGIES.values(), searched], ids=lambda f: f.__name__)
@given(buffers=buffer_lists)
@settings(max_examples=80, deadline=None)
def test_live_buffers_never_overlap(
    find: Callable[[Sequence[Buffer]], Offsets], buffers: list[Buffer]
) -> None:
    size, offsets = find(buffers)
    assert len(offsets) == len(buffers)
    for i, a in enumerate(buffers):
        assert offsets[i] % ALIGN == 0
        assert 0 <= offsets[i] <= size - a.size
        for j, b in enumerate(buffers[:i]):
            together = a.start <= b.end and b.start <= a.end
            apart = offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
            assert apart or not together, (a, b)
    assert lower_bound(buffers) <= size <= sum(b.size for b in buffers)


@given(buffers=buffer_lists)
@settings(max_examples=100, deadline=None)
def test_lower_bound_is_the_peak(buffers: list[Buffer]) -> None:
    peak = max(
        (sum(b.size for b in buffers if b.start <= t <= b.end) for t in range(100)), default=0
    )
    assert lower_bound(buffers) == peak


def test_a_stack_of_lives_meets_the_lower_bound() -> None:
    """Activations that die in the reverse of their order, as a backward pass reads them."""
    buffers = [Buffer(aligned(1000 * (i % 7 + 1)), i, 100 - i) for i in range(40)]
    size, _ = choose(buffers, ("timeline", "skyline", "size"), 0, 0.0)
    assert size == lower_bound(buffers)


def test_aligned() -> None:
    assert [aligned(n) for n in (0, 1, 64, 65)] == [64, 64, 64, 128]


# -- plans of functions


@dataclass
class Live:
    """Bytes [low, high) of the arena that hold value `value` from op `start` to op `end`."""

    value: int
    low: int
    high: int
    start: int
    end: int


class Plan:
    """What a planned module says, read from it anew."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module  # its ops live as long as it does
        function = function_of(module)
        self.body: Body = read_body(function)
        self.at: list[Layout] = layouts(function, self.body)
        self.target = aliases(function, self.body)
        attributes = function.operation.attributes
        self.size = ir.IntegerAttr(attributes["gflow.arena_size"]).value
        self.bound = ir.IntegerAttr(attributes["gflow.lower_bound"]).value
        self.place: dict[int, str] = {}
        for o in self.body.ops:
            if o.name != "constant" and not is_view(o, self.at):
                names = [a.value for a in ir.ArrayAttr(o.op.attributes["gflow.buffers"])]
                self.place.update(zip(o.results, names))

    def lives(self) -> list[Live]:
        last: dict[int, int] = {}
        for o in self.body.ops:
            for v in o.operands:
                last[self.at[v].base] = o.index
        found = []
        for v, place in self.place.items():
            space, _, number = place.partition(":")
            if space == "arena":
                start = self.body.producer[v]
                size = self.body.types[v].nbytes
                end = max(start, last.get(v, start))
                found.append(Live(v, int(number), int(number) + size, start, end))
        return found

    def may_take_over(self, old: Live, new: Live) -> bool:
        """Whether `new` may lie where `old` lies, in the op that reads the one for the last time
        and makes the other."""
        o = self.body.ops[new.start]
        reads = [n for n, w in enumerate(o.operands) if self.at[w].base == old.value]
        if old.end != new.start or o.name != "fused" or len(reads) != 1:
            return False
        layout = self.at[o.operands[reads[0]]]
        shape = self.body.types[o.operands[reads[0]]].shape
        return (
            (old.low, old.high) == (new.low, new.high)
            and [s for n, s in zip(shape, layout.strides) if n != 1]
            == [s for n, s in zip(shape, row_major_strides(shape)) if n != 1]
            and reads_where_it_writes(o.op, reads[0], o.results.index(new.value))
        )


def check_lives(plan: Plan, what: str) -> tuple[int, int]:
    """Live values overlap only where one takes over from the other; pairs that share bytes, and
    those that take over."""
    reused = takeovers = 0
    lives = sorted(plan.lives(), key=lambda live: live.start)
    assert plan.size >= plan.bound, what
    for i, new in enumerate(lives):
        assert new.low % ALIGN == 0
        assert new.high <= plan.size
        for old in lives[:i]:
            if old.low >= new.high or new.low >= old.high:
                continue
            reused += 1
            if old.end >= new.start:
                takeovers += 1
                assert plan.may_take_over(old, new), f"{what}: {old} and {new}"
    return reused, takeovers


def test_random_plans_are_valid() -> None:
    found = [check_lives(planned(module), f"seed {seed}") for seed, module in random_modules(30)]
    assert any(reused for reused, _ in found)
    assert any(takeovers for _, takeovers in found)


def test_updates_wait_for_the_readers_of_the_old_value() -> None:
    in_place = 0
    for seed, module in random_modules(30):
        plan = planned(module)
        arguments = plan.body.arguments
        for v, place in plan.place.items():
            space, _, number = place.partition(":")
            if space != "arg":
                continue
            argument, p = arguments[int(number)], plan.body.producer[v]
            for o in plan.body.ops:
                reads = [w for w in o.operands if plan.at[w].base == argument]
                assert not reads or o.index <= p, f"seed {seed}: {o.op} reads what {p} wrote"
                if o.index == p:
                    in_place += bool(reads)
                    # reading a copy of one's own storage at the same position is fine
                    for n, w in enumerate(o.operands):
                        if plan.at[w].base == argument:
                            assert w == argument
                            assert reads_where_it_writes(o.op, n, o.results.index(v))
    assert in_place


# -- what is freed is not read


def test_poisoned_memory_changes_nothing() -> None:
    """Between two ops all bytes of the arena that hold no live value are overwritten."""
    for seed, module in random_modules(12):
        with CONTEXT:
            program = compile_module(module, CompileOptions(threads=2, pipeline=PIPELINE))
            plan = Plan(ir.Module.parse(program.ir))
        args = random_args(module, seed)
        want = [t.clone() for t in Executable(program)([a.clone() for a in args])]
        executable = Executable(program)
        executable.arena.fill_(0xFF)
        got = run_poisoned(executable, program, plan, [a.clone() for a in args])
        for n, (a, b) in enumerate(zip(got, want, strict=True)):
            same = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
            assert same, f"seed {seed}, result {n}"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(5, 50), large=st.booleans())
def test_any_order_and_plan_is_sound(seed: int, ops: int, large: bool) -> None:
    """No two live values overlap, whatever the order and the strategies."""
    order = ("MemoryFirst", "Disable", "DelayShortGpu")[seed % 3]
    select = "gflow-select-kernels," if seed % 4 == 1 else ""
    how = ("", "", "{strategies=lifetime}", "{compress=false}")[seed % 4]
    module = random_module(CONTEXT, seed, ops, LARGE if large else SMALL, updates=True)
    with CONTEXT:
        run_pipeline(
            module,
            f"builtin.module(func.func(gflow-fuse,gflow-schedule{{algorithm={order}}},"
            f"gflow-materialize,gflow-repeat-copies,{select}gflow-plan-memory{how},gflow-verify-memory))",
        )
    check_lives(Plan(module), f"seed {seed}")


def run_poisoned(
    executable: Executable, program: Program, plan: Plan, args: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run step by step, filling what is dead after each op with bytes that are NaN as floats."""
    lives = plan.lives()
    last_step = last_step_of_each_op(program, plan)
    poisoned = 0

    def after(step: int) -> None:
        nonlocal poisoned
        for index in last_step.get(step, ()):
            dead = torch.ones(executable.arena.numel(), dtype=torch.bool)
            for live in lives:
                if live.start <= index < live.end:
                    dead[live.low : live.high] = False
            executable.arena[dead] = 0xFF
            poisoned += 1

    results = run_steps(executable, args, after)
    assert poisoned == len({i for ops in last_step.values() for i in ops})
    return results


def run_steps(
    executable: Executable, args: list[torch.Tensor], after: Callable[[int], None]
) -> list[torch.Tensor]:
    results = executable._bind(args)
    with torch.no_grad():
        for n, (_, run) in enumerate(executable.steps()):
            run()
            after(n)
    return results


def last_step_of_each_op(program: Program, plan: Plan) -> dict[int, list[int]]:
    """Step number → the ops that are done with it. Steps are told apart by their labels.

    Ops in a row with one label (copies bear the label of what they copy) count as done with the
    last step of all.
    """
    last: dict[int, list[int]] = {}
    steps = [s.label for s in program.steps]
    n = -1
    for o in plan.body.ops:
        label = f"{o.name} {o.op.location}"
        if n >= 0 and steps[n] == label:
            last[n].append(o.index)  # the same label as the op before
        elif n + 1 < len(steps) and steps[n + 1] == label:
            while n + 1 < len(steps) and steps[n + 1] == label:
                n += 1
            last[n] = [o.index]
    assert n == len(steps) - 1, f"step {n + 1} {steps[n + 1 :][:1]} belongs to no op"
    return {step: [max(ops)] for step, ops in last.items()}


# -- in place


ONE = "operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>"
WIDE, NARROW = "tensor<8x4xf32>", "tensor<8xf32>"


def may_overwrite(operand: int, body: str, types: str, result: int = 0) -> bool:
    """Whether the kernel `body` over (%x, %y) may write a result over an operand."""
    count = 2 if types.startswith("(") else 1
    module = parse(f"""
      func.func @f(%a: tensor<8x4xf32>, %b: tensor<8xf32>) {{
        %r:{count} = "gflow.fused"(%a, %b) ({{
          ^bb0(%x: tensor<8x4xf32>, %y: tensor<8xf32>):
          {body}
        }}) {{kind = "row", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>,
              resultSegmentSizes = array<i32: {count}, 0, 0, 0, 0, 0, 0, 0>}}
            : (tensor<8x4xf32>, tensor<8xf32>) -> {types}
        return
      }}""")
    op = function_of(module).regions[0].blocks[0].operations[0].operation
    return reads_where_it_writes(op, operand, result)


def test_a_pointwise_kernel_may_write_over_its_operand() -> None:
    body = f"""
        %0 = "gflow.neg"(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
        "gflow.yield"(%0) {{{ONE}}} : (tensor<8x4xf32>) -> ()"""
    assert may_overwrite(0, body, WIDE)
    assert not may_overwrite(1, body, WIDE), "of another shape"


def test_the_last_pass_over_a_row_may_write_over_it() -> None:
    body = f"""
        %0 = "gflow.reduce"(%x) {{dims = array<i64: 1>, kind = "sum"}}
            : (tensor<8x4xf32>) -> tensor<8xf32>
        %1 = "gflow.broadcast"(%0) {{dims = array<i64: 0>, shape = array<i64: 8, 4>}}
            : (tensor<8xf32>) -> tensor<8x4xf32>
        %2 = "gflow.sub"(%x, %1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        "gflow.yield"(%2) {{{ONE}}} : (tensor<8x4xf32>) -> ()"""
    assert may_overwrite(0, body, WIDE)


def test_what_a_later_pass_reads_may_not_be_overwritten() -> None:
    """-%x is stored while the row is summed; the pass after that reads %x again."""
    body = """
        %n = "gflow.neg"(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
        %0 = "gflow.reduce"(%n) {dims = array<i64: 1>, kind = "sum"}
            : (tensor<8x4xf32>) -> tensor<8xf32>
        %1 = "gflow.broadcast"(%0) {dims = array<i64: 0>, shape = array<i64: 8, 4>}
            : (tensor<8xf32>) -> tensor<8x4xf32>
        %2 = "gflow.sub"(%x, %1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        "gflow.yield"(%n, %2) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()"""
    assert not may_overwrite(0, body, f"({WIDE}, {WIDE})", result=0)
    assert may_overwrite(0, body, f"({WIDE}, {WIDE})", result=1)


def test_a_contraction_is_written_before_the_rest_reads() -> None:
    module = parse("""
      func.func @f(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>, %c: tensor<8x8xf32>) {
        %r:2 = "gflow.fused"(%a, %b, %c) ({
          ^bb0(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>, %z: tensor<8x8xf32>):
          %0 = "gflow.matmul"(%x, %y) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          %1 = "gflow.add"(%0, %z) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          "gflow.yield"(%0, %1) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
              : (tensor<8x8xf32>, tensor<8x8xf32>) -> ()
        }) {kind = "contraction", operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>,
            resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>)
            -> (tensor<8x8xf32>, tensor<8x8xf32>)
        return
      }""")
    op = function_of(module).regions[0].blocks[0].operations[0].operation
    may = [[reads_where_it_writes(op, n, r) for n in range(3)] for r in range(2)]
    assert may == [[False, False, False], [False, False, True]]


_SQUARE = "tensor<1x4x4x4xf32>"
_ROOTS = {
    "convolution": "stride = array<i64: 1, 1>",
    "convolution_input_grad": "stride = array<i64: 1, 1>, shape = array<i64: 1, 4, 4, 4>",
}


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("root", _ROOTS)
def test_a_convolution_is_written_before_the_rest_reads(root: str, reshaped: bool) -> None:
    """Its result in the buffer of an operand of the epilogue would be what the epilogue reads of that."""
    view = "%v" if reshaped else "%0"
    text = f"""
      func.func @f(%a: {_SQUARE}, %b: tensor<4x4x1x1xf32>, %c: {_SQUARE}) -> ({_SQUARE}, {_SQUARE}) {{
        %d = "gflow.sin"(%c) : ({_SQUARE}) -> {_SQUARE}
        %e = "gflow.cos"(%a) : ({_SQUARE}) -> {_SQUARE}
        %r:2 = "gflow.fused"(%e, %b, %d) ({{
          ^bb0(%x: {_SQUARE}, %y: tensor<4x4x1x1xf32>, %z: {_SQUARE}):
          %0 = "gflow.{root}"(%x, %y) {{dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*",
              padding = array<i64: 0, 0>, {_ROOTS[root]}}} : ({_SQUARE}, tensor<4x4x1x1xf32>) -> {_SQUARE}
          %v = "gflow.reshape"(%0) {{shape = array<i64: 1, 4, 4, 4>}} : ({_SQUARE}) -> {_SQUARE}
          %1 = "gflow.add"({view}, %z) : ({_SQUARE}, {_SQUARE}) -> {_SQUARE}
          "gflow.yield"({view}, %1) {{operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}}
              : ({_SQUARE}, {_SQUARE}) -> ()
        }}) {{kind = "contraction", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0>,
            resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}}
            : ({_SQUARE}, tensor<4x4x1x1xf32>, {_SQUARE}) -> ({_SQUARE}, {_SQUARE})
        %s = "gflow.neg"(%r#0) : ({_SQUARE}) -> {_SQUARE}
        %t = "gflow.neg"(%r#1) : ({_SQUARE}) -> {_SQUARE}
        return %s, %t : {_SQUARE}, {_SQUARE}
      }}"""
    module = parse(text)
    fused = function_of(module).regions[0].blocks[0].operations[2].operation
    may = [[reads_where_it_writes(fused, n, r) for n in range(3)] for r in range(2)]
    assert may == [[False, False, False], [False, False, True]]


def test_a_running_statistic_may_be_updated() -> None:
    body = f"""
        %0 = "gflow.reduce"(%x) {{dims = array<i64: 1>, kind = "sum"}}
            : (tensor<8x4xf32>) -> tensor<8xf32>
        %1 = "gflow.add"(%0, %y) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
        "gflow.yield"(%1) {{{ONE}}} : (tensor<8xf32>) -> ()"""
    assert may_overwrite(1, body, NARROW)


def test_what_is_broadcast_later_may_not_be_overwritten() -> None:
    """-%y is read for each element of its row, so it may be read after |%y| was written."""
    body = """
        %0 = "gflow.neg"(%y) : (tensor<8xf32>) -> tensor<8xf32>
        %1 = "gflow.broadcast"(%0) {dims = array<i64: 0>, shape = array<i64: 8, 4>}
            : (tensor<8xf32>) -> tensor<8x4xf32>
        %2 = "gflow.mul"(%x, %1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        %3 = "gflow.reduce"(%2) {dims = array<i64: 1>, kind = "sum"}
            : (tensor<8x4xf32>) -> tensor<8xf32>
        %4 = "gflow.abs"(%y) : (tensor<8xf32>) -> tensor<8xf32>
        "gflow.yield"(%4, %3) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<8xf32>, tensor<8xf32>) -> ()"""
    assert not may_overwrite(1, body, f"({NARROW}, {NARROW})")


def test_two_results_never_take_over_one_operand() -> None:
    """Both results have the dying operand's type; the unused one may not share with the other."""
    module = parse("""
      func.func @f(%x: tensor<64xf32>) -> tensor<64xf32> {
        %m = "gflow.fused"(%x) ({
          ^bb0(%a: tensor<64xf32>):
          %0 = "gflow.exp"(%a) : (tensor<64xf32>) -> tensor<64xf32>
          "gflow.yield"(%0) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>}
              : (tensor<64xf32>) -> ()
        }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
            resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<64xf32>) -> tensor<64xf32>
        %r:2 = "gflow.fused"(%m) ({
          ^bb0(%a: tensor<64xf32>):
          %0 = "gflow.neg"(%a) : (tensor<64xf32>) -> tensor<64xf32>
          %1 = "gflow.abs"(%a) : (tensor<64xf32>) -> tensor<64xf32>
          "gflow.yield"(%0, %1) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
              : (tensor<64xf32>, tensor<64xf32>) -> ()
        }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
            resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>)
        %s = "gflow.reverse"(%r#1) {dims = array<i64: 0>} : (tensor<64xf32>) -> tensor<64xf32>
        return %s : tensor<64xf32>
      }""")
    with CONTEXT:
        run_pipeline(module, "builtin.module(func.func(gflow-plan-memory))")
        plan = Plan(module)
    places = list(plan.place.values())
    assert places[1] != places[2], places


@pytest.mark.parametrize("shape", [(3, 5), (2, 40000), (300, 700), (2000, 3), (1, 16), (64, 64)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["softmax", "norm", "gradient"])
def test_kernels_that_write_over_what_they_reduce(
    shape: tuple[int, int], axis: int, kind: str
) -> None:
    """Over a dying operand, by rows and by columns, with few rows and with many."""
    t = f"tensor<{shape[0]}x{shape[1]}xf32>"
    line = f"tensor<{shape[1 - axis]}xf32>"
    kept = f"dims = array<i64: {1 - axis}>, shape = array<i64: {shape[0]}, {shape[1]}>"
    lines = [f'%x = "gflow.reverse"(%a) {{dims = array<i64: 0, 1>}} : ({t}) -> {t}']

    def op(to: str, name: str, *operands: str) -> str:
        types = ", ".join([t] * len(operands))
        lines.append(f'%{to} = "gflow.{name}"({", ".join(operands)}) : ({types}) -> {t}')
        return f"%{to}"

    def over(to: str, how: str, x: str) -> str:
        attrs = f'{{dims = array<i64: {axis}>, kind = "{how}"}}'
        lines.append(f'%{to}r = "gflow.reduce"({x}) {attrs} : ({t}) -> {line}')
        lines.append(f'%{to} = "gflow.broadcast"(%{to}r) {{{kept}}} : ({line}) -> {t}')
        return f"%{to}"

    if kind == "softmax":
        e = op("e", "exp", op("d", "sub", "%x", over("m", "max", "%x")))
        out = op("out", "div", e, over("s", "sum", e))
    elif kind == "norm":
        d = op("d", "sub", "%x", over("m", "max", "%x"))
        out = op("out", "mul", d, over("v", "sum", op("q", "mul", d, d)))
    else:
        out = op("out", "sub", op("p", "mul", "%x", "%a"), over("s", "sum", op("n", "neg", "%x")))
    inner = "\n".join(lines)
    module = parse(f"""
      func.func @f(%a: {t}) -> {t} {{
        {inner}
        %last = "gflow.reverse"({out}) {{dims = array<i64: 0, 1>}} : ({t}) -> {t}
        return %last : {t}
      }}""")
    args = random_args(module, 3)
    (want,) = run_module(module, [a.clone() for a in args])
    with CONTEXT:
        program = compile_module(module, CompileOptions(threads=2, pipeline=PIPELINE))
        plan = Plan(ir.Module.parse(program.ir))
    if axis == 1 and shape[1] < 32768:  # one kernel
        arena = {place for place in plan.place.values() if place.startswith("arena:")}
        assert len(arena) == 1, "it writes over its operand"
    (got,) = Executable(program)(args)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# -- copies


def test_swapped_arguments() -> None:
    """Each of two arguments gets the other's old value."""
    t = "tensor<2x3xf32>"
    module = parse(f"""
      func.func @f(%a: {t}, %b: {t}, %c: {t})
          -> ({t} {{gflow.alias = 0 : i64}}, {t} {{gflow.alias = 1 : i64}},
              {t} {{gflow.alias = 2 : i64}}) {{
        return %b, %c, %a : {t}, {t}, {t}
      }}""")
    args = [torch.full((2, 3), float(i)) for i in range(3)]
    want = run_module(module, [a.clone() for a in args])
    with CONTEXT:
        program = compile_module(module, CompileOptions(threads=2, pipeline=PIPELINE))
    Executable(program)(args)
    for got, expected in zip(args, want):
        assert torch.equal(got, expected)


def test_an_old_value_is_returned_beside_its_update() -> None:
    t = "tensor<4xf32>"
    module = parse(f"""
      func.func @f(%a: {t}) -> ({t} {{gflow.alias = 0 : i64}}, {t}) {{
        %0 = "gflow.neg"(%a) : ({t}) -> {t}
        return %0, %a : {t}, {t}
      }}""")
    with CONTEXT:
        program = compile_module(module, CompileOptions(threads=2, pipeline=PIPELINE))
    x = torch.arange(4.0)
    updated, old = Executable(program)([x])
    assert updated is x
    assert old.tolist() == [0, 1, 2, 3]
    assert x.tolist() == [0, -1, -2, -3]


def test_buffers_are_readable_in_the_ir() -> None:
    """Every op that makes a value says where it lies; the module can be read back."""
    module = random_module(CONTEXT, 5, 30)
    plan = planned(module)
    assert all(re.fullmatch(r"(arena|arg|result):\d+", p) for p in plan.place.values())
    with CONTEXT:
        again = Plan(ir.Module.parse(str(module)))
    assert again.place == plan.place


def test_a_scale_that_the_reduction_reads_may_be_updated_by_it() -> None:
    body = """
        %s = "gflow.broadcast"(%y) {dims = array<i64: 0>, shape = array<i64: 8, 4>}
            : (tensor<8xf32>) -> tensor<8x4xf32>
        %0 = "gflow.mul"(%x, %s) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        %1 = "gflow.reduce"(%0) {dims = array<i64: 1>, kind = "sum"}
            : (tensor<8x4xf32>) -> tensor<8xf32>
        %2 = "gflow.add"(%1, %y) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>"""

    one = f'\n"gflow.yield"(%2) {{{ONE}}} : (tensor<8xf32>) -> ()'
    two = """
        "gflow.yield"(%4, %2) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
            : (tensor<8xf32>, tensor<8xf32>) -> ()"""
    late = """
        %w = "gflow.broadcast"(%1) {dims = array<i64: 0>, shape = array<i64: 8, 4>}
            : (tensor<8xf32>) -> tensor<8x4xf32>
        %3 = "gflow.mul"(%w, %s) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
        %4 = "gflow.reduce"(%3) {dims = array<i64: 1>, kind = "sum"}
            : (tensor<8x4xf32>) -> tensor<8xf32>"""
    deeper = one.replace("%2", "%4")
    assert may_overwrite(1, body + one, NARROW)
    assert may_overwrite(1, body + late + deeper, NARROW)
    assert not may_overwrite(1, body + late + two, f"({NARROW}, {NARROW})", 1)
