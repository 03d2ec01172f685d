"""A graph's IR between two passes."""

from __future__ import annotations

from typing import Any

from gflow.call.plans.plan import Plan
from gflow.compiler import resolve
from gflow.compiler.driver.stages import run_to
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.lowering import lower


def module_at(plan: Plan, stage: str) -> ir.Module:
    """The module at a stage.

    Raises:
        NoStage: the graph's pipeline has none of that name.
    """
    module = lower(plan.trace.main)
    run_to(module, resolve(plan.compiled.options).pipeline, stage)
    return module


def ir_at(plan: Plan, stage: str) -> str:
    """The module at a stage, as text."""
    return module_at(plan, stage).operation.get_asm(enable_debug_info=True)


def planned(plan: Plan) -> tuple[ir.Module, Any]:
    """The planned module and its function."""
    return planned_program(plan.compiled)


def planned_program(program: Any) -> tuple[ir.Module, Any]:
    """The planned module and function of a program."""
    context = make_context()
    with context:
        module = ir.Module.parse(program.ir)
    return module, entry_function(module)
