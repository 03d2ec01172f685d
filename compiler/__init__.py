"""Passes, pipelines, code generators and `gflow-opt`: IR in, IR or a program out.

distribution/  collectives, pipeline schedules and their times on many ranks
driver/   runs pipelines: from a module in the dialect to a program, with reproducers where a pass fails
emit/     from a planned function to a `Program`: steps in order, and kernels as text in a language for each
          kind of target
engines/  programs in the forms that other engines read: StableHLO and ONNX
ir/       what passes and emitters know of the IR: values, views, layouts, places, costs, locations, errors
kernel/   kernels as data, before any language: index space, loads, expression DAG, reductions, stores
memory/   the parts of the memory passes: which writes are in place, and the layout of the arena
passes/   the passes of the `gflow` dialect, in folders by subject: a pass a file, beside the parts that it is
          made of
reports/  what the compiler says about a program: costs, launches, drawings
targets/  the targets that programs are compiled for, and the devices behind them
tools/    the command lines: the parts of `gflow-opt`, and `gflow-reduce`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .driver.options import CompileOptions, Programs, resolve

if TYPE_CHECKING:
    from .driver.compile import compile_module, compile_programs

__all__ = ["CompileOptions", "Programs", "compile_module", "compile_programs", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in ("compile_module", "compile_programs"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # start-up: a stored program is found without passes and the bindings of MLIR
    from .driver import compile as found

    return getattr(found, name)
