"""The results and updates of a trace."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import (
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
)
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from gflow.errors import GraphTraceError

from .data.pytrees import learn, opened
from .data.trace import Trace
from .data.updates import check_update
from .data.values import OutputRef, ResultView, TailRef, TraceOutput
from .dispatch.symbols.number_nodes import number_of
from .program.aliases import result_views
from .program.modules import is_traced
from .reads.settings import is_iterator
from .trace_checks import check_selected, check_strides
from .traced_inputs import TracedInputs

#: limits of the search for tensors in a result: depth of nesting, number of objects
_DEPTH, _MANY = 8, 10_000


def flatten_result(result: Any) -> tuple[list[Any], TreeSpec]:
    """Flatten a function's result so that all of its tensors are leaves."""
    leaves = tree_leaves(result)
    while any([_holds_tensors(leaf) and learn(leaf) for leaf in leaves]):  # noqa: C419
        leaves = tree_leaves(result)
    return tree_flatten(opened(result, _holds_tensors))


def outputs_of(tracing: TracedInputs, trace: Trace) -> list[TraceOutput]:
    """The results of `build()` as outputs of the trace; leaves of `trace` that are tensors are replaced by references
    to them.

    Raises:
        GraphTraceError: a result is a traced number, or an object that hides traced tensors.
    """
    outputs: list[TraceOutput] = []
    wrappers: list[torch.Tensor] = []
    for i, leaf in enumerate(trace.out_leaves):
        if isinstance(leaf, torch.Tensor):
            wrapper = leaf
            if not torch._is_functional_tensor(leaf):
                wrapper = tracing.rewrites.lift(leaf)
            value = tracing.recorder.value_of(tracing.current(wrapper))
            if value in tracing.recorder.late:
                trace.out_leaves[i] = TailRef(len(tracing.late_results))
                tracing.late_results.append(value)
                continue
            wrappers.append(wrapper)
            trace.out_leaves[i] = OutputRef(len(outputs))
            outputs.append(TraceOutput(value, None, f"output.{len(outputs)}"))
        elif tracing.has_sizes and _has_size(leaf):
            raise GraphTraceError(
                f"{tracing.name}: build() returns a number that depends on a dynamic dimension, or on a size that "
                f"depends on values: {leaf}. Return tensors, and read their shapes after the call."
            )
        elif number_of(leaf) is not None:
            raise GraphTraceError(
                f"{tracing.name}: build() returns a Python number that depends on an argument or a dynamic "
                "dimension. Return a tensor, or compute the number outside."
            )
        elif _holds_tensors(leaf):
            code = getattr(tracing.build, "__code__", None)
            where = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
            raise GraphTraceError(
                f"{where}build() returns an object of type {type(leaf).__qualname__} with "
                "traced tensors inside, or one that can be read once. Return tensors, numbers, None, and lists, "
                "tuples, named tuples, dataclasses, plain objects and dicts of them."
            )
    check_selected(tracing, wrappers)
    tracing.results = wrappers
    if tracing.micro_batches == 1 and not tracing.recorder.meshes:
        trace.result_views = _result_views(tracing, wrappers)
    return outputs


def _result_views(tracing: TracedInputs, wrappers: Sequence[torch.Tensor]) -> list[ResultView]:
    proxies = (*tracing.leaves, *tracing.rewrites.proxies.values())
    known = {
        s.wrapper.untyped_storage()._cdata: (s.wrapper, tracing.recorder.inputs[s.index].value)
        for s in proxies
        if s.index not in tracing.views and s.index not in tracing.rebound and s.begin is None
    }
    return result_views(wrappers, known, tracing.rewrites.concrete)


def updates_of(tracing: TracedInputs) -> list[TraceOutput]:
    """The inputs and traced numbers that have a new value, as outputs of the trace.

    Raises:
        GraphTraceError: a program cannot make the update of an input.
    """
    updates = []
    proxies = {s.index: s for s in (*tracing.leaves, *tracing.rewrites.proxies.values())}
    for proxy in proxies.values():
        if proxy.index in tracing.views:
            continue
        wrapper = tracing.rebound.get(proxy.index, proxy.wrapper)
        check_strides(tracing, proxy)
        entry = tracing.recorder.inputs[proxy.index]
        value = tracing.recorder.value_of(tracing.current(wrapper))
        if value is not (proxy.begin or entry.value):
            check_update(tracing.build, entry, value)
            updates.append(TraceOutput(value, proxy.index, entry.name))
    by_value = {entry.value: i for i, entry in enumerate(tracing.recorder.inputs)}
    for number in tracing.recorder.numbers:
        if number.final is not None:
            updates.append(TraceOutput(number.final, by_value[number.value], number.name))
    return updates


def _has_size(leaf: Any) -> bool:
    """Whether a result is a dynamic size, depends on one, or is a shape with one."""
    # imported here for start-up time: it loads PyTorch's symbolic shapes
    from torch.fx.experimental.sym_node import SymNode

    numbers = leaf if isinstance(leaf, torch.Size) else (leaf,)
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(isinstance(x, kinds) and isinstance(x.node, SymNode) for x in numbers)


def _holds_tensors(leaf: Any) -> bool:
    """Whether a result that is no tensor hides traced tensors, or is an iterator that can be read only once."""
    if is_iterator(leaf):
        return True
    seen, level = {id(leaf)}, [leaf]
    for _ in range(_DEPTH):
        inner = {id(part): part for outer in level for part in _inside(outer)}
        if any(map(is_traced, inner.values())):
            return True
        level = [part for part in inner.values() if id(part) not in seen]
        seen.update(inner)
        if len(seen) > _MANY:
            break
    return False


def _inside(value: Any) -> list[Any]:
    """The objects that an object refers to; of a function only its closure and defaults."""
    if isinstance(value, FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, (type, ModuleType, CodeType, FrameType, torch.nn.Module, torch.Tensor)):
        return []
    return gc.get_referents(value)


def rearranged(
    left: tuple[tuple[Any, ...], dict[str, Any]], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[str]:
    """The names of arguments whose lists or dicts `build()` has changed.

    Args:
        left: positional and keyword arguments after the call.
        given: the same before the call.
    """
    pairs = [(f"argument {n}", *pair) for n, pair in enumerate(zip(left[0], given[0]))]
    pairs += [(f"argument {k!r}", left[1][k], v) for k, v in given[1].items()]
    found = []
    for name, now, before in pairs:
        (parts, spec), (old, old_spec) = tree_flatten(now), tree_flatten(before)
        if spec != old_spec or any(a is not b for a, b in zip(parts, old)):
            found.append(name)
    return found
