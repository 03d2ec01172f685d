"""Shrinks a program that fails, as long as it fails in the same way (delta debugging)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from .program import Call, Program, Storage, TensorSpec, base_name, reads
from .settings import Settings
from .tensors import contiguous, memory, span, view

Fails = Callable[[Program], bool]
T = TypeVar("T")


def minimize(program: Program, fails: Fails, seconds: float = 60) -> Program:
    """The smallest program found for which `fails` holds, in about so many seconds of processor time. `fails(program)`
    must hold."""
    deadline = time.process_time() + seconds
    before = None
    while program != before and time.process_time() < deadline:
        before = program
        for shrink in (_outputs, _calls, _settings, _tensors, _arguments):
            program = greedy(program, shrink, fails, deadline, _tidy)
    return program


def greedy(
    subject: T,
    shrink: Callable[[T], Iterator[T]],
    fails: Callable[[T], bool],
    deadline: float,
    tidy: Callable[[T], T | None] = lambda subject: subject,
) -> T:
    """Take the first smaller subject that fails, again and again. tidy: what is made of a candidate; None of one that
    is none."""
    again = True
    while again and time.process_time() < deadline:
        again = False
        for made in shrink(subject):
            if time.process_time() > deadline:
                break
            candidate = tidy(made)
            if candidate is not None and candidate != subject and _holds(candidate, fails):
                subject, again = candidate, True
                break
    return subject


def _tidy(program: Program) -> Program | None:
    program = _without_unused(program)
    return program if program.outputs else None


def _holds(candidate: T, fails: Callable[[T], bool]) -> bool:
    try:
        return fails(candidate)
    except Exception:  # a candidate that is no program: the judge itself can't run it
        return False


def _without_unused(program: Program) -> Program:
    """Without tensors that nothing reads (they stay where they are somebody's alias)."""
    used = {name for c in program.calls for name in reads(c)} | {
        base_name(o) for o in program.outputs
    }
    sames = {t.same for t in program.tensors if t.name in used and t.same}
    keep = tuple(t for t in program.tensors if t.name in used | sames)
    return replace(program, tensors=keep) if keep else program


def _outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for o in program.outputs:
            yield replace(program, outputs=(o,))
        for o in program.outputs:
            yield replace(program, outputs=tuple(p for p in program.outputs if p != o))


def _dependents(calls: tuple[Call, ...], first: int) -> set[int]:
    """A call and all that read its result."""
    gone, names = {first}, {calls[first].result} - {""}
    for i in range(first + 1, len(calls)):
        if reads(calls[i]) & names:
            gone.add(i)
            names |= {calls[i].result} - {""}
    return gone


def _calls(program: Program) -> Iterator[Program]:
    calls = program.calls
    if program.raises:  # the last call is the one that raises
        candidates = range(len(calls) - 2, -1, -1)
    else:
        candidates = range(len(calls) - 1, -1, -1)
    size = len(calls) // 2
    while size > 1:  # whole stretches first
        for start in range(0, len(calls), size):
            gone: set[int] = set()
            for i in range(start, min(start + size, len(calls))):
                gone |= _dependents(calls, i)
            yield program.with_calls(tuple(c for j, c in enumerate(calls) if j not in gone))
        size //= 2
    for i in candidates:
        gone = _dependents(calls, i)
        yield program.with_calls(tuple(c for j, c in enumerate(calls) if j not in gone))
    for i in candidates:  # its operand in place of a result
        for name in sorted(reads(calls[i])):
            if calls[i].result:
                renamed = _renamed(calls[i + 1 :], calls[i].result, name)
                outputs = tuple(_rename(o, calls[i].result, name) for o in program.outputs)
                yield replace(
                    program, calls=calls[:i] + renamed, outputs=tuple(dict.fromkeys(outputs))
                )
    for i, call in enumerate(calls):
        for key in call.kwargs:
            less = {k: v for k, v in call.kwargs.items() if k != key}
            yield replace(program, calls=(*calls[:i], replace(call, kwargs=less), *calls[i + 1 :]))


def _rename(reference: str, old: str, new: str) -> str:
    return new if base_name(reference) == old else reference


def _renamed(calls: tuple[Call, ...], old: str, new: str) -> tuple[Call, ...]:
    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: _rename(v, old, new) if k == "r" else walk(v) for k, v in value.items()}
        return [walk(v) for v in value] if isinstance(value, (list, tuple)) else value

    return tuple(
        replace(
            c, args=tuple(walk(a) for a in c.args), kwargs={k: walk(v) for k, v in c.kwargs.items()}
        )
        for c in calls
    )


def _settings(program: Program) -> Iterator[Program]:
    s = program.settings
    plain = Settings(mode=s.mode, calls=s.calls, threads=s.threads, optimizer=s.optimizer)
    simpler = [
        Settings(), replace(plain, calls=1, threads=1), plain, replace(s, mode="graph", schedule=None),
        replace(s, mode="graph_grad") if s.grad else s, replace(s, calls=1), replace(s, calls=2),
        replace(s, threads=1), replace(s, schedule=None), replace(s, checkpoint=False), replace(s, amp=""),
        replace(s, autocast=""), replace(s, pipeline=""), replace(s, optimizer=("SGD", {"lr": 0.1})),
    ]  # fmt: skip
    simpler += [
        replace(s, switches={k: v for k, v in s.switches.items() if k != name})
        for name in s.switches
    ]
    for candidate in simpler:
        if _weight(candidate) < _weight(s):
            yield replace(program, settings=candidate)


def _weight(s: Settings) -> tuple[int, ...]:
    """What settings ask for, most of all first: a candidate has less, so the search ends."""
    modes = ("graph", "graph_grad")
    return (
        modes.index(s.mode) if s.mode in modes else len(modes),
        len(s.switches)
        + sum(map(bool, (s.schedule, s.autocast, s.amp, s.checkpoint, s.pipeline)))
        + (s.optimizer != Settings().optimizer),
        s.calls,
        s.threads,
    )


def _tensors(program: Program) -> Iterator[Program]:
    """Tensors that are plain inputs, dense, in memory of their own, without gradients, full of small numbers."""
    for i, t in enumerate(program.tensors):
        alone = sum(u.storage == t.storage for u in program.tensors) == 1
        if t.role in ("buffer", "closure"):
            yield _with_tensor(program, i, replace(t, role="input"))
        if t.requires_grad and t.role == "input":
            yield _with_tensor(program, i, replace(t, requires_grad=False))
        storage = program.storages[t.storage]
        dense = contiguous(t.shape)
        if (t.strides, t.offset) != (dense, 0) or not alone:
            own = Storage(storage.dtype, span(t.shape, dense), storage.seed, storage.fill)
            if storage.values is not None:
                shown = view(t, memory(storage)).contiguous().reshape(-1)
                own = replace(own, values=tuple(_item(v) for v in shown.tolist()))
            wider = replace(program, storages=(*program.storages, own))
            yield _with_tensor(
                wider,
                i,
                replace(t, strides=dense, offset=0, storage=len(program.storages), same=None),
            )
        if storage.fill not in ("normal", "small") and storage.values is None:
            yield _with_storage(program, t.storage, replace(storage, fill="normal"))
    sizes = sorted({n for t in program.tensors for n in t.shape if n > 1}, reverse=True)
    for n in sizes:  # one size everywhere
        for smaller in (1, 2, 3):
            if smaller < n:
                yield _resized(program, n, smaller)


def _item(value: Any) -> Any:
    if isinstance(value, complex):
        return [value.real, value.imag]
    return str(value) if isinstance(value, float) and value - value != 0 else value


def _resized(program: Program, old: int, new: int) -> Program:
    tensors, storages = [], list(program.storages)
    for t in program.tensors:
        if old not in t.shape or storages[t.storage].values is not None:
            tensors.append(t)
            continue
        shape = tuple(new if n == old else n for n in t.shape)
        tensors.append(replace(t, shape=shape))
    return replace(program, tensors=tuple(tensors))


def _with_tensor(program: Program, i: int, tensor: TensorSpec) -> Program:
    return replace(program, tensors=(*program.tensors[:i], tensor, *program.tensors[i + 1 :]))


def _with_storage(program: Program, i: int, storage: Storage) -> Program:
    return replace(program, storages=(*program.storages[:i], storage, *program.storages[i + 1 :]))


def _arguments(program: Program) -> Iterator[Program]:
    """Simpler dtypes: all of one kind at once."""
    found = {s.dtype for s in program.storages}
    for dtype in ("float16", "bfloat16", "float64"):
        if dtype in found:
            storages = tuple(
                replace(s, dtype="float32") if s.dtype == dtype else s for s in program.storages
            )
            yield replace(program, storages=storages)


__all__ = ["greedy", "minimize"]
