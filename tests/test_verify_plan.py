"""Right plans that are made wrong: each is refused, or is still right."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from random_strides import (
    Layouts,
    arguments_in,
    close,
    expected,
    memory_for,
    random_strides,
    strided_module,
)

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.emit.cpu.build import build_program
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.memory.places import places_of
from gflow.compiler.memory.plan_check import problems
from gflow.compiler.targets.host import host_blas
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import row_major_strides, share_memory, type_of
from gflow.runtime import Executable

CONTEXT = make_context()


def planned(seed: int) -> tuple[ir.Module, Layouts, list[torch.Tensor]]:
    """A random program with its plan, how its arguments lie, and what its results should be."""
    module, layouts = strided_module(CONTEXT, seed, 6 + seed % 8)
    wanted, _ = expected(module, layouts, memory_for(layouts, seed))
    options = PipelineOptions(
        multi_tensor_update=seed % 3 == 1, compress_memory=seed % 4 != 3, straighten="MemoryFirst"
    )
    run_pipeline(module, pipeline_for("cpu", options))
    return module, layouts, wanted


def function_in(module: ir.Module) -> func.FuncOp:
    return module.body.operations[0]


def ops_in(module: ir.Module) -> list[ir.Operation]:
    return [o.operation for o in function_in(module).regions[0].blocks[0].operations]


def set_places(op: ir.Operation, names: list[str]) -> None:
    op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names])


# each mutation: changes the module, and says how its arguments lie then; None where there was nothing to change
Mutation = Callable[[ir.Module, Layouts, random.Random], Layouts | None]


def move_a_place(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    """Another offset in the arena, argument or result."""
    op = choose.choice([o for o in ops_in(module) if "gflow.buffers" in o.attributes])
    names = [str(p) for p in places_of(op) or []]
    n = choose.randrange(len(names))
    space, number = re.match(r"(\w+):(\d+)", names[n]).groups()  # type: ignore[union-attr]
    by = choose.choice((64, -64, 128, 1024, 32)) if space == "arena" else choose.choice((1, -1))
    if int(number) + by < 0:
        return None
    names[n] = names[n].replace(f":{number}", f":{int(number) + by}")
    set_places(op, names)
    return layouts


def swap_places(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    ops = [o for o in ops_in(module) if "gflow.buffers" in o.attributes]
    a, b = choose.sample(ops, 2) if len(ops) > 1 else (ops[0], ops[0])
    first, second = ([str(p) for p in places_of(o) or []] for o in (a, b))
    if a == b or first[0] == second[0]:
        return None
    set_places(a, [second[0], *first[1:]])
    set_places(b, [first[0], *second[1:]])
    return layouts


def other_strides(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    """Strides of an argument that was planned with others."""
    n = choose.randrange(len(layouts.shapes))
    free = n not in layouts.update.values()
    strides = random_strides(layouts.shapes[n], choose, free)
    if strides == layouts.strides[n] or (not free and share_memory(layouts.shapes[n], strides)):
        return None
    function = function_in(module)
    attrs = list(function.arg_attrs)
    attrs[n] = ir.DictAttr.get({"gflow.strides": ir.DenseI64ArrayAttr.get(list(strides))})
    function.arg_attrs = ir.ArrayAttr.get(attrs)
    changed = list(layouts.strides)
    changed[n] = strides
    return replace(layouts, strides=changed)


def wrong_strides_in_a_place(
    module: ir.Module, layouts: Layouts, choose: random.Random
) -> Layouts | None:
    """The strides that a place states changed, left out, or added."""
    ops = [o for o in ops_in(module) if any(p.space == "arg" for p in places_of(o) or [])]
    if not ops:
        return None
    op = choose.choice(ops)
    found = places_of(op) or []
    n = choose.choice([i for i, p in enumerate(found) if p.space == "arg"])
    shape = type_of(op.results[n]).shape
    strides = choose.choice((None, random_strides(shape, choose, True)))
    dense = row_major_strides(shape)
    if (strides or dense) == (found[n].strides or dense):
        return None
    found[n] = found[n]._replace(strides=strides)
    set_places(op, [str(p) for p in found])
    return layouts


def without_a_copy(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    """Readers of a copy read what was copied, where it lies."""
    copies = [
        o
        for o in ops_in(module)
        if o.name == "gflow.fused" and len(list(o.regions[0].blocks[0].operations)) == 1
        and len(o.operands) == 1 and o.results[0].type == o.operands[0].type
    ]  # fmt: skip
    if not copies:
        return None
    copy = choose.choice(copies)
    copy.results[0].replace_all_uses_with(copy.operands[0])
    return layouts


def smaller_arena(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    function = function_in(module)
    size = ir.IntegerAttr(function.attributes["gflow.arena_size"]).value
    if not size:
        return None
    i64 = ir.IntegerType.get_signless(64)
    function.attributes["gflow.arena_size"] = ir.IntegerAttr.get(i64, choose.randrange(size))
    return layouts


def other_alias(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    """A result that updates nothing any more, though its op writes to an argument."""
    function = function_in(module)
    attrs = list(ir.ArrayAttr(function.attributes["res_attrs"]))
    if not layouts.update:
        return None
    n = choose.choice(list(layouts.update))
    attrs[n] = ir.DictAttr.get({})
    function.attributes["res_attrs"] = ir.ArrayAttr.get(attrs)
    return replace(layouts, update={k: v for k, v in layouts.update.items() if k != n})


def one_launch(module: ir.Module, layouts: Layouts, choose: random.Random) -> Layouts | None:
    """Neighbours run side by side."""
    ops = [o for o in ops_in(module) if "gflow.buffers" in o.attributes]
    if len(ops) < 2:
        return None
    at = choose.randrange(len(ops) - 1)
    for op in ops[at : at + 2]:
        op.attributes["gflow.launch"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 77)
    return layouts


MUTATIONS: list[Mutation] = [
    move_a_place, swap_places, other_strides, wrong_strides_in_a_place, without_a_copy, smaller_arena,
    other_alias, one_launch,
]  # fmt: skip

#: what cannot be right, however it turned out
ALWAYS_REFUSED = {wrong_strides_in_a_place, smaller_arena, other_alias}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
def test_a_wrong_plan_is_refused(mutate: Mutation) -> None:
    refused = accepted = 0
    for seed in range(16):
        choose = random.Random(seed)
        with CONTEXT, ir.Location.unknown():
            module, layouts, wanted = planned(seed)
            assert not list(problems(function_in(module))), f"seed {seed}"
            changed = mutate(module, layouts, choose)
            if changed is None:
                continue
            assert module.operation.verify()
            if list(problems(function_in(module))):
                refused += 1
                continue
            accepted += 1
            assert mutate not in ALWAYS_REFUSED, f"seed {seed}"
            if mutate is other_strides and not fits(module):
                # a region's strides fold its dimensions otherwise: code generation refuses, and what it advises helps
                run_pipeline(module, "builtin.module(func.func(gflow-select-kernels{threads=2}))")
                assert not list(problems(function_in(module))), f"seed {seed}"
            program = build_program(function_in(module), threads=2, blas=host_blas())
        check(program, layouts, changed, seed, wanted)
    assert refused >= 3, f"{refused} refused, {accepted} accepted"


def fits(module: ir.Module) -> bool:
    """Whether the kernels that were selected are for regions as they are now."""
    try:
        build_program(function_in(module), threads=2, blas=host_blas())
    except CannotLower as error:
        if "run gflow-select-kernels again" not in str(error):
            raise
        return False
    return True


def check(
    program: object, layouts: Layouts, changed: Layouts, seed: int, wanted: list[torch.Tensor]
) -> None:
    """A program that was not refused gives the right results, whatever lies in its memory before."""
    given = arguments_in(layouts, memory_for(layouts, seed))
    memory = memory_for(changed, seed + 1)
    args = arguments_in(changed, memory)
    for n, (target, value) in enumerate(zip(args, given)):
        if share_memory(changed.shapes[n], changed.strides[n]) or share_memory(
            layouts.shapes[n], layouts.strides[n]
        ):
            return  # not every value can lie so
        target.copy_(value)
    run = Executable(program)  # type: ignore[arg-type]
    run.arena.fill_(0xFF)
    for n, (found, value) in enumerate(zip(run(args), wanted, strict=True)):
        assert close(found, value), f"seed {seed}, result {n}"


def test_every_compilation_verifies_its_plan() -> None:
    """Also with a pipeline of the caller's own, and with options that skip other checks."""
    text = """
      func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32>
          attributes {gflow.arena_size = 512 : i64} {
        %0 = "gflow.reverse"(%x) {dims = array<i64: 0>, gflow.buffers = ["arena:0"]}
          : (tensor<8x8xf32>) -> tensor<8x8xf32>
        %1 = "gflow.reverse"(%0) {dims = array<i64: 0>, gflow.buffers = ["arena:64"]}
          : (tensor<8x8xf32>) -> tensor<8x8xf32>
        %2 = "gflow.matmul"(%0, %1) {gflow.buffers = ["result:0"]}
          : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
        return %2 : tensor<8x8xf32>
      }"""
    with CONTEXT:
        module = ir.Module.parse(text)
        with pytest.raises(PipelineError, match=r"overwrites result 0 of gflow\.reverse"):
            compile_module(module, CompileOptions(pipeline="builtin.module(func.func(cse))"))
