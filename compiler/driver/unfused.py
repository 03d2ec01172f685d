"""The kernels of a GPU program that `gflow-unfuse` could split, and programs of one of them, split.

    %r = "gflow.fused"(%b, %x, %w) ({ … "gflow.matmul" … "gflow.tanh" … }) {gflow.group = "2424…", …

as a function of its own, whose arguments lie in memory as the kernel's operands do:

    %0 = "gflow.matmul"(%x, %w) …
    %1 = "gflow.fused"(%b, %0) ({ … "gflow.tanh" … }) …

The passes that follow `gflow-unfuse` in the pipeline of the whole program choose its kernels.
"""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.dialect import make_context
from gflow.dialects.marks import GROUP
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program
from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides

from ..emit.triton.build import built_again
from ..emit.triton.program_builder import Builder
from ..ir.fused import CONTRACTIONS
from ..ir.modules import text_of
from ..ir.ssa import Op, clone_with, fused_kind
from ..passes.joining.unfuse import split
from .compile import compile_module
from .options import CompileOptions, resolve
from .pass_manager import Pipeline

_PASS = "gflow-unfuse"


@record
class Group:
    """Equal kernels of a contraction and its epilogue.

    Attributes:
        name: their `gflow.group`.
        begin, end: the steps of the first of them, `end` exclusive.
        count: how many they are.
        split: the text of a module that computes the same by two kernels.
    """

    name: str
    begin: int
    end: int
    count: int
    split: str


def groups_of(program: Program) -> list[Group]:
    """The groups of a program, in its order. Kernels that share a launch with others are not split, nor are those of
    equal ones."""
    found: dict[str, Group] = {}
    shared: set[str] = set()
    with built_again(program) as (_, b, _):
        for ops, begin, end in b.units:
            for o in ops:
                name = text_of(o.op.attributes, GROUP, "")
                if not name or fused_kind(o.op) != "contraction":
                    continue
                if len(ops) > 1:
                    shared.add(name)
                first = found.get(name) or Group(name, begin, end, 0, _split(b, o))
                found[name] = replace(first, count=first.count + 1)
    return [group for name, group in found.items() if name not in shared]


def first_steps(program: Program) -> dict[str, int]:
    """By the name of each group of a program, split or not, the first step of its first contraction."""
    found: dict[str, int] = {}
    with built_again(program) as (_, b, _):
        for ops, begin, _ in b.units:
            for o in ops:
                name = text_of(o.op.attributes, GROUP, "")
                if name and (o.name in CONTRACTIONS or fused_kind(o.op) == "contraction"):
                    found.setdefault(name, begin)
    return found


def _split(b: Builder, o: Op) -> str:
    """The module of a kernel alone, split."""
    types = [v.type for v in o.op.operands], [r.type for r in o.op.results]
    with ir.Location.unknown(b.function.context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("split", types)
        function.operation.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_layout(b, v) for v in o.operands]
        )
        if "gflow.tf32" in b.function.attributes:
            function.operation.attributes["gflow.tf32"] = b.function.attributes["gflow.tf32"]
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            copy = clone_with(o.op, list(block.arguments))
            func.ReturnOp(list(copy.results))
        for name in [name for name in copy.attributes if name.startswith("gflow.")]:
            del copy.attributes[name]
        split(copy)
        return module.operation.get_asm()


def _layout(b: Builder, value: int) -> ir.DictAttr:
    """The attributes of an argument that lies in memory as a value does."""
    strides = b.strides(value)
    if strides == row_major_strides(b.body.types[value].shape):
        return ir.DictAttr.get({})
    return ir.DictAttr.get({"gflow.strides": ir.DenseI64ArrayAttr.get(list(strides))})


def split_program(group: Group, options: CompileOptions) -> Program:
    """The program of one kernel of a group, split. options: those of the whole program.

    Raises:
        PipelineError: a pass or code generation failed.
    """
    with make_context() as context:
        steps = Pipeline(resolve(options).pipeline).steps
        names = [step.name for step in steps]
        rest = ",".join(str(step.item) for step in steps[names.index(_PASS) + 1 :])
        alone = replace(
            options, pipeline=f"builtin.module(func.func({rest}))", timing={}, on_phase=None
        )
        return compile_module(ir.Module.parse(group.split, context), alone)
