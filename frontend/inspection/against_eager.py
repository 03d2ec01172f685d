"""Compares a step with eager: `graph.config.check_against_eager(every=N)`.

A checked step runs three times from one state: as the compiled program; as the traced ATen ops, one by one, by
PyTorch; and as the user's own `build()` and optimizers, eagerly. All observable effects are compared: results, and
every tensor that the step updates. The state of the compiled program is kept.

Differences within rounding of the type in which the step computes are not reported. If tolerances do not decide, the
traced ops run again (`noise.py`): an element is accepted that is as near to their values in float64 as eager's is, or
within the range of runs with random rounding errors. `build()` itself is compared with the traced ops.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from gflow.call.plans.plan import Plan
from gflow.dialects.records import record
from gflow.errors import EagerMismatch, GraphError
from gflow.execution.executor import compile_trace
from gflow.runtime.interrupts import held
from gflow.tracing.context.location import user_frame
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import OutputRef, TailRef, TraceOp, TraceOutput, TraceValue
from gflow.tracing.dispatch.recorder import describe
from gflow.tracing.optimizers.scaler import eager_steps, prepare
from gflow.tracing.program.interpreter import TailSteps, run_trace
from gflow.tracing.request import TraceRequest
from gflow.tracing.tracer import trace_graph

from .noise import Exact, Noise
from .step_state import Memory, PythonState

Tensor = torch.Tensor

#: by the narrowest type of the computation: the allowed difference of elements, as a share of the largest
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_AMP = {"f16": torch.float16, "bf16": torch.bfloat16}
_TRIALS = 6
#: types of results that are compared by their text: NaN equals itself, and 0.0 differs from -0.0
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


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
    """A difference from eager. value: the value of the trace that differs. raised: whether eager mode raises."""

    name: str
    value: TraceValue | None
    text: str
    raised: bool = False


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
        python = PythonState(graph, call)
        # `build()` may update others than those that it was traced with
        around = [t for _, t in python.tensors]
        before = Memory([*arguments, *_state_tensors(state.optimizers), *around])
        result = plan.run(call.leaves, state)
        after = Memory(before.tensors)
        results = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        found = [t.clone() for t in results]
        # what lies in an argument, such as a returned parameter, is compared with the argument
        apart = [None if before.has(t) else own for t, own in zip(results, found)]
        difference = _against_trace(plan, before, arguments, apart)
        said = "the traced ops, run one by one,"
        if difference is None and _runs_eagerly(state, plan.trace):
            with _as_before(before, after, python, graph, call):
                difference = _against_build(
                    plan, before, after, arguments, result, found, graph, python, eager
                )
            said = "build()"
        if difference is None:
            return result
        text = _message(plan, before, arguments, difference, said, where, state)
        if said == "build()" and not difference.raised:
            with _as_before(before, after, python, graph, call):
                text += _changed_op(plan.trace, graph, call)
    if check.on_difference == "raise":
        raise EagerMismatch(text)
    warnings.warn_explicit(text, UserWarning, *user_frame())
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
        if _is_random(op):
            raise GraphError(
                f"{where}: check_against_eager() cannot compare a step with random numbers, and "
                f"{describe(op.loc)} draws some ({op.func}), which the comparison would draw anew. Call .eval() on "
                "dropout, or make the numbers outside and pass them in."
            )


def _is_random(op: TraceOp) -> bool:
    """Whether an op draws random numbers; attention without dropout draws none."""
    if torch.Tag.nondeterministic_seeded not in op.func.tags:
        return False
    for n, argument in enumerate(op.func._schema.arguments):
        if argument.name == "dropout_p":
            given = op.args[n] if n < len(op.args) else op.kwargs.get("dropout_p", 0.0)
            return bool(given != 0.0)
    return True


def _state_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        yield from (
            t for t in tree_leaves(dict(optimizer.state)) if isinstance(t, Tensor) and t.numel()
        )


def _runs_eagerly(state: Any, trace: Trace) -> bool:
    """Whether `build()` and the optimizers make the whole step in eager mode. Gradients that `build()` unscales, and
    rows of sparse optimizers, are a graph's alone."""
    return not (state.sparse or trace.unscaled)


# -- comparison


def _amp(plan: Plan) -> torch.dtype | None:
    """The type of `enable_amp()`; None without it."""
    return _AMP.get(getattr(getattr(plan.compiled.options, "passes", None), "amp", ""))


def _narrowest(plan: Plan) -> torch.dtype:
    """The narrowest float type that the step computes in."""
    amp = _amp(plan)
    values = [r for op in plan.trace.ops for r in op.results if r is not None]
    found = {v.dtype for v in values} | {
        i.value.dtype for i in plan.trace.inputs if i.role != "scalar"
    }
    found |= {amp} if amp is not None else set()
    order = (torch.bfloat16, torch.float16, torch.float32, torch.complex64)
    narrow = next((d for d in order if d in found), torch.float64)
    return torch.float32 if narrow == torch.complex64 else narrow


def mismatches(
    a: Tensor, b: Tensor, computed: torch.dtype, of_elements: bool = False
) -> Tensor | None:
    """A mask of the elements that differ between `a` and `b`; None if none does. of_elements: whether the tolerance is
    a share of each element, besides a few roundings of the largest, instead of a share of the largest."""
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not a.is_floating_point():
        wrong = a != b
    else:
        own = max(TOLERANCE[computed], TOLERANCE.get(b.dtype, 0.0))
        sizes = b.double().abs().masked_fill(~b.isfinite(), 0.0)
        largest = sizes.max() if b.numel() else 0.0
        few = 8 * torch.finfo(computed).eps
        allowed = own * sizes + few * largest if of_elements else own * largest
        wrong = ~(_apart(a, b) <= allowed)
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
    runs: _Runs,
    of_build: bool = False,
) -> Difference | None:
    """The first pair that differs by more than rounding. of_build: whether the second tensors are those of `build()`,
    instead of the traced ops."""
    for n, (name, value, a, b) in enumerate(pairs):
        if value is None and _selects(n, a, b, computed, runs):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            text = f"{a.dtype}{list(a.shape)}, and {b.dtype}{list(b.shape)} eagerly"
            return Difference(name, value, text)
        for of_elements, times in ((False, 8), (True, 64)):
            wrong = mismatches(a, b, computed, of_elements)
            if wrong is None:
                continue
            if of_build:  # it has the rounding errors of the traced ops, which were compared
                differs = mismatches(runs.plain[n], b, computed, of_elements)
                wrong = torch.zeros_like(wrong) if differs is None else wrong & differs
            elif runs.exact is not None and a.is_floating_point():  # as near as eager is
                exact = runs.exact[n]
                wrong = wrong & ~(_apart(a, exact) <= 8 * _apart(b, exact))
            if wrong.any():
                center = a if of_build else b
                wrong = wrong & ~_within(a, b, center, [t[n] for t in runs.trials], times)
            if wrong.any():
                return Difference(name, value, _text(a, b, wrong))
    return None


def _selects(n: int, a: Tensor, b: Tensor, computed: torch.dtype, runs: _Runs) -> bool:
    """Whether rounding decides how many values a result has that differs: other runs give it other shapes."""
    if (a.shape, a.dtype) == (b.shape, b.dtype) and mismatches(a, b, computed, True) is None:
        return False
    return any(run[n].shape != a.shape for run in (runs.plain, *runs.trials))


def _within(a: Tensor, b: Tensor, center: Tensor, trials: Sequence[Tensor], times: float) -> Tensor:
    """Elements of `a` that are as near to `b` as runs with other rounding errors are to `center`, by a factor."""
    a, b, center, *trials = (
        torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        for t in (a, b, center, *trials)
    )
    if not b.is_floating_point():
        return torch.stack([t != center for t in trials]).any(0)
    spread = torch.stack([_apart(t, center) for t in trials])
    return _apart(a, b) <= times * spread.amax(0)


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """The distances of elements; 0 where both are NaN or the same infinity."""
    same = (a == b) | (a.isnan() & b.isnan())
    return (a.double() - b.double()).abs().nan_to_num(torch.inf).masked_fill(same, 0.0)


class _Runs:
    """Other runs of the traced ops, each made when it is first asked for.

    Args:
        trace: the plan's trace, or a part of it.
        part: what of the outputs of a run is compared.
    """

    def __init__(
        self, plan: Plan, trace: Trace, before: Memory, arguments: Sequence[Tensor],
        part: Callable[[list[Tensor]], list[Tensor]] = lambda run: run,
    ) -> None:  # fmt: skip
        self._plan, self._part = plan, part
        self._trace = trace
        self._arguments = lambda: before.copies(arguments)

    def _run(self, mode: AbstractContextManager[Any]) -> list[Tensor]:
        """The results of the program, then of its tail."""
        given, tail = self._arguments(), self._trace.tail
        with mode:
            run = run_trace(self._trace, given)
            if tail is not None:
                at = {entry.value: n for n, entry in enumerate(self._trace.inputs)}
                run = run + TailSteps(tail).run(tail.operands(at, given, run), None)
            return self._part(run)

    @cached_property
    def plain(self) -> list[Tensor]:
        return self._run(nullcontext())

    @cached_property
    def trials(self) -> list[list[Tensor]]:
        """Runs with random rounding errors."""
        amp = _amp(self._plan)
        narrow = "" if amp is None else str(amp).removeprefix("torch.")
        return [self._run(Noise(seed, 1.0 + seed % 2, narrow)) for seed in range(_TRIALS)]

    @cached_property
    def exact(self) -> list[Tensor] | None:
        """The run in float64; None if an op has no such kernel."""
        try:
            return self._run(Exact())
        except (RuntimeError, NotImplementedError):  # of PyTorch, for types
            return None


def _returned(trace: Trace) -> list[OutputRef | TailRef]:
    """The tensors that `build()` returns, in order."""
    return [leaf for leaf in trace.out_leaves if isinstance(leaf, (OutputRef, TailRef))]


def _pairs(
    plan: Plan,
    arguments: Sequence[Tensor],
    found: Sequence[Tensor | None],
    wanted: Sequence[Tensor],
) -> Any:
    """(name, value, compiled, eager) of the program's results, then of updates, by the outputs of the trace."""
    trace = plan.trace
    ours = {
        leaf.index: (place, t)
        for place, (leaf, t) in enumerate(zip(_returned(trace), found))
        if isinstance(leaf, OutputRef) and t is not None
    }
    for n, output in enumerate(trace.outputs):
        if output.alias is not None:
            given = trace.inputs[output.alias]
            yield f"{given.role} {given.name!r}", output.value, arguments[output.alias], wanted[n]
        elif n in ours:
            place, own = ours[n]
            yield f"result {place}", output.value, own, wanted[n]


def _against_trace(
    plan: Plan, before: Memory, arguments: Sequence[Tensor], found: Sequence[Tensor | None]
) -> Difference | None:
    trace = plan.trace
    wanted = run_trace(trace, before.copies(arguments))
    pairs = list(_pairs(plan, arguments, found, wanted))

    runs = _Runs(
        plan, trace, before, arguments,
        lambda run: [p[3] for p in _pairs(plan, arguments, found, run)],
    )  # fmt: skip
    return _first_difference(pairs, _narrowest(plan), runs)


@contextmanager
def _as_before(
    before: Memory, after: Memory, python: PythonState, graph: Any, call: BoundCall
) -> Iterator[None]:
    """Within, the state is that before the step."""
    state = graph.__dict__["_state"]
    now = PythonState(graph, call)
    try:
        before.restore()
        python.restore()
        now.clear_gradients()
        state.building = True
        yield
    finally:
        with held():  # an interrupt waits
            state.building = False
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


def _eager_steps(scaler: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """The optimizers' steps after a backward without a scaled loss."""
    active = scaler if prepare(scaler, []) else None
    if active is not None:
        scale = (
            active.get_scale() if isinstance(active, torch.amp.GradScaler) else active.scale_factor
        )
        parameters = {p: None for o in optimizers for g in o.param_groups for p in g["params"]}
        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad * scale
    eager_steps(active, optimizers)


def _against_build(
    plan: Plan, before: Memory, after: Memory, arguments: Sequence[Tensor], result: Any, found: Sequence[Tensor],
    graph: Any, python: PythonState, eager: Callable[[], Any],
) -> Difference | None:  # fmt: skip
    """The first difference between a step that was made and `build()` with the optimizers' steps, which run here."""
    state, trace = graph.__dict__["_state"], plan.trace
    places = _places(graph)
    try:
        wanted = eager()
        _eager_steps(state.scaler, state.optimizers)
    except Exception as error:  # whatever the author's code raises: the step did not
        raised = f"eagerly it raises {type(error).__name__}: {error}"
        return Difference("build()", None, raised, True)
    # after the updates, since a result may be a parameter, or a view of one
    returned = [t.detach().clone() for t in tree_leaves(wanted) if isinstance(t, Tensor)]
    outputs = trace.outputs
    values = [
        leaf.index + (len(outputs) if isinstance(leaf, TailRef) else 0) for leaf in _returned(trace)
    ]
    if (difference := _of_python(result, wanted)) is not None:
        return difference
    pairs: list[tuple[str, TraceValue | None, Tensor, Tensor]] = [
        (f"result {n}", outputs[values[n]].value if values[n] < len(outputs) else None, a, b)
        for n, (a, b) in enumerate(zip(found, returned))
    ]
    written = {o.alias: o.value for o in outputs if o.alias is not None}
    kept = {id(buffer) for _, buffer in trace.kept}
    made = after.copies(arguments)
    compared = [
        n for n, i in enumerate(trace.inputs) if i.role != "scalar" and id(i.tensor) not in kept
    ]
    for n in compared:
        given, now = trace.inputs[n], _now(arguments[n], places).detach().clone()
        pairs.append((f"{given.role} {given.name!r}", written.get(n), made[n], now))
    own = {t.untyped_storage().data_ptr() for t in (*arguments, *(b for _, b in trace.kept))}
    rest = [(n, t) for n, t in python.tensors if t.untyped_storage().data_ptr() not in own]
    for (name, t), a in zip(rest, after.copies([t for _, t in rest])):
        pairs.append((name, None, a, t.detach().clone()))

    def of(run: list[Tensor]) -> list[Tensor]:
        states = dict(zip((o.alias for o in outputs), run))
        some = [run[i] for i in values] + [states.get(n, made[n]) for n in compared]
        return some + [a for _, _, a, _ in pairs[len(some) :]]

    runs = _Runs(plan, trace, before, arguments, of)
    return _first_difference(pairs, _narrowest(plan), runs, of_build=True)


def _of_python(result: Any, wanted: Any) -> Difference | None:
    """The first difference of results in structure, and in what is no tensor."""
    found, spec = tree_flatten(result)
    leaves, eager_spec = tree_flatten(wanted)
    kinds = [[isinstance(x, Tensor) for x in of] for of in (found, leaves)]
    if spec != eager_spec or kinds[0] != kinds[1]:
        return Difference(
            "what build() returns", None, f"{_shown(result)}, and {_shown(wanted)} eagerly"
        )
    for n, (a, b) in enumerate(zip(found, leaves)):
        plain = isinstance(a, _PLAIN) or isinstance(b, _PLAIN)
        if plain and (type(a) is not type(b) or repr(a) != repr(b)):
            return Difference(f"leaf {n} of the result", None, f"it is {a!r}, and {b!r} eagerly")
    return None


def _shown(result: Any) -> str:
    """The structure of a result as text."""
    return str(tree_map(lambda x: "tensor" if isinstance(x, Tensor) else x, result))


# -- finding the op


def _first_op(
    plan: Plan, before: Memory, arguments: Sequence[Tensor]
) -> tuple[TraceOp, str] | None:
    """The first op whose result differs, found with a program that returns all intermediate results, compiled with the
    same options."""
    values = [r for op in plan.trace.ops for r in op.results if r is not None and not r.is_number]
    if not values:
        return None
    whole = replace(
        plan.trace, outputs=[TraceOutput(v, None, f"value {v.id}") for v in values], kept=[]
    )
    whole = replace(
        whole, out_leaves=[OutputRef(n) for n in range(len(values))], out_spec=None, tail=None
    )
    found = compile_trace(whole, plan.compiled.options).run(before.copies(arguments))
    wanted = run_trace(whole, before.copies(arguments))
    pairs = [(str(v.id), v, a, b) for v, a, b in zip(values, found, wanted)]
    runs = _Runs(plan, whole, before, arguments)
    first = _first_difference(pairs, _narrowest(plan), runs)
    if first is None or first.value is None:
        return None
    maker = _maker(plan.trace, first.value)
    return None if maker is None else (maker, first.text)


def _maker(trace: Trace, value: TraceValue) -> TraceOp | None:
    return next((op for op in trace.ops if value in op.results), None)


def _message(
    plan: Plan, before: Memory, arguments: Sequence[Tensor], difference: Difference, said: str, where: str, state: Any
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
        now = trace_graph(
            TraceRequest(
                state.name,
                call,
                state.table,
                state.optimizers,
                state.scaler,
                sparse=state.sparse,
                tail=trace.tail is not None,
            )
        )
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
