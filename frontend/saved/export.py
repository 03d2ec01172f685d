"""`gflow.save(graph, path)`: a graph's programs and state as a directory that runs without its code."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gflow.call.plans.plan import Plan
from gflow.dialects.program import Program
from gflow.errors import GraphError
from gflow.execution.executor import compile_trace, programs_for
from gflow.runtime import calls
from gflow.runtime.composed.frozen import Frozen
from gflow.runtime.composed.micro_batches import MicroBatches
from gflow.runtime.cpu import machine
from gflow.runtime.numbers import name_of
from gflow.runtime.schedules import data as schedulers
from gflow.runtime.stored import checkpoint, program_files
from gflow.runtime.stored.bundle import Bundle, write_bundle
from gflow.tracing.data.guards import Leaf, same
from gflow.tracing.data.places import NumberSource, Place
from gflow.tracing.data.sizes import at_one_size
from gflow.tracing.data.trace import Trace, unflatten
from gflow.tracing.dispatch.recorder import describe

from .state_dict import state_dict

#: the software with which a graph was saved, and the distributions that state its version
_DISTRIBUTIONS = {"gflow": "gflow-compiler", "torch": "torch", "triton": "triton"}


_log = logging.getLogger("gflow")


def export(
    graph: Any,
    path: Path,
    target: str | None,
    key: bytes | None = None,
    frozen: bool | None = None,
) -> None:
    """Write the artifact, signed if there is a key. frozen: whether parameters become constants; None: as the config
    says.

    Raises:
        GraphError: the graph was not called yet, has something that no file can hold, or trains and is to be frozen.
        ValueError: the target is unknown.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.targets import parse_target

    wanted = None if target is None else str(parse_target(target))
    state = graph._checked()
    plans = plans_of(state)
    frozen = graph.config.is_frozen if frozen is None else frozen
    plans = [with_freezing(_of_one_size(state.name, plan), frozen) for plan in plans]
    saved = _Saved(state, graph._roots(), frozen)
    described: list[dict[str, Any]] = []
    programs: list[Program] = []
    if wanted is not None and wanted != "cpu":
        _say_fixed(state.name, wanted, plans)
        plans = [at_its_size(plan) for plan in plans]
    for plan in plans:
        entry = saved.describe(plan)
        entry["program"] = len(programs)
        described.append(entry)
        programs += _programs(plan, wanted)
    files = program_files.program_files(programs)
    manifest: dict[str, Any] = {
        "name": state.name,
        "training": bool(state.optimizers),
        "target": programs[0].target,
        "versions": {name: _version(of) for name, of in _DISTRIBUTIONS.items()},
        "programs": described,
        "schedulers": _schedulers(state),
    }
    if frozen:
        manifest["frozen"] = True
    code = program_files.machine_code(programs)
    if code is not None:
        files[program_files.OBJECT] = code
        manifest["object"] = machine.description(program_files.runner_text())
    weights = saved.weights()
    weights["constants"] = [
        [
            torch.frombuffer(bytearray(c), dtype=torch.uint8) if c else _nothing()
            for c in p.constants
        ]
        for p in programs
    ]
    writers = {program_files.WEIGHTS: lambda file: checkpoint.write(weights, file)}
    write_bundle(path, Bundle(manifest, files), writers, key)


def _programs(plan: Plan, target: str | None) -> list[Program]:
    """The programs that a plan runs; for another target, its trace compiled for it."""
    made_for = plan.compiled.program.target
    if target not in (None, made_for):
        if plan.trace.frozen:
            raise GraphError(
                f"{plan.trace.name} is frozen, and saved for {made_for} alone: what is computed once of its parameters "
                f"is computed there. Save for {target} with frozen=False."
            )
        return programs_for(plan.trace, plan.compiled.options, target or made_for)
    run = plan.compiled.run
    if isinstance(run, MicroBatches):
        parts: list[Any] = run.executables
        return [part.program for part in parts]
    return [plan.compiled.program]


def with_freezing(plan: Plan, frozen: bool) -> Plan:
    """A plan compiled with frozen parameters, or without; for writing only.

    Raises:
        GraphError: the graph trains.
    """
    options = plan.compiled.options
    if options is None or options.passes.freeze == frozen:
        return plan
    made = copy.copy(plan)
    made.trace = replace(plan.trace, frozen=frozenset())
    passes = replace(options.passes, freeze=frozen)
    made.compiled = compile_trace(made.trace, replace(options, passes=passes, timing={}))
    return made


def _schedulers(state: Any) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for scheduler in state.schedulers:
        described = schedulers.describe(scheduler)
        if described is None:
            warnings.warn(
                f"the {type(scheduler).__name__} of {state.name} stays behind: it needs Python code "
                "of its own. What is loaded keeps its learning rates; set_number() sets them.",
                stacklevel=4,
            )
        else:
            which = [o is scheduler.optimizer for o in state.optimizers]
            described["optimizer"] = which.index(True)
        found.append(described)
    return found


def plans_of(state: Any) -> list[Plan]:
    """The plans for the current modes of the modules, the latest first.

    Raises:
        GraphError: there is none, each assigns new tensors to attributes, or a part of one runs after its program.
    """
    modes = None if state.table is None else state.table.modes()
    found = [
        p
        for variants in reversed(state.plans.values())
        for p in variants
        if p.record is not None and p.record.modes == modes
    ]
    ready = [p for p in found if p.refresh()]
    if not ready:
        raise GraphError(
            f"{state.name} is not compiled for the present modes of its modules; call it once with "
            "its inputs before it is saved"
        )
    assigned = [str(key) for p in ready for _, key in p.trace.assigned]
    ready = [p for p in ready if not p.trace.assigned]
    if not ready:
        raise GraphError(
            f"{state.name} cannot be saved: its call assigns new tensors to attributes ({', '.join(assigned)}), which "
            "a loaded graph does not have. Call the graph again, until it only updates them, or return them"
        )
    for plan in ready:
        if (tail := plan.trace.tail) is not None:
            raise GraphError(
                f"{state.name} cannot be saved: {describe(tail.first.loc)}: the shape of the result of "
                f"{tail.first.func} depends on values, so PyTorch computes it after the program, and a file holds the "
                "program alone. Return what it is computed from, and compute it after the call of the loaded graph."
            )
    if state.latest in ready:
        ready.remove(state.latest)
        ready.insert(0, state.latest)
    return ready


def at_its_size(plan: Plan) -> Plan:
    """A plan with a dynamic size specialized to its last size, for formats with static sizes only; any other plan
    itself. It is for writing only: its program is still the one for a range."""
    if plan.dynamic is None or plan.record is None:
        return plan
    sizes, size = plan.dynamic.sizes, plan.size or plan.record.size
    made = copy.copy(plan)
    made.dynamic = None
    if plan.dynamic.second is not None:  # with two sizes, those for which it was compiled
        made.trace, made.arguments = at_one_size(plan.trace, plan.record.size, plan.arguments)
        return made
    assert isinstance(size, int)
    k = size if plan.size else (size - sizes.rest) // sizes.step
    made.trace, made.arguments = at_one_size(plan.trace, k, plan.arguments)
    made.record = plan.record.at(sizes.at(k))
    return made


def _of_one_size(name: str, plan: Plan) -> Plan:
    """A plan with at most one dynamic size, as a file can hold. It is compiled again if it has two."""
    if plan.dynamic is None or plan.dynamic.second is None or plan.record is None:
        return plan
    _log.warning(
        "%s: a program in which two sizes vary is saved for those that it was made for alone; a file holds ranges of "
        "one size.",
        name,
    )
    made = at_its_size(plan)
    made.compiled = compile_trace(made.trace, replace(plan.compiled.options, timing={}))
    return made


def _say_fixed(name: str, target: str, plans: list[Plan]) -> None:
    """Warn that programs for other targets have static sizes."""
    for plan in plans:
        if plan.dynamic is None or plan.record is None:
            continue
        size = plan.size or plan.record.size
        assert isinstance(size, int)
        _log.warning(
            "%s is saved for %s, whose programs have fixed sizes: one takes a size of %d alone, and not a range.",
            name,
            target,
            plan.dynamic.sizes.at(size) if plan.size else size,
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


class _Saved:
    """The tensors and numbers of all plans, and their places in the file."""

    def __init__(
        self, state: Any, roots: Mapping[str, torch.nn.Module], frozen: bool = False
    ) -> None:
        self.state = state
        self.tree = state_dict(state, roots)
        if frozen:  # tensors of modules that programs only read
            for name in [n for n in self.tree if not n.startswith("graph.")]:
                del self.tree[name]
        self.extra: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, dict[str, Any]] = {}
        self.places: dict[Any, list[Any]] = {}
        self._walk(self.tree, ["state"])

    def weights(self) -> dict[str, Any]:
        return {"state": self.tree, "extra": self.extra, "numbers": self.numbers}

    def _walk(self, value: Any, path: list[Any]) -> None:
        if isinstance(value, torch.Tensor):
            if value.numel():
                self.places.setdefault(_identity(value), path)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._walk(item, [*path, key])
        elif isinstance(value, (list, tuple)):
            for n, item in enumerate(value):
                self._walk(item, [*path, n])

    def describe(self, plan: Plan) -> dict[str, Any]:
        """A plan's entry in the manifest."""
        trace, call = plan.trace, plan.record
        assert call is not None
        if (found := next((i for i in trace.inputs if i.by_memory), None)) is not None:
            raise GraphError(
                f"{trace.name} cannot be saved: it calls as_strided on input {found.name!r}, which reads memory by the "
                "strides of one call, and a loaded graph takes inputs of others. Call "
                ".clone(memory_format=torch.contiguous_format) first"
            )
        if call.problem:
            raise GraphError(f"{trace.name} cannot be saved: {call.problem}")
        arguments: list[list[Any]] = []
        sources = {number.value: number for number in trace.numbers}
        names = {id(n): self._number(n) for n in trace.numbers}
        run = plan.compiled.run
        read = {*run.given} if isinstance(run, Frozen) else {*range(len(trace.inputs))}
        for n, (entry, tensor) in enumerate(zip(trace.inputs, plan.arguments)):
            if n not in read:
                arguments.append([])
                continue
            leaf = trace.input_leaves.get(entry.value)
            if leaf is not None:
                arguments.append(["input", call.leaves[leaf]])
            elif entry.role == "size":
                arguments.append(["size", None])
            elif entry.role == "gradient":
                arguments.append(["gradient", entry.name])
            elif entry.value in sources:
                arguments.append(["number", names[id(sources[entry.value])]])
            else:
                arguments.append(["weights", self._place(entry.name, tensor)])
        if plan.compiled.takes_rng:
            arguments.append(["rng", None])
        if isinstance(run, Frozen):
            once = run.constants_now(plan.arguments)
            places = [
                ["weights", self._place(f"frozen.{k}", tensor)] for k, tensor in enumerate(once)
            ]
            arguments = [arguments[n] if n >= 0 else places[-1 - n] for n in run.given]
        return {
            "split": asdict(run.split) if isinstance(run, MicroBatches) else None,
            "parameters": call.parameters,
            "call": call.structure,
            "inputs": list(call.inputs),
            "arguments": arguments,
            "outputs": _outputs(trace),
            "numbers": [names[id(n)] for n in trace.numbers],
            "guards": [
                {"expr": _expression(g.expr, trace), "expected": g.expected} for g in trace.guards
            ],
        }

    def _place(self, name: str, tensor: torch.Tensor) -> list[Any]:
        found = self.places.get(_identity(tensor)) if tensor.numel() else None
        if found is None:
            unique, n = name, 1
            while unique in self.extra:
                unique, n = f"{name}.{n}", n + 1
            self.extra[unique] = tensor.detach()
            found = ["extra", unique]
            if tensor.numel():
                self.places[_identity(tensor)] = found
        return found

    def _number(self, source: NumberSource) -> str:
        known = self.numbers.get(source.name)
        value = source.read()
        if known is None:
            tensor = torch.scalar_tensor(value, dtype=source.tensor.dtype)
            others = [self._in_state(source, place) for place in source.others]
            self.numbers[source.name] = {
                "tensor": tensor,
                "where": self._in_state(source, source.place),
                "also": [where for where in others if where is not None],
            }
        return source.name

    def _in_state(self, source: NumberSource, place: Place) -> list[Any] | None:
        """The location of a number in the graph's state dict."""
        optimizers = self.state.optimizers
        which = next((i for i, o in enumerate(optimizers) if o is place.optimizer), None)
        if which is None or place.kind not in ("group", "entry"):
            return None
        base: list[Any] = [f"graph.optimizer.{which}"]
        if place.kind == "group":
            return [*base, "param_groups", place.which, source.key, *source.path]
        parameters = [p for g in place.optimizer.param_groups for p in g["params"]]
        for n, parameter in enumerate(parameters):
            if parameter is place.which:
                return [*base, "state", n, source.key, *source.path]
        return None


def _identity(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _outputs(trace: Trace) -> Any:
    class Index(int):
        pass

    structure = unflatten(trace, [Index(n) for n in range(len(trace.outputs))])  # type: ignore[misc]
    try:
        return calls.encode_results(structure, lambda x: int(x) if isinstance(x, Index) else None)
    except TypeError as error:
        raise GraphError(
            f"{trace.name} cannot be saved: {error}; return tensors, lists, tuples and dicts"
        ) from None


def _expression(expr: Any, trace: Trace) -> dict[str, Any]:
    """A guard's expression as data."""
    if isinstance(expr, Leaf):
        return {"number": expr.index}
    if not isinstance(expr, tuple):
        return {"value": expr}
    if expr[0] is same:
        return _expression(expr[1], trace)
    name = name_of(expr[0])
    if name is None:
        raise GraphError(
            f"{trace.name} cannot be saved: its optimizer's step chooses by "
            f"{getattr(expr[0], '__qualname__', expr[0])!r} of a hyperparameter"
        )
    return {"call": name, "args": [_expression(arg, trace) for arg in expr[1:]]}
