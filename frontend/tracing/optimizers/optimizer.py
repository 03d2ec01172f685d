"""One `optimizer.step()` as part of the trace.

The optimizer's own code runs, with its state and hyperparameters replaced by traced ones (`exchange.py`). The code
gets the parameters themselves, so that it can compare them; ops get their traced tensors. Numbers (learning rate,
betas, counters) are traced numbers, see `numbers.py`. Other values that it reads are recorded (`mirror.py`) and become
conditions under which the trace is valid (`places.py`). Optimizers and plain objects that an optimizer refers to are
treated in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gflow.errors import GraphTraceError
from gflow.tracing.reads.steps import StepReading

from ..context.location import user_line
from ..context.threads import here_only
from ..context.threads import replaced as patched
from ..data.places import (
    MISSING,
    BakedValue,
    NumberSource,
    OptimizerTrace,
    Place,
    PlainWrite,
    Structure,
)
from ..dispatch.clipping import clip_groups
from ..dispatch.functions.rewrites import Rewrites
from ..dispatch.recorder import Recorder, untraced
from ..dispatch.symbols.number_nodes import StateBranch, number_of
from ..dispatch.symbols.numbers import traced_functions
from ..dispatch.symbols.real_types import real_types
from .copies import attributes_stay
from .exchange import BOOKKEEPING, DICTS, Exchange, Record, is_number, is_plain
from .host_calls import module_names, real_ids, refused_calls
from .mirror import SeenDict, class_constant, plain, watched
from .rates import scaled_rates
from .sparse import one_update
from .state import nested
from .step_hooks import without_hooks
from .unread_keys import foreign_keys, unread_problem

aten = torch.ops.aten


class NewState(Exception):
    """The step created state that did not exist before it."""


class _Parted(Exception):
    """Numbers that were equal before the step, and traced as one, differ after it. tags: a different tag for each
    group of members."""

    def __init__(self, tags: dict[Any, int]) -> None:
        super().__init__("parted")
        self.tags = tags


class _Tracer(Exchange):
    """The reads and changes of a step, found by comparing the mirrors with their initial contents."""

    def finish(self, seen: dict[int, set[str]]) -> None:
        """Record the step's reads and changes.

        Raises:
            GraphTraceError: the step changes a value that a graph cannot update.
        """
        for record in self.records:
            if isinstance(record.mirror, SeenDict):
                self._dict_read(record)
                self._dict_changed(record, plain(record.mirror))
            else:
                self._list_changed(record)
        for obj, _, record in self.objects.values():
            self._attributes_read(obj, record, seen[id(obj)])
        self._replace_tensors()
        for source in self._sources.values():
            self._part(source)
        for name, now, before in self.fixed:
            if len(now) != len(before) or any(a is not b and a != b for a, b in zip(now, before)):
                raise GraphTraceError(
                    f"{self.where}: step() changes {name}, a {type(now).__name__}; in a graph an optimizer "
                    "can only change tensors, numbers, flags, and lists and dicts of them."
                )

    def _replace_tensors(self) -> None:
        """Record the new value of each tensor of the state.

        Raises:
            GraphTraceError: a tensor that is stored at several places has several new values.
        """
        for index, ends in self._ends.items():
            new, *others = ends.values()
            if any(other is not new for other in others):
                keys = " and ".join(repr(key) for _, key, _ in ends)
                raise GraphTraceError(
                    f"{self.where}: {keys} are the same tensor before the step, but not after it; a graph updates "
                    "each tensor of the state in place. Make one of them a copy (.clone())."
                )
            real: Any = self.recorder.inputs[index].tensor
            # a counter that was widened gets its dtype back
            self.result.replaced[index] = new if new.dtype == real.dtype else new.to(real.dtype)

    def attributes_changed(self) -> None:
        """Record changes of attributes, while they are replaced.

        Raises:
            GraphTraceError: the step replaces one of an optimizer's dicts or lists.
        """
        for obj, traced, record in self.objects.values():
            ignored = {*BOOKKEEPING, *DICTS}
            for name in DICTS:
                if name in traced and vars(obj).get(name) is not traced[name]:
                    raise GraphTraceError(
                        f"{self.where}: step() assigns another object to self.{name}; in a graph it must "
                        "update the existing object in place."
                    )
            after = {k: v for k, v in vars(obj).items() if k not in ignored}
            self._dict_changed(record, after)

    def _dict_read(self, record: Record) -> None:
        mirror, result = record.mirror, self.result
        for key in mirror.seen.keys:
            if key in record.before:
                for condition in record.baked.get(key, ()):
                    kind = result.baked if isinstance(condition, BakedValue) else result.structures
                    kind.append(condition)  # type: ignore[arg-type]
            else:
                place, top, path = record.address(key)
                result.baked.append(BakedValue(place, top, MISSING, path))
        if mirror.seen.whole and record.place.kind != "class":
            keys = tuple(record.real)
            result.structures.append(Structure(record.place, record.at, len(keys), keys))

    def _attributes_read(self, obj: Any, record: Record, names: set[str]) -> None:
        for name in sorted(names):
            if name in record.before:
                for condition in record.baked.get(name, ()):
                    kind = (
                        self.result.baked
                        if isinstance(condition, BakedValue)
                        else self.result.structures
                    )
                    kind.append(condition)  # type: ignore[arg-type]
            elif name not in vars(obj) and not name.startswith("__"):
                found = class_constant(obj, name)
                if found is not None and is_plain(found[1]):
                    place = self.place("class", obj, found[0])
                    self.result.baked.append(BakedValue(place, name, found[1]))
                if name == "step" or (
                    name not in BOOKKEEPING and not callable(getattr(type(obj), name, None))
                ):
                    self.result.baked.append(BakedValue(record.place, name, MISSING))

    def _dict_changed(self, record: Record, after: dict[Any, Any]) -> None:
        for key, value in after.items():
            if key == "params":
                continue
            before = record.before.get(key, MISSING)
            if value is before and not isinstance(value, torch.Tensor):
                continue
            if before is MISSING and isinstance(value, SeenDict) and not dict.__len__(value):
                continue  # an entry of a defaultdict, read and left empty
            old = record.real.get(key)
            if before is MISSING and isinstance(key, torch.Tensor):
                raise NewState(f"of a parameter: {', '.join(map(str, dict.keys(value)))}")
            self.changed(record.address(key), old, before, value)
        for key, before in record.before.items():
            if key not in after:
                self.changed(record.address(key), None, before, MISSING)

    def _list_changed(self, record: Record) -> None:
        if len(record.mirror) != len(record.before):
            raise GraphTraceError(
                f"{self.where}: step() changes the length of the list at {record.at[0]!r} from "
                f"{len(record.before)} to {len(record.mirror)}; a graph needs lists of fixed length."
            )
        for i, (before, after) in enumerate(zip(record.before, record.mirror)):
            if after is not before or isinstance(after, torch.Tensor):
                self.changed(record.address(i), record.real[i], before, after)

    def changed(
        self, at: tuple[Place, Any, tuple[Any, ...]], real: Any, old: Any, new: Any
    ) -> None:
        """Record one value after the step.

        Args:
            at: its place.
            real: the real value before the step.
            old, new: the traced values before and after it.

        Raises:
            GraphTraceError: a graph cannot make this change.
            NewState: the value is new state.
        """
        key = at[1]
        if isinstance(real, torch.Tensor) and isinstance(new, torch.Tensor):
            old, new = self._traced(old), self._traced(new)
            if new.shape != real.shape:
                raise GraphTraceError(
                    f"{self.where}: step() changes the shape of state {key!r} from "
                    f"{list(real.shape)} to {list(new.shape)}; a graph "
                    "needs state of fixed shape."
                )
            widened = self.capturable and new.ndim == 0 and real.dtype == torch.float32
            if new.dtype != real.dtype and not widened:
                raise NewState(f"{key} in {new.dtype}, which was in {real.dtype}")
            ends = self._ends.setdefault(self.rewrites.proxies[id(real)].index, {})
            where = (id(at[0].holder), at[1], at[2])
            if new is not old or where not in ends:  # otherwise an item of a list that was removed
                ends[where] = new
        elif (node := number_of(old)) is not None and (number_of(new) or is_number(new)):
            self._number_changed(at, self._sources[node.value], new)
        elif isinstance(new, torch.Tensor):
            raise NewState(str(key))
        elif number_of(new) is not None:
            self._born(at, new)
        elif isinstance(new, (tuple, list)) and isinstance(old, (tuple, list)):
            self._items_changed(at, real, old, new)
        elif isinstance(old, SeenDict) and old is not new and isinstance(new, dict):
            raise NewState(str(key))
        elif new is MISSING or is_plain(new):
            if new is MISSING or old is MISSING or type(old) is not type(new) or old != new:
                self.result.writes.append(PlainWrite(*at, new))
        elif isinstance(new, (dict, list, tuple)) and old is not new:
            self._container(at, new)
        elif old is not new:
            raise GraphTraceError(
                f"{self.where}: step() sets {key!r} from {old!r} to {new!r}; in a graph an "
                "optimizer can only change tensors, numbers, and plain values (bool, str, None)."
            )

    def _traced(self, tensor: Any) -> Any:
        """The traced tensor of a real one; a traced tensor itself."""
        known = self.rewrites.proxies.get(id(tensor))
        return tensor if known is None else known.wrapper

    def _items_changed(self, at: Any, real: Any, old: Any, new: Any) -> None:
        if len(old) != len(new) or type(old) is not type(new):
            raise GraphTraceError(
                f"{self.where}: step() changes {at[1]!r} from a {type(old).__name__} of {len(old)} to a "
                f"{type(new).__name__} of {len(new)}; in a graph its type and length must stay the same."
            )
        for i, (r, b, a) in enumerate(zip(real, old, new, strict=True)):
            if b is not a:
                self.changed((at[0], at[1], (*at[2], i)), r, b, a)

    def _container(self, at: Any, new: Any) -> None:
        """Record a container of numbers that the step has created."""
        items = list(new.items()) if isinstance(new, dict) else list(enumerate(new))
        if any(isinstance(v, torch.Tensor) for _, v in items):
            raise NewState(str(at[1]))
        blank: Any = {k: None for k, _ in items} if isinstance(new, dict) else [None] * len(items)
        if isinstance(new, tuple):
            blank = type(new)(*blank) if hasattr(new, "_fields") else tuple(blank)
        self.result.writes.append(PlainWrite(at[0], at[1], at[2], blank))
        for key, value in items:
            if value is not None:
                self.changed((at[0], at[1], (*at[2], key)), None, None, value)

    def _born(self, at: tuple[Place, Any, tuple[Any, ...]], new: Any) -> None:
        """Record a number that did not exist before: it gets an argument that returns it to the host."""
        node = number_of(new)
        assert node is not None
        start: float = 0 if node.is_integer else 0.0
        with untraced():
            tensor = torch.scalar_tensor(start, dtype=node.value.dtype, device="cpu")
        place, key, path = at
        name = ".".join(map(str, (self.prefix, "new", len(self.recorder.numbers), key, *path)))
        value = self.recorder.add_number(start, tensor, name, None).value
        source = NumberSource(place, key, path, value, tensor, start, name, node.value, born=True)
        self.recorder.numbers.append(source)

    def _number_changed(self, at: Any, source: NumberSource, after: Any) -> None:
        node, member = number_of(after), (id(at[0].holder), at[1], at[2])
        finals = self._finals.setdefault(id(source), {})
        dtype = source.value.dtype
        if node is None:
            if type(after) is not int and dtype == torch.int64:  # its type changes
                finals[member] = after
                self.result.writes.append(PlainWrite(at[0], at[1], at[2], after))
                return
            final = self.recorder.record_number(
                aten.scalar_tensor.default, (after,), dtype, {"dtype": dtype}
            )
        elif node.value is source.value:
            return
        else:
            final = node.value
        finals[member] = final
        if final.dtype == dtype:
            source.final = final
        else:
            self._born(at, after)

    def _part(self, source: NumberSource) -> None:
        """Check that numbers that are traced as one stay equal.

        Raises:
            _Parted: they do not.
        """
        if not source.others:
            return
        members = [(id(p.holder), source.key, source.path) for p in (source.place, *source.others)]
        finals = self._finals.get(id(source), {})
        ends = [finals.get(member) for member in members]
        if any(end is not ends[0] for end in ends):
            kinds = {id(end): n for n, end in enumerate(ends)}
            base = 1 + len(members) * self.tags.get(members[0], 0)
            raise _Parted({m: base + kinds[id(end)] for m, end in zip(members, ends)})


@contextlib.contextmanager
def _compiling(active: bool) -> Iterator[None]:
    """Within, `torch.compiler.is_compiling()` is true, so optimizers skip device checks of the capturable form."""
    if not active:
        yield
        return
    compiling = here_only(torch.compiler.is_compiling, lambda: True)
    with patched((torch.compiler, "is_compiling", compiling)):
        yield


@contextlib.contextmanager
def _exchanged(objects: dict[int, tuple[Any, dict[str, Any], Record]]) -> Iterator[None]:
    """Within, objects have their traced attributes; afterwards their `__dict__` is restored."""
    saved = [(obj, dict(vars(obj))) for obj, _, _ in objects.values()]
    try:
        for obj, traced, _ in objects.values():
            vars(obj).update(traced)
        yield
    finally:
        for obj, attributes in saved:
            vars(obj).clear()
            vars(obj).update(attributes)


def trace_step(
    recorder: Recorder,
    rewrites: Rewrites,
    optimizer: torch.optim.Optimizer,
    prefix: str,
    param_names: dict[int, str],
    active: Callable[[], contextlib.AbstractContextManager[None]],
    step: Callable[[Any], None] = lambda optimizer: optimizer.step(),
) -> OptimizerTrace:
    """Record one step.

    First the step runs as the author set it up. If it branches on a number that only exists on the device, it is
    traced again in the optimizer's capturable form. Equal numbers of several parameters are traced as one number; if
    the step changes them differently, it is traced again with separate numbers.

    Args:
        prefix: the name of the optimizer in names of inputs.
        param_names: names of parameters, by id.
        active: the context in which ops are recorded.
        step: runs the optimizer's step.

    Raises:
        GraphTraceError: the step cannot be traced; the message has the author's line.
        NewState: the step creates state.
    """
    has_capturable = any("capturable" in g for o in nested(optimizer) for g in o.param_groups)
    attempts = [False, True] if has_capturable else [False]
    tags: dict[Any, int] = {}
    while True:
        mark, proxies = recorder.mark(), dict(rewrites.proxies)
        tracer = _Tracer(
            recorder, rewrites, optimizer, prefix, param_names, attempts[0], active, tags
        )
        try:
            return _trace_step(tracer, step)
        except (StateBranch, NewState, _Parted) as error:
            recorder.rewind(mark)
            rewrites.proxies = proxies
            if isinstance(error, NewState):
                raise
            if isinstance(error, _Parted):
                tags = tags | error.tags
                continue
            if len(attempts) > 1:
                attempts = attempts[1:]
                continue
            raise GraphTraceError(
                f"{user_line(error)}{prefix} ({type(optimizer).__name__}): step() makes "
                "Python choose by the value of a tensor (an `if`, float() or comparison on "
                ".item() of state). Use "
                "torch.where on tensors, or keep the counter as a Python number in the state."
            ) from error


def _trace_step(tracer: _Tracer, step: Callable[[Any], None]) -> OptimizerTrace:
    optimizer = tracer.optimizer
    for parameter in [p for o in nested(optimizer) for g in o.param_groups for p in g["params"]]:
        tracer.parameter(parameter)
    tracer.object(optimizer, tracer.prefix)
    objects = [obj for obj, _, _ in tracer.objects.values()]
    reading = StepReading(objects, tracer.containers(), tracer.where)
    tracer.outside(reading.tensors)
    parameters = list(tracer.parameters.values())
    groups = [mirror for _, _, mirror in tracer.groups]
    names = [n for o in objects for n in module_names(type(o))]
    names = list({id(n): n for n in names}.values())
    with (
        tracer.active(),
        _compiling(tracer.capturable),
        traced_functions(names),
        real_types(names),
        refused_calls(tracer.where, names),
        real_ids(tracer.real),
        without_hooks(),
        attributes_stay(parameters, tracer.refuse_attribute),
    ):
        with _exchanged(tracer.objects):
            clip_groups(groups)
            with (
                watched(objects, tracer.where) as seen,
                scaled_rates(optimizer, groups, tracer.where),
                one_update(tracer.where),
            ):
                step(optimizer)
            tracer.attributes_changed()
        tracer.finish(seen)
    tracer.result.reads = reading.after()
    problem = unread_problem(optimizer) or foreign_keys(objects, tracer.groups)
    if problem is not None:
        raise GraphTraceError(f"{tracer.where}: {problem}")
    return tracer.result
