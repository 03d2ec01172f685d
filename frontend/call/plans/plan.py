"""A plan: one compiled trace with the real tensors and numbers that it reads and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from gflow.dialects.extents import N
from gflow.execution.executor import Compiled
from gflow.guards.arguments import ArgumentGuard
from gflow.runtime.tensors import Placed, addresses_of
from gflow.tracing.data.branches import truths_of
from gflow.tracing.data.global_tensors import axes_of, global_tensor, local_of
from gflow.tracing.data.sizes import Dynamic, step_of, with_size
from gflow.tracing.data.trace import Trace, finish_call, leaf_of, unflatten
from gflow.tracing.data.values import TraceValue
from gflow.tracing.program.interpreter import TailSteps
from gflow.tracing.program.shared import conflicts
from gflow.tracing.reads.state import StateGuard

from ..conditions.known_values import KnownValuesGuard
from ..conditions.layout_guard import LayoutGuard, metadata
from ..conditions.memory_check import MemoryCheck
from ..conditions.python_state import PythonState
from ..result_views import views_of, with_views
from .call_record import CallRecord
from .same_step import compare_step

#: represents inputs in lists of the real tensors' addresses
_NO_INPUT = torch.empty(0, device="cpu")
#: roles of tensors that eager code may have saved for its own backward
_SEEN = ("parameter", "buffer", "input", "constant")


class Plan:
    """Runs one compiled trace. dynamic: its dynamic dimensions; size: their value in the last call."""

    def __init__(self, trace: Trace, compiled: Compiled, dynamic: Dynamic | None = None) -> None:
        self.trace, self.compiled, self.dynamic = trace, compiled, dynamic
        self.tail = None if trace.tail is None else TailSteps(trace.tail)
        self.used = 0
        self.compared = not (trace.groups or trace.mesh is not None or trace.stages is not None)
        self.size: N = 0
        self.size_at = [k for k, i in enumerate(trace.inputs) if i.role == "size"]
        self.described: dict[str, str] = {}
        self.record: CallRecord | None = None
        self.guard: StateGuard | None = None
        self.given: ArgumentGuard | None = None
        self.known = None if trace.known is None else KnownValuesGuard(trace)
        self.truths = truths_of(trace.branches)
        self.arguments: list[Any] = [i.tensor for i in trace.inputs]
        self.wholes = self._wholes()
        if self.wholes:  # their mesh
            axes = trace.shared_axes
            self.shared = trace.mesh if len(axes) == trace.mesh.ndim else trace.mesh[axes]
        self.input_slots = [
            (position, leaf)
            for position, entry in enumerate(trace.inputs)
            if (leaf := trace.input_leaves.get(entry.value)) is not None
        ]
        self._take_places()
        self.positions = {entry.value: i for i, entry in enumerate(trace.inputs)}
        self.python = PythonState(trace)
        self.writes = bool(self.python.writes or self.python.written)
        self.updated = [
            o.alias
            for o in trace.outputs
            if o.alias is not None and trace.inputs[o.alias].role in _SEEN
        ]
        spec = trace.out_spec
        self.single = len(trace.out_leaves) == 1 and spec is not None and spec.is_leaf()

    def _wholes(self) -> dict[int, tuple[tuple[str, ...], tuple[int, ...]]]:
        """For each result of `build()` of a trace of global tensors, its sharding and global shape."""
        found: dict[int, tuple[tuple[str, ...], tuple[int, ...]]] = {}
        for n, (out, sharding) in enumerate(zip(self.trace.outputs, self.compiled.shardings)):
            if out.alias is None and sharding is not None:
                along = dict(zip(axes_of(self.trace.mesh), sharding))
                placed = tuple(along[axis] for axis in self.trace.shared_axes)
                found[n] = placed, self._joined_shape(out.value.shape)
        return found

    def _joined_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that a call returns for a result of a micro-batch."""
        count = self.trace.micro_batches
        first = shape[:1] or ((1,) if self.trace.stacked else ())
        return (*(count * rows for rows in first), *shape[1:])

    def _take_places(self) -> None:
        """Record the real tensors and their addresses."""
        self.fixed = [
            t
            for t, i in zip(self.arguments, self.trace.inputs)
            if t is not None and i.role != "scalar"
        ]
        self.placed = [_NO_INPUT if t is None else t for t in self.arguments]
        self.places: list[int] = []
        self.layouts = LayoutGuard(self.fixed)
        self.memory: MemoryCheck | None = None
        self.looked = False

    def first_change(self, leaves: Sequence[Any]) -> str | None:
        """The first difference to the state for which the program was compiled, as text: Python state, or attributes
        of a call's tensors."""
        found = None if self.guard is None else self.guard.first_change()
        if found is None and self.given is not None:
            found = self.given.first_change(leaves)
        return found if found is not None else self.first_other_value(leaves)

    def first_other_value(self, leaves: Sequence[Any]) -> str | None:
        """The first value of an argument or buffer that is not the one for which the program was compiled, as text."""
        return None if self.known is None else self.known.first_change(self.arguments, leaves)

    def refresh(self) -> bool:
        """Copy changed hyperparameters into the arguments. False: trace again."""
        python, trace = self.python, self.trace
        if not python.idle and not self._python_holds():
            return False
        if trace.views and not all(view.holds() for view in trace.views):
            return False
        if not self.layouts.holds():
            return False
        self._look()
        return self.memory is not None or not self._joined()

    def _python_holds(self) -> bool:
        """Whether the values of optimizers are valid, apart from numbers, which are copied."""
        python = self.python
        if not python.bound() and not self._rebind():
            return False
        if not python.take_numbers() or not python.values_hold():
            return False
        return python.tensors_same() or self._rebind()

    def _look(self) -> None:
        """Update the addresses of the real tensors."""
        places = addresses_of(self.placed)
        if places != self.places:
            self.places, self.memory = places, None
        self.looked = True

    def _joined(self) -> bool:
        """Whether a tensor that the program updates has come to share memory with another (`p.data = …`, `set_`)."""
        inputs, views = self.trace.inputs, {id(view.tensor) for view in self.trace.views}
        tensors = {
            n: tensor
            for n, tensor in enumerate(self.arguments)
            if tensor is not None and id(inputs[n].tensor) not in views
        }
        written = {o.alias for o in self.trace.outputs if o.alias is not None}
        found = conflicts(tensors, written, {*tensors})
        return any(inputs[a].tensor is not inputs[b].tensor for a, b in found)

    def _rebind(self) -> bool:
        """Use the dicts and tensors that `load_state_dict` put into the optimizers, if no layout has changed."""
        if not self.layouts.holds() or not self.python.locate() or not self.python.fits():
            return False
        found: dict[int, Any] = {}
        for slot in self.python.slots:
            position, tensor = self.positions[slot.value], slot.read()
            if found.setdefault(position, tensor) is not tensor:  # they were one tensor before
                return False
        for position, tensor in found.items():
            if isinstance(tensor, torch.Tensor):
                tensor = local_of(tensor)
            if tensor is self.arguments[position]:
                continue
            if not isinstance(tensor, torch.Tensor) or metadata(tensor) != metadata(
                self.arguments[position]
            ):
                return False
            self.arguments[position] = tensor
        self.python.bind()
        self._take_places()
        return True

    def run(self, leaves: Sequence[Any], state: Any) -> Any:
        """Run the program on one call's leaves, and return its results in the author's structure.

        Updated arguments are written in place. A failed check is raised with the author's line.

        Args:
            leaves: tensors and numbers of the call in the order of its `BoundCall`.
        """
        arguments = Placed(self.arguments)
        for position, leaf in self.input_slots:
            arguments[position] = (
                leaves[leaf] if self.trace.mesh is None else local_of(leaves[leaf])
            )
        if self.dynamic is not None:
            self.size = step_of(self.dynamic, leaves)
            for at, n in zip(
                self.size_at, self.size if isinstance(self.size, tuple) else (self.size,)
            ):
                arguments[at].fill_(n)
        updated = [arguments[i] for i in self.updated]
        given = arguments.copy() if self.trace.result_views else arguments
        tail = self.tail
        if not self.looked:
            self._look()
        self.looked = False
        memory = self.memory
        if memory is None:
            memory = self.memory = MemoryCheck(self.trace, self.arguments, self.input_slots)
        if memory.needed:
            memory.apply(arguments)
        late = [] if tail is None else arguments.copy()
        seeds = state.seeds if self.compiled.takes_rng else None
        run: Any = self.compiled.run
        if not self.compared:
            compare_step(self.trace)
            self.compared = True
        arguments.addresses = self.places.copy()
        for position, _ in self.input_slots:
            arguments.addresses[position] = arguments[position].data_ptr()
        run.done = False
        try:
            if seeds is not None:
                arguments.append(seeds.draw())
                arguments.addresses.append(arguments[-1].data_ptr())
            results = run(arguments)
            self._ran(updated, seeds)
        except BaseException:
            if run.done:
                self._ran(updated, seeds)
            elif seeds is not None:
                seeds.undo()
            raise
        if self.trace.result_views:

            def argument(value: TraceValue) -> torch.Tensor:
                return given[self.positions[value]]

            views = views_of(self.trace.result_views, self.dynamic, leaves)
            results = with_views(results, views, argument)
        if tail is None:
            return self.results(results)
        read = tail.tail.operands(self.positions, late, results)
        size = None if self.dynamic is None else self.size
        return self.results(results, tail.run(read, size))

    def blank_results(self, leaves: Sequence[Any]) -> Any:
        """The results of a call with these leaves, with zeros as elements; of a graph of global tensors, each rank's
        shard."""
        trace = self.trace
        if self.dynamic is not None:
            trace = with_size(trace, step_of(self.dynamic, leaves))
        found = []
        for out in trace.outputs:
            if out.alias is None:
                v = out.value
                shape = self._joined_shape(v.shape)
                found.append(torch.zeros(shape, dtype=v.dtype, device=v.device))
        late = []
        for value in () if trace.tail is None else trace.tail.results:
            shape = tuple([n if isinstance(n, int) else 0 for n in value.shape])
            late.append(torch.zeros(shape, dtype=value.dtype, device=value.device))
        return unflatten(trace, found, late)

    def _ran(self, updated: list[torch.Tensor], seeds: Any) -> None:
        """Commit a run. It can be repeated if it is interrupted."""
        if updated:
            increment_version(updated)
        if seeds is not None:
            seeds.keep()
        if self.writes:
            self.python.write()

    def results(self, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor] = ()) -> Any:
        """The results of `build()`; of a graph of global tensors, global ones. late: those of the tail."""
        if self.wholes:
            results = list(results)
            for n, (sharding, shape) in self.wholes.items():
                results[n] = global_tensor(results[n], self.shared, sharding, shape)
        if self.single:
            return leaf_of(self.trace.out_leaves[0], results, late)
        return finish_call(self.trace, results, late)
