"""Compares a step with eager: `graph.config.check_against_eager(every=N)`.

A checked step runs three times from one state: as the compiled program; as the traced ATen ops, one by one, by
PyTorch; and as the user's own `build()` and optimizers, eagerly. All observable effects are compared: results, and
every tensor that the step updates. The state of the compiled program is kept.

Differences within rounding of the type in which the step computes are not reported. If tolerances do not decide, the
traced ops run again with random rounding errors (`noise.py`): an element within their range is accepted.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gflow.call.plans.plan import Plan
from gflow.dialects.records import record
from gflow.errors import EagerMismatch, GraphError
from gflow.execution.executor import compile_trace
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import OutputRef, TailRef, TraceOp, TraceOutput, TraceValue
from gflow.tracing.dispatch.recorder import describe
from gflow.tracing.program.interpreter import run_tail, run_trace
from gflow.tracing.request import TraceRequest
from gflow.tracing.tracer import trace_graph

from .noise import Noise

Tensor = torch.Tensor

#: by the narrowest type of the computation: the allowed difference of elements, as a share of the largest
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_AMP = {"f16": torch.float16, "bf16": torch.bfloat16}
_TRIALS = 6


@record
class EagerCheck:
    """How often steps are checked, and whether a difference raises or warns."""

    every: int
    on_difference: str = "raise"

    def is_due(self, steps: int) -> bool:
        """Whether the step after `steps` others is checked."""
        return steps % self.every == 0


@record
class Difference:
    """A difference from eager. value: the value of the trace that differs."""

    name: str
    value: TraceValue | None
    text: str


class _Memory:
    """The memory of tensors at one time, including aliases and gaps."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self.tensors}
        self.saved = {at: storage.clone() for at, storage in self.storages.items()}

    def restore(self) -> None:
        """Restore the memory."""
        for at, storage in self.storages.items():
            storage.copy_(self.saved[at])

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of the tensors at that time, in new memory; tensors that shared memory still do."""
        fresh = {at: storage.clone() for at, storage in self.saved.items()}
        return [_like(t, fresh[t.untyped_storage().data_ptr()]) for t in tensors]


def _like(t: Tensor, storage: Any) -> Tensor:
    empty = torch.empty(0, dtype=t.dtype, device=t.device)
    return empty.set_(storage, t.storage_offset(), t.shape, t.stride())


def checked_step(check: EagerCheck, plan: Plan, call: BoundCall, graph: Any, where: str) -> Any:
    """`plan.run` for a call of a graph, compared with eager. where: the user's line.

    Raises:
        EagerMismatch: there is a difference, and the check raises.
        GraphError: a step of this kind cannot be compared.
    """
    _comparable(plan, where)
    state = graph.__dict__["_state"]
    arguments = plan.arguments.copy()
    for position, leaf in plan.input_slots:
        arguments[position] = call.leaves[leaf]
    grad = bool(state.optimizers) or torch.is_grad_enabled()

    def eager() -> Any:
        with torch.set_grad_enabled(grad):
            return call.build(*call.args, **call.kwargs)

    with torch.no_grad():
        before = _Memory([*arguments, *_state_tensors(state.optimizers)])
        python = _Python(state)
        result = plan.run(call.leaves, state)
        after = _Memory(before.tensors)
        found = [t.clone() for t in tree_leaves(result) if isinstance(t, Tensor)]
        difference = _against_trace(plan, before, arguments, found)
        said = "the traced ops, run one by one,"
        if difference is None and _runs_eagerly(state):
            difference = _against_build(plan, before, after, arguments, found, graph, python, eager)
            said = "build()"
    if difference is not None:
        text = _message(plan, before, arguments, difference, said, where, state)
        if said == "build()":
            text += _changed_op(plan.trace, graph, call)
        if check.on_difference == "raise":
            raise EagerMismatch(text)
        warnings.warn(text, stacklevel=3)
    return result


def _comparable(plan: Plan, where: str) -> None:
    trace = plan.trace
    if trace.parts is not None or trace.size is not None:
        what = "set_gradient_accumulation_steps()" if trace.parts is not None else "dynamic_dim()"
        raise GraphError(
            f"{where}: check_against_eager() cannot compare a graph with {what}; leave one of the two out."
        )
    if any(a.pieces is not None for a in plan.compiled.program.arguments):
        raise GraphError(
            f"{where}: check_against_eager() cannot compare a step whose tensors are sharded over ranks "
            "(enable_zero()); leave one of the two out."
        )
    for op in trace.ops:
        if torch.Tag.nondeterministic_seeded in op.func.tags:
            raise GraphError(
                f"{where}: check_against_eager() cannot compare a step with random numbers, and "
                f"{describe(op.loc)} draws some ({op.func}): a graph has numbers of its own. Call .eval() on "
                "dropout, or make the numbers outside and pass them in."
            )


def _state_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        yield from (
            t for t in tree_leaves(dict(optimizer.state)) if isinstance(t, Tensor) and t.numel()
        )


def _runs_eagerly(state: Any) -> bool:
    """Whether a step consists only of `build()`, backward and `optimizer.step()`."""
    groups = [g for o in state.optimizers for g in o.param_groups]
    clipped = any(g.get("clip_grad_max_norm") is not None for g in groups)
    return state.scaler is None and not state.sparse and not clipped


class _Python:
    """The Python state that a step changes: optimizers' numbers, gradients, attributes."""

    def __init__(self, state: Any) -> None:
        self.optimizers = state.optimizers
        self.numbers = self._numbers()

    def _numbers(self) -> list[Any]:
        plain = []
        for o in self.optimizers:
            groups = [
                {k: copy.copy(v) for k, v in g.items() if k != "params"} for g in o.param_groups
            ]
            states = {p: dict(s) for p, s in o.state.items()}
            plain.append((groups, states))
        return plain

    def restore(self) -> None:
        for o, (groups, states) in zip(self.optimizers, self.numbers):
            for group, saved in zip(o.param_groups, groups):
                for key in [k for k in group if k != "params" and k not in saved]:
                    del group[key]
                group.update(saved)
            for p, saved in states.items():
                o.state[p].clear()
                o.state[p].update(saved)
            for p in [p for p in o.state if p not in states]:
                del o.state[p]


# -- comparison


def _narrowest(plan: Plan) -> torch.dtype:
    """The narrowest float type that the step computes in."""
    amp = _AMP.get(getattr(getattr(plan.compiled.options, "passes", None), "amp", ""))
    values = [r for op in plan.trace.ops for r in op.results if r is not None]
    found = {v.dtype for v in values} | {
        i.value.dtype for i in plan.trace.inputs if i.role != "scalar"
    }
    found |= {amp} if amp is not None else set()
    order = (torch.bfloat16, torch.float16, torch.float32, torch.complex64)
    narrow = next((d for d in order if d in found), torch.float64)
    return torch.float32 if narrow == torch.complex64 else narrow


def mismatches(a: Tensor, b: Tensor, computed: torch.dtype) -> Tensor | None:
    """A mask of the elements that differ between `a` and `b`; None if none does."""
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not a.is_floating_point():
        wrong = a != b
    else:
        own = max(TOLERANCE[computed], TOLERANCE.get(b.dtype, 0.0))
        finite = b[b.isfinite()].double().abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        same = (a == b) | (a.isnan() & b.isnan())
        wrong = ~(same | ((a.double() - b.double()).abs() <= own * scale))
    return wrong if bool(wrong.any()) else None


def _text(a: Tensor, b: Tensor, wrong: Tensor) -> str:
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    at = tuple(wrong.nonzero()[0].tolist())
    count = f"{int(wrong.sum())} of {wrong.numel()} elements"
    return f"{count}; at {list(at)} it is {a[at].item():.6g}, and {b[at].item():.6g} eagerly"


def _first_difference(
    pairs: Sequence[tuple[str, TraceValue | None, Tensor, Tensor]],
    computed: torch.dtype,
    noisy: Callable[[], list[list[Tensor]]],
    noise_of: int = 3,
) -> Difference | None:
    """The first pair that differs by more than rounding. noisy: runs with noise, of the second tensors of the pairs,
    or of the first if `noise_of` is 2."""
    trials: list[list[Tensor]] | None = None
    for n, pair in enumerate(pairs):
        name, value, a, b = pair
        center = b if noise_of == 3 else a
        if a.shape != b.shape and value is None:  # rounding may decide how many values are selected
            trials = noisy() if trials is None else trials
            if any(t[n].shape != center.shape for t in trials):
                continue
        if a.shape != b.shape or a.dtype != b.dtype:
            text = f"{a.dtype}{list(a.shape)}, and {b.dtype}{list(b.shape)} eagerly"
            return Difference(name, value, text)
        wrong = mismatches(a, b, computed)
        if wrong is None:
            continue
        trials = noisy() if trials is None else trials
        wrong = wrong & ~_within(a, b, center, [t[n] for t in trials])
        if wrong.any():
            return Difference(name, value, _text(a, b, wrong))
    return None


def _within(a: Tensor, b: Tensor, center: Tensor, trials: Sequence[Tensor]) -> Tensor:
    """Elements of `a` that are as near to `b` as runs with other rounding errors are to `center`."""
    if any(t.shape != center.shape for t in trials):
        return torch.ones((), dtype=torch.bool)
    a, b, center, *trials = (
        torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        for t in (a, b, center, *trials)
    )
    if not b.is_floating_point():
        return torch.stack([t != center for t in trials]).any(0)
    spread = torch.stack(
        [(t.double() - center.double()).abs().nan_to_num(torch.inf) for t in trials]
    )
    return (a.double() - b.double()).abs().nan_to_num(torch.inf) <= 8 * spread.amax(0)


def _noisy(trace: Trace, before: _Memory, arguments: Sequence[Tensor]) -> list[list[Tensor]]:
    """The results of the program, then of its tail, in runs with noise."""
    runs = []
    for seed in range(_TRIALS):
        with Noise(seed, 1.0 + seed % 2):
            given = before.copies(arguments)
            run = run_trace(trace, given)
            if (tail := trace.tail) is not None:
                at = {entry.value: n for n, entry in enumerate(trace.inputs)}
                read = {v: given[at[v]] for v in tail.arguments}
                read |= {v: run[n] for v, n in tail.outputs.items()}
                run = run + run_tail(tail, read, None)
            runs.append(run)
    return runs


def _returned(trace: Trace) -> list[OutputRef | TailRef]:
    """The tensors that `build()` returns, in order."""
    return [leaf for leaf in trace.out_leaves if isinstance(leaf, (OutputRef, TailRef))]


def _pairs(
    plan: Plan, arguments: Sequence[Tensor], found: Sequence[Tensor], wanted: Sequence[Tensor]
) -> Any:
    """(name, value, compiled, eager) of the program's results, then of updates, by the outputs of the trace."""
    trace = plan.trace
    returned = [leaf.index for leaf in _returned(trace) if isinstance(leaf, OutputRef)]
    own = [t for t, leaf in zip(found, _returned(trace)) if isinstance(leaf, OutputRef)]
    ours = dict(zip(returned, own))
    for n, output in enumerate(trace.outputs):
        if output.alias is not None:
            given = trace.inputs[output.alias]
            yield f"{given.role} {given.name!r}", output.value, arguments[output.alias], wanted[n]
        elif n in ours:
            yield f"result {returned.index(n)}", output.value, ours[n], wanted[n]


def _against_trace(
    plan: Plan, before: _Memory, arguments: Sequence[Tensor], found: Sequence[Tensor]
) -> Difference | None:
    trace = plan.trace
    wanted = run_trace(trace, before.copies(arguments))
    pairs = list(_pairs(plan, arguments, found, wanted))

    def noisy() -> list[list[Tensor]]:
        runs = _noisy(trace, before, arguments)
        return [[p[3] for p in _pairs(plan, arguments, found, run)] for run in runs]

    return _first_difference(pairs, _narrowest(plan), noisy)


@contextmanager
def _as_before(before: _Memory, after: _Memory, python: _Python, graph: Any) -> Iterator[None]:
    """Within, the state is that before the step."""
    state = graph.__dict__["_state"]
    now = _Python(state)
    parameters = [p for o in state.optimizers for g in o.param_groups for p in g["params"]]
    gradients = [(p, p.grad) for p in parameters]
    holders = [
        (h, dict(h)) for m in state.table.modules for h in (m._parameters, m._buffers, m.__dict__)
    ]
    holders.append((graph.__dict__, dict(graph.__dict__)))
    before.restore()
    python.restore()
    for p in parameters:
        p.grad = None
    state.building = True
    try:
        yield
    finally:
        state.building = False
        for holder, saved in holders:
            holder.clear()
            holder.update(saved)
        for p, grad in gradients:
            p.grad = grad
        now.restore()
        after.restore()


Places = dict[int, tuple[dict[str, Any], str]]


def _places(graph: Any) -> Places:
    """Attributes that hold tensors, by the ids of the tensors: `build()` may assign others to them."""
    modules = graph.__dict__["_state"].table.modules
    holders = [h for m in modules for h in (m._parameters, m._buffers, m.__dict__)]
    return {
        id(t): (h, k)
        for h in [*holders, graph.__dict__]
        for k, t in h.items()
        if isinstance(t, Tensor)
    }


def _now(tensor: Tensor, places: Places) -> Tensor:
    """The current tensor: that of the attribute which held it, or the tensor itself."""
    holder, key = places.get(id(tensor), ({}, ""))
    held = holder.get(key, tensor)
    fits = isinstance(held, Tensor) and (held.shape, held.dtype) == (tensor.shape, tensor.dtype)
    return held if fits else tensor


def _step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()` without its hooks, which have run already."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = {name: getattr(optimizer, name) for name in names}
    try:
        for name, registered in hooks.items():
            setattr(optimizer, name, type(registered)())
        optimizer.step()
    finally:
        for name, registered in hooks.items():
            setattr(optimizer, name, registered)


def _against_build(
    plan: Plan, before: _Memory, after: _Memory, arguments: Sequence[Tensor], found: Sequence[Tensor],
    graph: Any, python: _Python, eager: Callable[[], Any],
) -> Difference | None:  # fmt: skip
    state = graph.__dict__["_state"]
    places = _places(graph)
    with _as_before(before, after, python, graph):
        returned = [t.detach().clone() for t in tree_leaves(eager()) if isinstance(t, Tensor)]
        for optimizer in state.optimizers:
            _step_without_hooks(optimizer)
        updated = [_now(a, places).detach().clone() for a in arguments]
    outputs = plan.trace.outputs
    values = [
        leaf.index + (len(outputs) if isinstance(leaf, TailRef) else 0)
        for leaf in _returned(plan.trace)
    ]
    pairs: list[tuple[str, TraceValue | None, Tensor, Tensor]] = []
    if len(returned) != len(found):
        return Difference(
            "what build() returns", None, f"{len(found)} tensors, and {len(returned)} eagerly"
        )
    for n, (a, b) in enumerate(zip(found, returned)):
        late = values[n] >= len(outputs)
        pairs.append((f"result {n}", None if late else outputs[values[n]].value, a, b))
    written = {o.alias: o.value for o in outputs if o.alias is not None}
    kept = {id(buffer) for _, buffer in plan.trace.kept}
    for n, (given, b) in enumerate(zip(plan.trace.inputs, updated)):
        if given.role != "scalar" and id(given.tensor) not in kept:
            pairs.append((f"{given.role} {given.name!r}", written.get(n), arguments[n], b))

    def noisy() -> list[list[Tensor]]:
        runs = []
        for run in _noisy(plan.trace, before, arguments):
            states = dict(zip((o.alias for o in outputs), run))
            rest = [
                n
                for n, i in enumerate(plan.trace.inputs)
                if i.role != "scalar" and id(i.tensor) not in kept
            ]
            runs.append([run[i] for i in values] + [states.get(n, updated[n]) for n in rest])
        return runs

    return _first_difference(pairs, _narrowest(plan), noisy, noise_of=2)


# -- finding the op


def _first_op(
    plan: Plan, before: _Memory, arguments: Sequence[Tensor]
) -> tuple[TraceOp, str] | None:
    """The first op whose result differs, found with a program that returns all intermediate results, compiled with the
    same options."""
    values = [r for op in plan.trace.ops for r in op.results if r is not None and not r.is_number]
    if not values:
        return None
    whole = replace(
        plan.trace, outputs=[TraceOutput(v, None, f"value {v.id}") for v in values], kept=[]
    )
    whole = replace(whole, out_leaves=[OutputRef(n) for n in range(len(values))], out_spec=None)
    found = compile_trace(whole, plan.compiled.options).run(before.copies(arguments))
    wanted = run_trace(whole, before.copies(arguments))
    pairs = [(str(v.id), v, a, b) for v, a, b in zip(values, found, wanted)]
    first = _first_difference(pairs, _narrowest(plan), lambda: _noisy(whole, before, arguments))
    if first is None or first.value is None:
        return None
    maker = _maker(plan.trace, first.value)
    return None if maker is None else (maker, first.text)


def _maker(trace: Trace, value: TraceValue) -> TraceOp | None:
    return next((op for op in trace.ops if value in op.results), None)


def _message(
    plan: Plan, before: _Memory, arguments: Sequence[Tensor], difference: Difference, said: str, where: str, state: Any
) -> str:  # fmt: skip
    text = f"{where}: step {state.call.steps} of {state.name} is not what {said} gives: {difference.name} differs "
    text += f"({difference.text}). "
    if said == "build()":
        text += "What was traced agrees: build() depends on something that has changed since and is no part of the "
        return text + "signature, such as a Python value; pass it as an argument."
    with torch.no_grad():
        first = _first_op(plan, before, arguments)
    if first is not None:
        op, found = first
        return text + f"The first op that parts is {op.func}, {describe(op.loc)}: {found}."
    maker = None if difference.value is None else _maker(plan.trace, difference.value)
    if maker is not None:
        text += f"Made alone, no op parts, so it lies in how ops are joined or placed; it is made by {maker.func}, "
        text += f"{describe(maker.loc)}."
    return text


def _changed_op(trace: Trace, graph: Any, call: BoundCall) -> str:
    """The first op that `build()` executes now but did not when it was traced, or no longer executes."""
    state = graph.__dict__["_state"]
    state.building = True
    try:
        request = TraceRequest(state.name, call, state.table, state.optimizers)
        now = trace_graph(replace(request, tail=trace.tail is not None))
    finally:
        state.building = False
    for old, new in zip(trace.ops, now.ops):
        if _plain(old) != _plain(new):
            what = f"{_words(new)} now, and {_words(old)} then"
            return f" The first op that parts is {new.func}, {describe(new.loc)}: {what}."
    return ""


def _plain(op: TraceOp) -> tuple[Any, ...]:
    return (op.func, _words(op))


def _words(op: TraceOp) -> str:
    """An op as text with its numbers; tensors by their shapes."""

    def word(arg: Any) -> str:
        if isinstance(arg, TraceValue):
            return str(list(arg.shape))
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(word, arg))}]"
        return repr(arg)

    words = [*map(word, op.args), *(f"{k}={word(v)}" for k, v in op.kwargs.items())]
    return f"{op.func.overloadpacket.__name__}({', '.join(words)})"
