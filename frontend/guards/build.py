"""The guard of a program, from the reads of a graph's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import CO_COROUTINE
from typing import Any

import torch

from gflow.tracing.context.location import is_user_code, user_frame
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.trace import Trace
from gflow.tracing.program.aliases import describe_input
from gflow.tracing.program.module_config import changes, is_checkpointed
from gflow.tracing.program.modules import (
    ModuleTable,
    Reached,
    cached_tensors,
    give_up_traced,
    scripted_module,
)
from gflow.tracing.reads.changes import (
    changed,
    lose_arguments,
    lose_settings,
    put_back,
    refuse_changes,
    refuse_lasting,
    refuse_shared_arrays,
    warn_of_cached,
    warn_of_changes,
    warn_of_constants,
)
from gflow.tracing.reads.of_modules import TENSOR_HOOKS
from gflow.tracing.reads.reach import MISSING, Read
from gflow.tracing.reads.reads import Reads, roots_of
from gflow.tracing.reads.state import StateGuard, now
from gflow.tracing.tracer import OUTSIDE

from .arguments import ArgumentGuard, attributes_of
from .frames import FrameRecorder

#: kinds of reads that may hold tensors
_HOLDERS = ("item", "cell", "list", "dict", "names")


class Reading:
    """The reads of one compilation: before `build()` runs, as far as its code tells, and after it.

    Args:
        call: the call that is traced.
        frames: an observer of the build.
        reached: modules and objects that were found before.
        once: whether the program runs only once, because its trace has changed Python state that belongs to tensors
            that its call assigns. The next call in the old state is traced again.
    """

    def __init__(
        self,
        graph: Any,
        name: str,
        call: BoundCall,
        modules: Mapping[str, torch.nn.Module],
        table: ModuleTable,
        attempt: bool = False,
    ) -> None:
        """attempt: whether the trace may be discarded for another one, which must then find the same state."""
        self.graph, self.name, self.build, self.table = graph, name, call.build, table
        self.call = call
        self.roots = list(roots_of(call.build, graph, modules))
        self.roots += attributes_of(call.names, call.leaves)
        self.frames = FrameRecorder(OUTSIDE)
        self.before = Reads(closely=True).walk(self.roots)
        for path in self.before.scripted:
            raise scripted_module(path)
        keeps = bool(graph.__dict__.get("keeps_python_state"))
        self.live = attempt or keeps
        if keeps:
            refuse_lasting(name, self.before, self._home(user_frame(2)))
        holders = {
            id(r.holder): (r.path, r.holder) for r in self.before.found if r.kind in _HOLDERS
        }
        named = [(path.rpartition(".")[0] or path, holder) for path, holder in holders.values()]
        self.reached = Reached(self._others(self.before), named, assigns=not self.live)
        self.once = False

    def _others(self, reads: Reads) -> dict[str, torch.nn.Module]:
        """Modules that are not part of the graph, without their submodules."""
        known = set(self.table.names)
        taken = set(self.table.names.values())
        found: dict[str, torch.nn.Module] = {}
        for path, module in reads.modules.items():
            if id(module) in known:
                continue
            known.update(map(id, module.modules()))
            while path in taken:
                path += "_"
            taken.add(path)
            found[path] = module
        return found

    def undo(self, always: bool = False) -> None:
        """After a discarded trace: restore the Python state that it changed, if the call is then traced again. always:
        restore it even if this was no attempt."""
        for _, cached in Reads(self.frames.codes).walk(self.roots).cached:
            give_up_traced(cached)
        if self.live or always:
            put_back(self.before.found, self.before.names)

    def _untraced(self) -> str:
        """What TorchDynamo would do with code of a kind that it does not support; "" if there is none."""
        if self.before.finalized:
            return f"leave out __del__ of {self.before.finalized[0]}"
        codes = [*self.before.codes, *self.frames.codes]
        started = [c for c in codes if c.co_flags & CO_COROUTINE and is_user_code(c)]
        return (
            f"call {started[0].co_name}, a coroutine function, without a result" if started else ""
        )

    def _home(self, called: tuple[str, int]) -> tuple[str, int]:
        """The location of `build()`; that of its caller, if it belongs to a library."""
        code = getattr(self.build, "__code__", None)
        if code is None or not is_user_code(code):
            return called
        return code.co_filename, code.co_firstlineno

    def guard(self, trace: Trace) -> tuple[StateGuard, ArgumentGuard]:
        """The guards of the program that was traced. Warns of changes by `build()`, and of values that stay constant.

        Raises:
            StateChangedError: `build()` has changed state that must change at every call.
        """
        home = self._home(user_frame(2))
        before, codes = self.before.found, self.frames.codes
        if own := {id(t) for t in self.reached.owned}:
            before = [r for r in before if r.kind != "item" or id(now(r)) not in own]
        lose_arguments(self.graph, self.name, trace.rearranged, home, self.live)
        lose_settings(self.graph, self.name, trace.passing, home, self.live)
        if self.live:
            refuse_changes(self.name, before, self.reached.lost, codes, home, self._untraced())
        self.once = bool(self.reached.assigned and changed(before))
        told = [] if self.once else before
        warn_of_changes(self.graph, self.name, told, self.reached, codes, home)
        roots = [*self.roots, *self.frames.unnamed_modules()]
        after = Reads(self.frames.codes).walk(roots)
        cleared = [path for path, cached in after.cached if give_up_traced(cached)]
        if cleared:
            warn_of_cached(self.graph, self.name, cleared, home)
            after = Reads(self.frames.codes).walk(roots)
        after.opaque += _of_unknown_place(after, trace)
        if self.graph.__dict__.get("keeps_python_state"):
            refuse_lasting(self.name, after, home)
        warn_of_constants(self.graph, self.name, after, home)
        written = [trace.inputs[o.alias] for o in trace.outputs if o.alias is not None]
        updated = [(describe_input(i), i.tensor) for i in written if i.tensor is not None]
        refuse_shared_arrays(self.name, after, updated, home)
        own = {id(d) for m in self.table.modules for d in (m._parameters, m._buffers, m._modules)}
        reads = [
            r
            for r in after.found
            if r.kind not in ("slot", "size", "keys") or id(r.holder) not in own
        ]
        reads = [*map(_as_before(before), reads)]
        reads += [
            Read("attribute", t, "grad", None, "the .grad of a tensor") for t in trace.ungraded
        ]
        ids = set(map(id, self.call.leaves))
        reads += [
            Read("call", partial(f.question, f.real), None, f.answer, f"{f.name} of a tensor")
            for f in trace.facts
            if id(f.real) not in ids
        ]
        names = set(after.names)
        for step in trace.steps:
            if step.reads is not None:
                reads += step.reads.found
                names |= step.reads.names
        others = [m for root in self._others(after).values() for m in root.modules()]
        mine = {id(s.tensor) for s in self.table.slots}
        held: list[torch.Tensor | None] = [p for m in others for p in m._parameters.values()]
        held += [i.tensor for i in trace.inputs if i.role == "constant"]
        if any(op.loc.phase == "backward" for op in trace.ops):
            hooked = {id(t): (t, "a tensor") for t in held if t is not None}
            hooked |= {id(s.tensor): (s.tensor, s.name) for s in self.table.slots}
            reads += [read for t, name in hooked.values() for read in _hooks(t, name)]

        def marks() -> Any:
            return [is_checkpointed(m) for m in others]

        captured = {id(t): t for t in held if t is not None and id(t) not in mine}
        own_guard = ArgumentGuard(
            self.call.leaves, None if after.computed else after.names, trace.facts
        )
        trace.facts = []  # they would keep the tensors of this call alive
        return StateGuard(reads, names, list(captured.values()), marks, changes), own_guard


def _of_unknown_place(reads: Reads, trace: Trace) -> list[tuple[str, str]]:
    """Descriptions of tensors from outside that were found nowhere, so that the guard cannot tell when another tensor
    takes the place of one."""
    of_steps = [step.reads.tensors for step in trace.steps if step.reads is not None]
    of_caches = [cached_tensors(cached) for _, cached in reads.cached]
    known = {id(t) for tensors in (reads.tensors, *of_steps, *of_caches) for t in tensors}
    return [
        (f"a {t.dtype} tensor of shape {tuple(t.shape)}", "whose place no name in the code tells")
        for t in trace.held
        if id(t) not in known and t.untyped_storage().resizable()  # not over an array's memory
    ]


def _as_before(before: list[Read]) -> Callable[[Read], Read]:
    """For attributes that `build()` itself creates, that they were missing: the next call finds them."""
    names = {_holder(r): r.value for r in before if r.kind == "names"}
    missing = {(id(r.holder), r.key) for r in before if r.kind == "missing"}

    def restored(read: Read) -> Read:
        if read.kind == "names":
            return read._replace(value=names.get(_holder(read), read.value) & read.value)
        if read.kind == "attribute" and (id(read.holder), read.key) in missing:
            return read._replace(kind="missing", value=MISSING)
        return read

    return restored


def _holder(read: Read) -> int:
    """The object whose names are compared: a class returns a new proxy of its dict each time."""
    return id(read.key if isinstance(read.key, type) else read.holder)


def _hooks(tensor: torch.Tensor, path: str) -> Iterator[Read]:
    """The hooks of a parameter's gradient, which run in the backward of a graph."""
    if tensor.requires_grad:
        for kind in TENSOR_HOOKS:
            hooks = getattr(tensor, kind)
            yield Read("attribute", tensor, kind, hooks, f"{path}.{kind}")
            if hooks is not None:
                yield Read("hooks", hooks, None, tuple(hooks.items()), f"{path}.{kind}")
