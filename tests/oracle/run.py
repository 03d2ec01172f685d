"""Runs a program eagerly, or by gflow, and gathers all that can be seen of it: results of every call,
the memory of every argument (the gaps between its elements, too), gradients, parameters, buffers and
optimizer state."""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

import gflow as flow
from gflow.compiler import CompileOptions

from .growth import STRUCTURES, environment, grow
from .program import WIDER, Program, TensorSpec, dtype_of, source
from .settings import PIPELINES
from .sizes import TABLES, VARYING, at_call, varying
from .tensors import default_dtype, memory, view, widened

if os.environ.get("GPU_MIRROR"):
    import gpu_mirror  # noqa: F401

Tensor = torch.Tensor


@dataclass
class Seen:
    """What a run left, by name; `error` where it raised, in call `at`."""

    values: dict[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None
    at: int = 0
    stale: str = ""


class Model(torch.nn.Module):
    """A program as a module: parameters and buffers by name, the rest as arguments."""

    def __init__(
        self, program: Program, build: Callable[..., Any], tensors: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.program_text, self.order = build, []
        for spec in program.tensors:
            if spec.role == "parameter" and spec.requires_grad:
                tensors[spec.name] = torch.nn.Parameter(tensors[spec.name].detach())
                self.register_parameter(spec.name, tensors[spec.name])
            elif spec.role in ("buffer", "parameter"):
                self.register_buffer(spec.name, tensors[spec.name])
            if spec.role != "closure":
                self.order.append((spec.name, spec.role == "input"))

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        given = iter(inputs)
        build = self.program_text
        return build(
            *(next(given) if is_input else getattr(self, name) for name, is_input in self.order)
        )


def loss_of(outputs: Sequence[Tensor]) -> Tensor | None:
    """A number that all differentiable outputs take part in; None where none is."""
    total = None
    for o in outputs:
        if not o.requires_grad or not o.numel():
            continue
        if o.is_complex():
            o = torch.view_as_real(o.resolve_conj())
        weights = ((torch.arange(o.numel()) % 8).to(o.dtype) - 3.5).reshape(o.shape) * 0.25
        part = (o * weights).sum() if o.numel() < 100 else (o * weights).mean()
        total = part if total is None else total + part.to(total.dtype)
    return total


def compiled_text(program: Program, wider: bool, closures: dict[str, Tensor]) -> Callable[..., Any]:
    """`build` of the program, with lines that tracebacks can show."""
    text = source(program, WIDER if wider else {})
    name = f"<program {program.seed}{' wider' if wider else ''}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {**environment(), **closures}
    exec(compile(text, name, "exec"), space)
    return space["build"]


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


Step = Callable[[Sequence[Tensor]], "list[Tensor]"]


@dataclass
class _Instance:
    """One run: the tensors that stay, and the step that each call makes."""

    program: Program
    wider: bool
    storages: list[Tensor]
    kept: dict[str, Tensor]
    build: Callable[..., Any]
    model: Model

    def inputs(self, call: int) -> tuple[dict[int, Tensor], list[Tensor]]:
        """(elements of the storages of a call's inputs, the inputs)."""
        program = at_call(self.program, call)
        fresh: dict[int, Tensor] = {}
        given: dict[str, Tensor] = {}
        for spec in program.tensors:
            if spec.role != "input":
                continue
            if spec.same is not None:
                given[spec.name] = given[spec.same]
                continue
            if spec.storage not in fresh:
                made = memory(program.storages[spec.storage], call)
                fresh[spec.storage] = widened(made) if self.wider else made
            alone = sum(s.storage == spec.storage for s in program.tensors) == 1
            if spec.requires_grad and alone:  # a leaf, which an update through a view leaves one
                given[spec.name] = _placed(spec, fresh[spec.storage]).requires_grad_()
                continue
            t = view(spec, fresh[spec.storage])
            given[spec.name] = t.requires_grad_() if spec.requires_grad else t
        return fresh, list(given.values())


def _instance(program: Program, wider: bool) -> _Instance:
    storages = [memory(s) for s in program.storages]
    if wider:
        storages = [widened(s) for s in storages]
    kept = {}
    for spec in program.tensors:
        if spec.role != "input":
            kept[spec.name] = _kept(spec, storages)
    closures = {t.name: kept[t.name] for t in program.tensors if t.role == "closure"}
    build = compiled_text(program, wider, closures)
    return _Instance(program, wider, storages, kept, build, Model(program, build, kept))


def _kept(spec: TensorSpec, storages: list[Tensor]) -> Tensor:
    t = _placed(spec, storages[spec.storage])  # `_end_histories` could not detach a view
    return t.requires_grad_() if spec.requires_grad and spec.role == "closure" else t


def _placed(spec: TensorSpec, elements: Tensor) -> Tensor:
    """The tensor in a storage's memory, and no view of it."""
    t = torch.empty(0, dtype=elements.dtype)
    return t.set_(elements.untyped_storage(), spec.offset, spec.shape, spec.strides)


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    """What gradients are taken by, asked before the program runs: an update makes another input need one, and what
    eager gives for that depends on whether it is a view of what it lies in."""
    found: list[Tensor] = []
    for t in inputs:
        if t.requires_grad and not any(t is f for f in found):
            found.append(t)
    return found


def _gradients(outs: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and gradients of the loss by the inputs that can have one."""
    loss = loss_of(outs)
    if loss is None or not leaves:
        return list(outs)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [*outs, loss, *(g for g in grads if g is not None)]


def _make_optimizer(program: Program, model: Model) -> tuple[Any, Any]:
    name, kwargs = program.settings.optimizer
    optimizer = getattr(torch.optim, name)(list(model.parameters()), **kwargs)
    schedule = None
    if program.settings.schedule is not None:
        kind, more = program.settings.schedule
        schedule = getattr(torch.optim.lr_scheduler, kind)(optimizer, **more)
    return optimizer, schedule


def _narrower(program: Program) -> AbstractContextManager[Any]:
    """Autocast, inside of what is compiled."""
    dtype = program.settings.autocast
    return torch.autocast("cpu", dtype_of(dtype)) if dtype else nullcontext()


def _forward(program: Program, model: Model, wider: bool) -> Step:
    def forward(inputs: Sequence[Tensor]) -> list[Tensor]:
        with nullcontext() if wider else _narrower(program):
            return model(*inputs)

    return forward


def _eager_step(run: _Instance) -> tuple[Step, Any]:
    settings = run.program.settings
    forward = _forward(run.program, run.model, run.wider)
    if settings.amp and not run.wider:
        inner = forward

        def forward(inputs: Sequence[Tensor]) -> list[Tensor]:
            with torch.autocast("cpu", dtype_of(settings.amp)):
                return inner(inputs)

    if settings.mode == "train":
        optimizer, schedule = _make_optimizer(run.program, run.model)

        def train(inputs: Sequence[Tensor]) -> list[Tensor]:
            optimizer.zero_grad()
            outs = forward(inputs)
            loss = loss_of(outs)
            assert loss is not None
            loss.backward()
            outs = [o.detach() for o in outs]  # what lies in a parameter shows the update
            optimizer.step()
            if schedule is not None:
                schedule.step()
            return [*outs, loss]

        return train, optimizer
    if settings.mode == "graph_grad":

        def differentiate(inputs: Sequence[Tensor]) -> list[Tensor]:
            leaves = _leaves(inputs)
            return _gradients(forward(inputs), leaves)

        return differentiate, None
    if settings.grad:
        return lambda inputs: _backward(forward(inputs)), None
    return forward, None


def _backward(outs: list[Tensor]) -> list[Tensor]:
    loss = loss_of(outs)
    if loss is not None:
        loss.backward()
    return outs


class _Graph(flow.nn.Graph):
    """The program as a graph."""

    def __init__(self, run: _Instance, optimizer: Any, schedule: Any) -> None:
        super().__init__()
        self.model = run.model
        self.step = _forward(run.program, run.model, False)
        self.mode = run.program.settings.mode
        if optimizer is not None:
            self.add_optimizer(optimizer, schedule)

    def build(self, *inputs: Tensor) -> list[Tensor]:
        leaves = _leaves(inputs)
        outs = self.step(inputs)
        if self.mode == "train":
            loss = loss_of(outs)
            assert loss is not None
            loss.backward()
            return [*outs, loss]
        return _gradients(outs, leaves) if self.mode == "graph_grad" else outs


def _options(program: Program) -> dict[str, Any]:
    """The compilation's options; with ORACLE_TARGET in the environment, for that target."""
    settings = program.settings
    options: dict[str, Any] = {"threads": settings.threads}
    if target := os.environ.get("ORACLE_TARGET", ""):
        options["target"] = target
    elif settings.pipeline:
        options["pipeline"] = PIPELINES[settings.pipeline]
    return options


def _gflow_step(run: _Instance, engine: str) -> tuple[Step, Any]:
    settings = run.program.settings
    if settings.mode in ("graph", "graph_grad", "train"):
        optimizer, schedule = (None, None)
        if settings.mode == "train":
            optimizer, schedule = _make_optimizer(run.program, run.model)
        graph = _Graph(run, optimizer, schedule)
        graph.config.compile_options = CompileOptions(**_options(run.program))
        for name, value in settings.switches.items():
            getattr(graph.config, name)(value)
        if settings.amp:
            graph.config.enable_amp(dtype=dtype_of(settings.amp))
        if settings.checkpoint:
            run.model.to(flow.nn.graph.GraphModule).activation_checkpointing = True
        return lambda inputs: graph(*inputs), optimizer
    target: Callable[..., Any] = run.model
    if settings.autocast:
        step = _forward(run.program, run.model, False)

        def target(*inputs: Tensor) -> list[Tensor]:
            return step(inputs)

    if engine.startswith("aot"):
        if engine == "aot":
            torch._dynamo.reset()
        call = torch.compile(target, backend="aot_eager")
    elif settings.mode.startswith("dynamo"):
        torch._dynamo.reset()
        call = torch.compile(target, backend="gflow", options=_options(run.program))
    else:
        call = flow.compile(target, **_options(run.program))
    if settings.grad:
        return lambda inputs: _backward(call(*inputs)), None
    return lambda inputs: call(*inputs), None


@contextmanager
def _one_thread(only: bool) -> Iterator[None]:
    """Threads of PyTorch that write to equal indices (`index_put`) race; one thread keeps the last value.

    only: whether there is to be one thread.
    """
    threads = torch.get_num_threads()
    if only:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(
    program: Program, engine: str = "gflow", wider: bool = False,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Seen:  # fmt: skip
    """Run all calls.

    engine: "gflow", "eager", or "aot": TorchDynamo and AOTAutograd without gflow; "aot, sizes known": with what
        TorchDynamo knows of the sizes of earlier programs. wider: in float64, eagerly.
    context: around each step.
    """
    seen = Seen()
    grad = program.settings.grad
    eager = engine == "eager"
    with _quiet(), _one_thread(eager), default_dtype(torch.float64 if wider else torch.float32):
        with torch.set_grad_enabled(grad):
            instance = _instance(program, wider)
            held: list[tuple[int, list[Tensor], list[Tensor]]] = []
            try:
                step, optimizer = _eager_step(instance) if eager else _gflow_step(instance, engine)
                for call in range(program.settings.calls):
                    seen.at = call
                    fresh, inputs = instance.inputs(call)
                    with context():
                        outs = step(inputs)
                    copies = [_strided(o.detach()).clone() for o in outs]
                    held.append((call, list(outs), copies))
                    _note_call(seen, call, copies, fresh, inputs)
                    _end_histories(instance)
            except Exception as error:
                seen.error = error
                return seen
        _note_state(seen, instance, optimizer)
        seen.stale = _stale(held)
    return seen


def _end_histories(instance: _Instance) -> None:
    """A kept tensor that a call updated with values that have a gradient, keeps none: a graph's calls are
    differentiated one by one, where eager's next backward would go on through the last (or raise)."""
    for spec in instance.program.tensors:
        if spec.role != "input" and not spec.requires_grad:
            instance.kept[spec.name].detach_()


def _note_call(
    seen: Seen, call: int, outs: list[Tensor], fresh: dict[int, Tensor], inputs: list[Tensor]
) -> None:
    for i, o in enumerate(outs):
        seen.values[f"call {call}, result {i}"] = o
    for number, elements in fresh.items():
        seen.values[f"call {call}, memory {number}"] = elements.detach().clone()
    for i, t in enumerate(inputs):
        if t.is_leaf and t.grad is not None:
            seen.values[f"call {call}, gradient of input {i}"] = _strided(t.grad.detach()).clone()


def _note_state(seen: Seen, instance: _Instance, optimizer: Any) -> None:
    for name, t in instance.kept.items():
        spec = next(s for s in instance.program.tensors if s.name == name)
        seen.values[f"memory of {name}"] = instance.storages[spec.storage].detach().clone()
        if t.grad is not None and instance.program.settings.mode != "train":
            seen.values[f"gradient of {name}"] = _strided(t.grad.detach()).clone()
    if optimizer is None:
        return
    for i, p in enumerate(instance.model.parameters()):
        for key, value in optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor):
                seen.values[f"optimizer's {key} of parameter {i}"] = value.detach().clone()
    for i, group in enumerate(optimizer.param_groups):
        seen.values[f"learning rate of group {i}"] = torch.tensor(
            float(group["lr"]), dtype=torch.float64
        )


def _bytes(t: Tensor) -> Tensor:
    t = _strided(t.detach())
    return t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _strided(t: Tensor) -> Tensor:
    """A gradient as a dense tensor: that of a table may be sparse in either run."""
    return t if t.layout == torch.strided else t.to_dense()


def _stale(held: list[tuple[int, list[Tensor], list[Tensor]]]) -> str:
    """A result of an earlier call that a later one changed."""
    for call, outs, copies in held:
        for i, (now, before) in enumerate(zip(outs, copies)):
            if not torch.equal(_bytes(now), _bytes(before)):
                return f"call {call}, result {i} was changed by a later call"
    return ""


def program_of(seed: int) -> Program:
    """The program of a seed. From `VARYING` on its sizes vary, if eager runs it with others; from `STRUCTURES` up to
    `TABLES`, of every third."""
    program = grow(seed)
    if seed < VARYING or program.raises or (STRUCTURES <= seed < TABLES and seed % 3):
        return program
    return varying(program, lambda candidate: run(candidate, "eager").error is None)
