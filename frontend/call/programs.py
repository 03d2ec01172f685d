"""The program of a call: found among those of a graph, or compiled for the call's sizes or for a range of sizes."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import torch

from gflow.config import GraphConfig
from gflow.errors import GraphError, GraphInputError, GraphTraceError, ShapeOfValues
from gflow.guards.build import Reading
from gflow.runtime.distributed import pieces
from gflow.tracing.context.collector import collector_paused
from gflow.tracing.context.location import here, user_frame
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import SizeDecides
from gflow.tracing.program.module_config import check_settings, stage_setting
from gflow.tracing.program.modules import collect_modules
from gflow.tracing.program.sharded_modules import take_apart
from gflow.tracing.request import TraceRequest

from .dynamic.automatic import NoRange, can_vary, dims_of
from .dynamic.automatic_numbers import as_plain, needed
from .first_step import FirstStep, Setup
from .gradients import keeps
from .graph_state import GraphState, modes_of
from .modes import Modes
from .plans.call_record import record_call
from .plans.compilations import Compilation
from .plans.expected import describe_call, difference, full_message
from .plans.new_plan import compile_plan, trace_call
from .plans.plan import Plan
from .signature import Parameters, bind_call
from .watchers import building, is_building, one_at_a_time
from .zero_state import gather_when_read

_log = logging.getLogger("gflow")
#: the number of attempts to compile a range of sizes, each time narrowed to the part in which a question about the
#: size has one answer
_PARTS = 12
#: with this many programs of one signature for different Python state, a warning is given
_MANY = 8
#: with this many for different values of integers and masks, the next one is for any, if that is possible
_VALUES = 4


class Programs:
    """The methods of `Graph` that find and compile programs."""

    config: GraphConfig
    _state: GraphState

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BoundCall, Any]:
        """A call, and the key of its programs: the call's own key, and other state that changes a trace."""
        state: GraphState | None = self.__dict__.get("_state")
        if state is None or state.table is None:
            state = self._first_call()  # type: ignore[attr-defined]
        build = self.build  # type: ignore[attr-defined]
        if state.parameters is None or not state.parameters.are_of(build):
            state.parameters = Parameters(build)
        call = bind_call(build, args, kwargs, state.parameters)
        state.dynamic.mark(call, self._micro_batches(state))
        if self.config.dynamic_shapes:
            state.numbers.mark(call, not state.plans.is_full)
        assert state.table is not None
        if not state.table.is_current():
            self._collect(state)
        return call, (call.key, *modes_of(state))

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """A call with its program, which is compiled if it is new, and the first step whose results are the call's, if
        one was made. There is no program if an optimizer has skipped that step."""
        state: GraphState | None = self.__dict__.get("_state")
        if state is not None and state.call.broken:
            raise GraphError(
                f"{here()}: {state.name} has stopped in the middle of a step, so that its parameters, buffers "
                f"and optimizers are partly updated, and takes no further calls. What happened: "
                f"{state.call.broken}\nLoad a checkpoint with load_state_dict() to go on."
            )
        if is_building():
            raise self._nested()
        call, key = self._bind(args, kwargs)
        if _is_traced(call.leaves):
            raise self._nested()
        branching = self._state.call.branching
        takes = None if branching is None else branching.takes
        plan = self._state.plans.find(key, call.leaves, takes)
        if plan is not None:
            return call, plan, None
        varies = self._may_vary(call)
        if varies:
            for served, own in self._state.sizes.served(call, key):
                if (plan := self._state.plans.find(own, served.leaves, takes)) is not None:
                    return served, plan, None
        with one_at_a_time, collector_paused():
            self._state.call.modes = Modes.current()
            found = self._programs(call, key, varies)
            self._state.call.modes = None
            return found

    def _may_vary(self, call: BoundCall) -> bool:
        return self.config.sizes_may_vary and can_vary(call)

    def _micro_batches(self, state: GraphState) -> int:
        return self.config.gradient_accumulation_steps if state.optimizers else 1

    def _programs(
        self, call: BoundCall, key: Any, varies: bool
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """Compile a new program: for a range of sizes if a second size was seen and a range is possible, otherwise for
        the sizes of the call."""
        start = time.perf_counter()
        state = self._state
        proposed = None
        if varies and not state.plans.is_full:
            proposed = state.sizes.proposed(call, key, self._micro_batches(state))
        if call.dynamic is not None and not call.numbers:
            return self._marked_program(call, key, start)
        for _ in range(_PARTS):
            if proposed is None:
                break
            wide, own = proposed
            assert wide.dynamic is not None
            try:
                found = self._new_program(own, wide, start)
            except NoRange as refusal:
                error = refusal.reason
                state.call.settle(error)
                proposed = state.sizes.narrowed(call, key, wide, error)
                if proposed is None and state.sizes.refuse(call, key, state.name, wide, error):
                    proposed = state.sizes.proposed(call, key, self._micro_batches(state))
            else:
                state.sizes.took(call, key, state.name, wide.dynamic)
                return wide, *found
        if call.numbers:
            try:
                found = self._new_program(key, call, start)
            except NoRange as refusal:
                state.call.settle(refusal.reason)
                told = (str(refusal.reason).splitlines() or [type(refusal.reason).__name__])[0]
                live, call = call, as_plain(call)
                key = (call.key, *key[1:])
                takes = None if state.call.branching is None else state.call.branching.takes
                if (plan := state.plans.find(key, call.leaves, takes)) is not None:
                    return call, plan, None
                found = self._new_program(
                    key, call, start
                )  # an error of the function itself is no refusal
                state.numbers.refuse(live, state.name, live.numbers, told)
            else:
                exact = [] if found[0] is None else needed(found[0].trace)
                if exact and found[0] is not None:
                    why = "Python asks for the value itself, as float() and shapes do"
                    state.numbers.refuse(call, state.name, exact, why)
                    own = state.numbers.key_of(call)
                    state.plans.move(found[0], key, (own, *key[1:]))
        else:
            found = self._new_program(key, call, start)
        if varies and found[0] is not None:
            program = found[0].compiled.program
            state.sizes.saw(call, key, 0 if program is None else program.arena_bytes)
        return call, *found

    def _marked_program(
        self, call: BoundCall, key: Any, start: float
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """Compile a new program for a call with a marked dimension: for its range, or for the part of it, with the
        call's own size, in which all questions of the program about sizes have one answer."""
        state = self._state
        for _ in range(_PARTS):
            if call.dynamic is None:
                break
            try:
                return call, *self._new_program(key, call, start)
            except Exception as error:
                decides = isinstance(error, SizeDecides) and state.dynamic.narrowed(call, error)
                if not decides and not (is_refusal(error) and state.dynamic.simpler(call, error)):
                    raise
                state.call.settle(error)
                call, key = self._bind(call.args, call.kwargs)
                takes = None if state.call.branching is None else state.call.branching.takes
                if (plan := state.plans.find(key, call.leaves, takes)) is not None:
                    return call, plan, None
        return call, *self._new_program(key, call, start)

    def _nested(self) -> GraphError:
        name = self.name  # type: ignore[attr-defined]
        return GraphError(
            f"{here()}: {name} is called inside build() of a graph; graphs don't nest. "
            "Call its modules there instead, or call one graph after the other."
        )

    def _collect(self, state: GraphState) -> None:
        """Find the modules. If they have changed (a parameter was replaced, ...), drop all programs."""
        with one_at_a_time:  # while another graph is traced, modules may hold its traced tensors
            if state.table is not None:
                take_apart(state.table.modules)
            if state.table is None or not state.table.is_current():
                state.plans.clear()
                state.table, state.marks = collect_modules(self._roots()), None  # type: ignore[attr-defined]

    def _new_program(
        self, key: Any, call: BoundCall, start: float
    ) -> tuple[Plan | None, FirstStep | None]:
        """Compile a program, see `_program`. start: the start time, by `time.perf_counter`."""
        state = self._state
        self._say_why(key, call)
        if not state.takes_tail:
            return self._compiled_program(key, call, start)
        # with many programs for different values, rather none for more of them
        many = sum(plan.known is not None for plan in state.plans.of(key)) >= _VALUES
        for known in (False, True) if many else (True,):
            unknown: ShapeOfValues | None = None
            for tail in (False, True):
                try:
                    return self._compiled_program(key, call, start, tail, known)
                except ShapeOfValues as error:
                    if tail and known:
                        raise
                    state.call.settle(error)
                    unknown = error
                except GraphTraceError as error:
                    if known:
                        raise
                    state.call.settle(error)
                    break
                except (TypeError, RuntimeError) as error:
                    if unknown is None or is_refusal(error):
                        raise
                    # code of PyTorch's that takes no size or number of which the value is not known yet
                    raise unknown from error
        raise AssertionError("the last attempt returns or raises")

    def _compiled_program(
        self, key: Any, call: BoundCall, start: float, tail: bool = False, known: bool = False
    ) -> tuple[Plan | None, FirstStep | None]:
        """As `_new_program`.

        Args:
            tail: whether ops whose shapes depend on values may run after the program.
            known: whether the program may be made for values of integers and masks of the call.
        """
        state = self._state
        roots = self._roots()  # type: ignore[attr-defined]
        table = state.table
        if table is None or table.roots != roots:  # a list of modules may have been extended
            table = collect_modules(roots)
        check_settings(table.names, table.modules)
        given = describe_call(call)
        unlike = difference(given, [plan.described for plan in state.plans])
        if state.plans.is_full:
            raise GraphInputError(full_message(here(), state.name, state.plans.size, unlike))
        static = state.sizes.why_static(call, key)
        branching = state.call.branching
        why = "" if branching is None else branching.why
        why = why or state.compilations.reason(
            given, key[1:], table, state.plans.of(key), state.plans.cleared, call.leaves
        )
        state.call.prepare(Setup(state.optimizers, state.scaler))
        # dynamic sizes and numbers must not stay in Python state
        attempt = bool(call.numbers) or (call.dynamic is not None and call.dynamic.automatic)
        options = self.config.resolved()
        passes = options.passes
        divided = passes.zero > (0 if passes.amp else 2) or any(map(stage_setting, table.modules))
        gather_when_read(state.optimizers, table.modules if divided else ())
        reading = Reading(self, state.name, call, roots, table, attempt)
        kept = keeps(self.config.kept_gradients, roots, here())
        request = TraceRequest(
            state.name,
            call,
            table,
            state.optimizers,
            state.scaler,
            kept,
            self._micro_batches(state),
            self.config.stack_scalars and self.config.gradient_accumulation_steps > 1,
            self.config.pipeline_schedule,
            state.sparse,
            reached=reading.reached,
            tail=tail,
            known=known,
            truths=self._truths(options) if known else None,
            eager_random=options.eager_random,
        )
        kind = type(self).__name__
        state.building = True
        traced = None
        try:
            with (
                pieces.lent(),
                building(state.name, kind, state.debug, table, reading.frames) as calls,
            ):
                traced = trace_call(request, state.call.setup)
                if traced.trace is None:
                    return None, traced.first
                plan = compile_plan(traced.trace, call, options, traced.timings)
                plan.guard, plan.given = reading.guard(plan.trace)
        except Exception as error:
            reading.undo(always=is_refusal(error))
            if isinstance(error, ShapeOfValues) and self._state.takes_tail:
                raise
            if attempt and (traced is None or is_refusal(error)):
                # the author's code may raise anything if a size is no int
                raise NoRange(error) from error
            if unlike and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"Unlike in earlier calls of {state.name}, {unlike}.")
            raise
        finally:
            state.building = False
        for optimizer in state.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]
        state.latest, state.calls = plan, calls
        plan.described = given
        plan.record = record_call(call, table.modes())
        state.call.drop = partial(state.plans.discard, plan)
        if not reading.once:
            state.plans.add(key, plan)
        self._remember(call, given, key[1:], why + static, start)
        return plan, traced.first

    def _truths(self, options: Any) -> tuple[bool, ...] | None:
        """The truths of conditions on values that are known of the call; None if no program may be made for some: on a
        GPU, a run updates its arguments before the host reads what a check has found."""
        branching = self._state.call.branching
        if options.target != "cpu":
            return None
        return () if branching is None else branching.truths

    def _remember(
        self, call: BoundCall, given: dict[str, str], modes: Any, why: str, start: float
    ) -> None:
        """Record a compilation for `explain_recompiles()`."""
        state = self._state
        sizes = ""
        if call.dynamic is not None:
            varying = [f"{dims_of(one, call.names)} in {one.sizes}" for one in call.dynamic.each]
            beside = call.dynamic.beside
            sizes = ", ".join(varying) + (f" for {', '.join(beside)}" if beside else "")
        made = Compilation(state.name, datetime.now(), time.perf_counter() - start, why, sizes)
        state.compilations.add(made, given, modes, state.plans.cleared)

    def _say_why(self, key: Any, call: BoundCall) -> None:
        """Warn once if a signature has several programs for different Python state, and name what changes."""
        state = self._state
        plans = [p for p in state.plans.of(key) if p.first_change(call.leaves)]
        reasons = [p.first_change(call.leaves) for p in plans]
        if reasons:
            _log.info("%s is compiled again: %s", state.name, reasons[0])
        if len(reasons) == _MANY:
            advice = "Pass it to the graph as a tensor, which needs no other program."
            if plans[0].known is not None:
                advice = (
                    "A masked form (torch.where, multiplication by a mask) needs no other program."
                )
            warnings.warn_explicit(
                f"{state.name} was compiled {_MANY} times for the same inputs, since what build() reads changes "
                f"between calls: {reasons[0]}. {advice}",
                UserWarning,
                *user_frame(2),
            )


def is_refusal(error: Exception) -> bool:
    """Whether this error means that the compiler does not support the traced program."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.ir.errors import CompileError
    from gflow.lowering.dtypes import LoweringError

    return isinstance(error, (GraphError, CompileError, LoweringError))


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Whether the graph is called with traced tensors of another graph's `build()`."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            return torch._is_functional_tensor(leaf)
    return False
