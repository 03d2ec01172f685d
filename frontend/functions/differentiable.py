"""Calls of a compiled module or function that need gradients: one program for the call and one for its
backward, both from one trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from gflow.call.dynamic.automatic import NoRange
from gflow.call.first_step import FirstStep
from gflow.call.plans.cache import join_results, share_buffers, use_arena
from gflow.call.plans.expected import describe_call
from gflow.call.plans.plan import Plan
from gflow.call.programs import is_refusal
from gflow.call.result_views import views_of, with_views
from gflow.call.signature import check_tensors
from gflow.call.watchers import building
from gflow.dialects.records import record
from gflow.errors import GraphError, GraphTraceError
from gflow.execution.executor import Compiled, compile_trace
from gflow.graph import Graph
from gflow.guards.build import Reading
from gflow.runtime.seeds import Seeds
from gflow.runtime.tensors import Placed
from gflow.tracing.context.transforms import is_transformed
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import Dynamic, SizeDecides
from gflow.tracing.data.values import ResultView, TraceValue
from gflow.tracing.request import TraceRequest
from gflow.tracing.trace_results import flatten_result
from gflow.tracing.tracer import trace_graph

from .captured import Captured
from .joint import Divided, Undivided, divide_gradients
from .partly import without
from .second_order import Again, Slots

_requires_grad = attrgetter("requires_grad")


class Pair(Plan):
    """The plan of a call, with its backward.

    Args:
        backward: the plan of the backward that uses all results.
        structure: the results and gradients of the call.
        compile_backward: compiles another backward.
    """

    def __init__(
        self,
        divided: Divided,
        forward: Compiled,
        backward: Compiled,
        spec: Any,
        result_views: Sequence[ResultView],
        compile_backward: Callable[[Divided], Compiled],
        dynamic: Dynamic | None = None,
    ) -> None:
        """backward, structure, compile_backward: what runs a backward of all results, what the call found of results
        and gradients, and how a backward is compiled."""
        super().__init__(divided.forward, forward, dynamic)
        self.result_views = result_views
        self.divided, self.structure = divided, spec
        self.compile_backward = compile_backward
        inputs = divided.forward.inputs
        #: for each argument of the forward that the backward reads: its position, the leaf that it is or None, and
        #: whether it is copied, since by then it may belong to the next call
        self.read = [
            (n, divided.forward.input_leaves.get(inputs[n].value), inputs[n].role in _OF_CALLS)
            for kind, n in divided.inputs
            if kind == "forward"
        ]
        self.order = [leaf.index for leaf in divided.forward.out_leaves]
        saved = self.order[divided.results :]
        #: the saved values that share a buffer, and the others
        inner = {*saved}.difference(self.order[: divided.results])
        self.joined = join_results(forward.run, inner)
        self.apart = [n for n in saved if n not in self.joined]
        share_buffers(forward.run, inner.difference(self.joined))
        #: by the unused results
        self.backwards: dict[frozenset[int], Backward] = {}
        self._add(frozenset(), divided, backward)
        self.devices = sorted({"cpu", *(i.value.device.type for i in inputs)})
        #: where the tensors are that a call updates
        self.slots: Slots | None = None
        forward.run.executables = [backward.run]  # type: ignore[attr-defined]
        outputs = divided.forward.outputs
        self.buffers = [
            t for o in outputs if o.alias is not None and (t := self.arguments[o.alias]) is not None
        ]

    def results(
        self, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """The results of the function, then the values that the backward needs, but for those that share a buffer."""
        return [results[n] for n in (*self.order[: self.divided.results], *self.apart)]

    def backward(self, missing: frozenset[int]) -> Backward:
        """The backward of a call in which the results `missing` are not used."""
        found = self.backwards.get(missing)
        if found is None:
            part = without(self.divided, missing)
            made = self.backwards[frozenset()].compiled
            if part is not self.divided:
                made = self.compile_backward(part)
                self.compiled.run.executables.append(made.run)  # type: ignore[attr-defined]
            found = self._add(missing, part, made)
        return found

    def _add(self, missing: frozenset[int], divided: Divided, compiled: Compiled) -> Backward:
        kept = [*self.joined, *self.apart]
        saved = [kept.index(n) for n in self.order[self.divided.results :]]
        places = {n: len(kept) + k for k, (n, _, _) in enumerate(self.read)}
        start = len(kept) + len(self.read)
        order = [
            saved[n] if kind == "saved" else places[n] if kind == "forward" else start + n
            for kind, n in divided.inputs
        ]
        self.backwards[missing] = made = Backward(compiled, order, divided.gradients)
        return made


#: roles of arguments that the calls of a plan share
_OF_CALLS = ("size", "scalar")


@record
class Backward:
    """The program of a backward.

    Args:
        order: for each argument, its index among the values that the forward saved (those that share a buffer first),
            the arguments that it passes on, and the incoming gradients.
        gradients: for each tensor that receives a gradient, the index among the program's results.
    """

    compiled: Compiled
    order: list[int]
    gradients: list[int | None]


class Differentiable(Graph):
    """Runs `target` with gradients for everything that requires them."""

    def __init__(
        self,
        target: Callable[..., Any],
        captured: Captured,
        modules: dict[str, torch.nn.Module],
        live: bool,
    ) -> None:
        """live: whether a change of Python state is an error, and undone, since the call is then split."""
        super().__init__()
        self.__dict__["keeps_python_state"] = live
        self._state.takes_tail = False
        self._target, self._captured = target, captured
        self.target = modules
        self._seen: Any = None  # the observations of the latest `build()`
        #: for a table of modules, which is replaced if one of them changes: parameters by module
        self._parameters: tuple[Any, dict[int, list[torch.Tensor]]] = (None, {})

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The results, the gradients of everything that requires them, placeholders for the incoming gradients, and
        the results that are no tensors, which are checked as those of any `build()`."""
        takers = self._takers(
            tree_leaves((args, kwargs))
        )  # as a call has them, before it assigns any
        result = self._target(*args, **kwargs)
        leaves, spec = flatten_result(result)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        through = [x for x in tensors if x.requires_grad]
        with torch.no_grad():
            coming = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in through]
        found: Sequence[Any] = [None] * len(takers)
        failures: list[Exception | None] = [None] * len(through)
        if through and takers:
            found, failures = _differentiate(through, takers, coming)
        others = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._seen = (
            spec,
            others,
            [isinstance(x, torch.Tensor) for x in leaves],
            [x.requires_grad for x in tensors],
            [g is not None for g in found],
            failures,
        )
        return tensors, [g for g in found if g is not None], coming, others

    def _takers(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that receive gradients: parameters and captured tensors, then arguments."""
        table = self._state.table
        if self._parameters[0] is not table:
            self._parameters = (table, {})
        known = self._parameters[1]
        found: list[torch.Tensor] = []
        for part in self._captured.parts():
            inside: Sequence[torch.Tensor] = [part]
            if isinstance(part, torch.nn.Module):
                if id(part) not in known:
                    known[id(part)] = list(part.parameters())
                inside = known[id(part)]
            found += compress(inside, map(_requires_grad, inside))
        given = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        found += given
        ids = {*map(id, found)}
        return found if len(ids) == len(found) else [*{id(t): t for t in found}.values()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call with gradients.

        Raises:
            Undivided: two programs cannot express it.
            GraphError: no program can express it.
        """
        state = self._state
        with state.turn:
            try:
                call, plan, _ = self._program(args, kwargs)
            except BaseException as error:
                state.call.settle(error, whole=True)  # an interrupt may leave modes of the trace
                raise
            assert isinstance(plan, Pair)
            spec, plain, tensors, needs, found, _ = plan.structure
            takers = self._takers(call.leaves)
            assert state.table is not None
            if plan.slots is None:
                plan.slots = Slots(state.table.modules, plan.buffers)
            again = partial(
                Again,
                self._target,
                call.args,
                call.kwargs,
                call.leaves,
                takers,
                plan.slots,
                plan.devices,
            )
            # autograd would continue through the history of a tensor without gradient: of an attribute that each call
            # assigns
            through = takers
            if not all(found):
                through = [t if n or t.is_leaf else t.detach() for t, n in zip(takers, found)]
            results = _Call.apply(plan, call.leaves, state, needs, again, *through)
        if plan.result_views:
            inputs = plan.trace.inputs
            held: dict[TraceValue, Any] = {i.value: i.tensor for i in inputs}
            held |= {inputs[at].value: call.leaves[leaf] for at, leaf in plan.input_slots}
            views = views_of(plan.result_views, plan.dynamic, call.leaves)
            results = with_views(results, views, held.__getitem__, histories=True)
        order = iter(results)
        return tree_unflatten([next(order) if is_ else x for is_, x in zip(tensors, plain)], spec)

    def _new_program(
        self, key: Any, call: BoundCall, start: float
    ) -> tuple[Plan | None, FirstStep | None]:
        state, given = self._state, describe_call(call)
        assert state.table is not None
        static = state.sizes.why_static(call, key)
        why = state.compilations.reason(
            given, key[1:], state.table, state.plans.of(key), state.plans.cleared, call.leaves
        )
        plan = self._pair(state, call)
        state.plans.add(key, plan)
        self._remember(call, given, key[1:], why + static, start)
        return plan, None

    def _pair(self, state: Any, call: BoundCall) -> Pair:
        if any(getattr(m, "sparse", False) for m in state.table.modules):
            raise Undivided("sparse gradients")
        check_tensors(call, state.table)
        takers = self._takers(call.leaves)
        options = self.config.resolved()
        state.building = True
        attempt = bool(call.numbers) or (call.dynamic is not None and call.dynamic.automatic)
        reading = Reading(self, state.name, call, self._roots(), state.table, attempt)
        kind = type(self).__name__
        joint = None
        try:
            with building(state.name, kind, state.debug, state.table, reading.frames):
                request = TraceRequest(
                    state.name,
                    call,
                    state.table,
                    reached=reading.reached,
                    eager_random=options.eager_random,
                )
                joint = trace_graph(request)
                guard, given = reading.guard(joint)
                seen = self._seen
                _check(joint, takers)
                divided = divide_gradients(joint, sum(seen[2]), seen[4])
                forward = compile_trace(divided.forward, options)
                compile_backward = partial(_compile_backward, options, state)
                backward = compile_backward(divided)
        except Exception as error:
            reading.undo(always=isinstance(error, SizeDecides))
            if attempt and (joint is None or is_refusal(error) or isinstance(error, Undivided)):
                raise NoRange(error) from error
            raise
        finally:
            state.building = False
        views = [view for view in joint.result_views if view.output < sum(seen[2])]
        pair = Pair(divided, forward, backward, seen, views, compile_backward, call.dynamic)
        pair.guard, pair.given = guard, given
        return pair


def _compile_backward(options: Any, state: Any, divided: Divided) -> Compiled:
    made = compile_trace(divided.backward, options)
    use_arena(made.run, state.plans.arena)
    return made


def _check(joint: Any, takers: Sequence[torch.Tensor]) -> None:
    """
    Raises:
        GraphTraceError: there are global tensors; or an argument is updated with values that have a gradient.
            TorchDynamo's graph gives it back as a result, and its gradient, where nothing asks for one, is of zeros:
            0 · inf is NaN.
        Undivided: another argument is updated, or a tensor with values that have a gradient, or one needs a gradient
            that was not asked for, or a shape depends on values: also one that PyTorch's shape rules leave open for a
            range of sizes.
    """
    if joint.tail is not None:
        raise Undivided("a tensor whose shape depends on values")
    if joint.mesh is not None:
        what = "it has gradients of global tensors (DTensor)"
        advice = (
            "train them in an nn.Graph that has the optimizer, or call it under torch.no_grad()"
        )
        raise GraphTraceError(f"{what}: {advice}").to_eager(what)
    for entry in joint.histories:
        if entry.tensor is None:
            what = f"it updates the argument {entry.name!r} with values that have a gradient"
            raise GraphTraceError(f"{what}: eager mode keeps their history").to_eager(what)
        raise Undivided(f"{entry.name!r}, which it updates with values that have a gradient")
    ids = {id(t) for t in takers}
    for entry in joint.inputs:
        if entry.tensor is not None and entry.tensor.requires_grad and id(entry.tensor) not in ids:
            raise Undivided(f"a gradient for {entry.name!r}, which is not among its parameters")
    for out in joint.outputs:
        if out.alias is not None and joint.inputs[out.alias].tensor is None:
            raise Undivided("an argument that it updates")


def _differentiate(
    results: Sequence[torch.Tensor], takers: Sequence[torch.Tensor], coming: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor | None], list[Exception | None]]:
    """(gradients by the takers, for each result what its backward raises). A function may give a result that has no
    gradient (its formula is missing, or what it needs was updated), beside others that have; eager raises
    when the first takes part in a backward, not before."""
    try:
        found = torch.autograd.grad(results, takers, coming, allow_unused=True, retain_graph=True)
        return found, [None] * len(results)
    except (SizeDecides, GraphError):
        # a question about the trace's size, which is asked again for parts of its range; a hook that no trace can hold
        raise
    except (RuntimeError, NotImplementedError) as error:
        if len(results) == 1:
            return [None] * len(takers), [error]
    failures: list[Exception | None] = []
    for result, gradient in zip(results, coming):
        try:
            torch.autograd.grad(result, takers, gradient, allow_unused=True, retain_graph=True)
            failures.append(None)
        except SizeDecides:
            raise
        except (RuntimeError, NotImplementedError) as error:
            failures.append(error)
    well = [n for n, failure in enumerate(failures) if failure is None]
    if not well:
        return [None] * len(takers), failures
    left, given = [results[n] for n in well], [coming[n] for n in well]
    return torch.autograd.grad(left, takers, given, allow_unused=True), failures


def _raise_failures(plan: Pair, gradients: Sequence[torch.Tensor | None]) -> None:
    """Raise the error of a used result that has no gradient."""
    for gradient, failure in zip(gradients, plan.structure[-1]):
        if gradient is not None and failure is not None:
            raise type(failure)(*failure.args)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Pair,
        leaves: Sequence[Any],
        state: Any,
        needs: list[bool],
        again: Callable[[], Again],
        *takers: Any,
    ) -> tuple[torch.Tensor, ...]:
        values = plan.run(leaves, state)
        if plan.buffers:
            torch.autograd.graph.increment_version(plan.buffers)
        results = values[: plan.divided.results]
        own = plan.arguments
        for n, leaf, copied in plan.read:
            tensor = own[n] if leaf is None else leaves[leaf]
            values.append(tensor.clone() if copied else tensor)
        kept, ctx.block = values[len(results) :], None
        if plan.joined:
            whole, ctx.block = plan.compiled.run.take_whole()  # type: ignore[attr-defined]
            kept.insert(0, whole)
        ctx.save_for_backward(*kept)
        ctx.again = again()
        ctx.again.keep(results)
        ctx.plan, ctx.needs = plan, needs
        ctx.set_materialize_grads(False)  # tells which results were used
        ctx.likes = [(r.shape, r.dtype, r.device) for r, need in zip(results, needs) if need]
        if not all(needs):
            ctx.mark_non_differentiable(*(r for r, need in zip(results, needs) if not need))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        plan: Pair = ctx.plan
        through = [g for g, need in zip(gradients, ctx.needs) if need]
        _raise_failures(plan, through)
        graded = torch.is_grad_enabled()  # create_graph=True
        if graded or is_transformed():  # or a vmap over the backward (is_grads_batched=True)
            if plan.compiled.takes_rng or plan.backward(frozenset()).compiled.takes_rng:
                raise RuntimeError(
                    "gradients with create_graph=True, or within a transform such as vmap, repeat a compiled call, and "
                    "this call draws random numbers, which would differ. Turn dropout off, or call the function "
                    "without gflow.compile."
                )
            return (*[None] * 5, *ctx.again.gradients(through, graded))
        missing = frozenset([n for n, g in enumerate(through) if g is None])
        backward = plan.backward(missing)
        coming: list[torch.Tensor] = [
            # not in a program with collectives
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g.contiguous()
            for g, (shape, dtype, device) in zip(through, ctx.likes)
        ]
        parts, saved, addresses = list[torch.Tensor](), ctx.saved_tensors, list[int]()
        if ctx.block is not None:
            whole, *saved = saved
            first, parts = whole.data_ptr(), ctx.block.parts(whole)
            addresses = [first + offset for offset in ctx.block.offsets]
        given = [*parts, *saved, *coming]
        addresses += map(torch.Tensor.data_ptr, given[len(parts) :])
        arguments = Placed([given[n] for n in backward.order])
        arguments.addresses = [addresses[n] for n in backward.order]
        if backward.compiled.takes_rng:
            arguments.append(Seeds().draw())
            arguments.addresses.append(arguments[-1].data_ptr())
        results = backward.compiled.run(arguments)
        return (*[None] * 5, *[None if n is None else results[n] for n in backward.gradients])
