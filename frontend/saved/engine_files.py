"""`gflow.save(graph, path, format="stablehlo" | "onnx")`: a graph's step as a file that other engines' tools load.

model.stablehlo               the program, as a portable artifact (as text where the name ends in .mlir)
model.stablehlo.safetensors   the tensors of its arguments that are not inputs, by their dotted names; the file's
                              metadata lists all arguments and results in order
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as tensors_as_bytes

from gflow.call.plans.plan import Plan
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import export_pipeline
from gflow.compiler.engines.form import EngineError
from gflow.compiler.ir.dynamic_sizes import sized
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.extents import current, varies
from gflow.dialects.mlir import func
from gflow.dialects.types import type_of
from gflow.errors import GraphError
from gflow.lowering import lower
from gflow.runtime.engines.packages import EngineUnavailable, require
from gflow.runtime.stored.atomic import new_file

from .export import plans_of

if TYPE_CHECKING:
    from gflow.compiler.engines.stablehlo.write import Written


def export_for_engines(graph: Any, path: Path, form: str) -> None:
    """Write the graph's step, for the most recently called signature.

    Raises:
        GraphError: the format does not exist, the graph was not called yet, or has something that the format cannot
            express.
        SaveError: a file cannot be written.
    """
    if form not in WRITERS:
        raise GraphError(
            f"gflow.save() takes format={' or '.join(map(repr, WRITERS))}; got {form!r}"
        )
    state = graph._checked()
    plans = plans_of(state)
    plan = plans[0]
    trace = plan.trace
    if trace.parts is not None:
        raise GraphError(
            f"{trace.name} cannot be saved as {form}: it has set_gradient_accumulation_steps(); call it without"
        )
    # dynamic sizes are stand-ins in the IR: the file must not depend on which
    made = [_files(plan, path, form, which) for which in ((0,) if trace.size is None else (0, 1))]
    if made[0][path] != made[-1][path]:
        raise GraphError(
            f"{trace.name} cannot be saved as {form} for all sizes: a constant of it cannot be told from a size. Leave "
            "one of its dimensions static."
        )
    for where, data in made[0].items():
        with new_file(where) as place:
            place.write_bytes(data)


def _files(plan: Plan, path: Path, form: str, which: int) -> dict[Path, bytes]:
    """The contents of the files. which: the stand-ins of sizes."""
    trace = plan.trace
    module = lower(trace, which, for_onnx=form == "onnx")
    run_pipeline(module, export_pipeline(plan.compiled.options.passes))
    function = entry_function(module)
    try:
        with module.context, sized(module.operation):
            return WRITERS[form](function, plan, path)
    except EngineError as error:
        raise GraphError(f"{trace.name}: {error}") from None


def _stablehlo(function: func.FuncOp, plan: Plan, path: Path) -> dict[Path, bytes]:
    # start-up: only the writer that is used is loaded
    from gflow.compiler.engines.stablehlo.write import portable, write_function

    written = write_function(function, checks=True)
    text = path.suffix == ".mlir"
    data = str(written.module).encode() if text else portable(written.module)
    weights = tensors_as_bytes(tensors_of(plan), _signature(function, plan, written))
    return {path.with_name(f"{path.name}.safetensors"): weights, path: data}


def _onnx(function: func.FuncOp, plan: Plan, path: Path) -> dict[Path, bytes]:
    # start-up: only the writer that is used is loaded
    from gflow.compiler.engines.onnx.write import write_function

    try:
        require("onnx")
    except EngineUnavailable as error:
        raise EngineError(str(error)) from None
    trace = plan.trace
    updated = {trace.inputs[out.alias].name for out in trace.outputs if out.alias is not None}
    values = {
        name: tensor.numpy() for name, tensor in tensors_of(plan).items() if name not in updated
    }
    model = write_function(function, checks=True, values=values).model
    fixed = [e.name for e in trace.inputs if e.name in values and e.role != "parameter"]
    model.metadata_props.add(key=FIXED, value=json.dumps(fixed))
    return {path: model.SerializeToString()}


def tensors_of(plan: Plan) -> dict[str, torch.Tensor]:
    """The program's arguments that are not inputs, by name."""
    found = {}
    for entry, tensor in zip(plan.trace.inputs, plan.arguments):
        if entry.value not in plan.trace.input_leaves and entry.role != "size":
            found[entry.name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return found


def _signature(function: func.FuncOp, plan: Plan, written: Written) -> dict[str, str]:
    """The inputs, in order, with the names of dynamic dimensions; the results, and which argument each updates; and
    the range of each size."""
    names = [entry.name for entry in plan.trace.inputs]
    names += ["rng"] * (len(function.arguments) - len(names))
    results = [
        {"name": out.name, "updates": None if out.alias is None else names[out.alias]}
        for out in plan.trace.outputs
    ]
    found = {
        "arguments": [name for n, name in enumerate(names) if n not in written.dropped],
        "results": results,
    }
    symbol = current()
    if symbol is not None:
        types = [type_of(a) for a in function.arguments]
        found["dimensions"] = {
            name: [symbol.text(s) if varies(s) else s for s in ty.shape]
            for n, (name, ty) in enumerate(zip(names, types))
            if n not in written.dropped and any(map(varies, ty.shape))
        }
        found["sizes"] = {s.name: [s.least, s.most] for s in symbol.each}
    return {key: json.dumps(value) for key, value in found.items()}


#: the metadata of an ONNX file that lists the initializers that are not trained
FIXED = "gflow.fixed"
#: by format, the function that makes the bytes of its files
WRITERS: dict[str, Callable[[func.FuncOp, Plan, Path], dict[Path, bytes]]] = {
    "stablehlo": _stablehlo,
    "onnx": _onnx,
}
