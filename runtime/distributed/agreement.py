"""Ranks compare their collectives before the first run of a program.

Each rank writes its collectives, one a line, to the store of `torch.distributed`, and reads those of the others. A rank
with another program is thus found before it could hang, or exchange wrong data. Collectives of parameters name them:
gradients of other parameters, or in another order, may have the same size.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from gflow.dialects.program import CollectiveStep, Program, Ranks, TensorRef

from .groups import Groups, describe_ranks

#: by group, the number of programs compared so far: the ranks of a group compare their n-th programs. A group that is
#: set up again starts from 0, on each rank
_compared: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


#: half the characters of a long line that a message shows
_SHOWN = 150


class DisagreementError(RuntimeError):
    """The ranks of a group would run different collectives."""


def agree(program: Program, groups: Groups) -> None:
    """Compare a program's collectives with those of the other ranks, in each of its groups.

    Raises:
        DisagreementError: a rank has other collectives, or did not take part within the group's timeout, or the store
            does not answer.
    """
    steps: dict[Ranks, list[CollectiveStep]] = {}
    for step in program.steps:
        if isinstance(step, CollectiveStep) and step.kind not in ("send", "recv"):
            steps.setdefault(step.ranks, []).append(step)
    for ranks, mine in steps.items():
        group = groups.of(ranks)
        if dist.get_backend(group) != "fake":
            compare(program.name, [_line(step) for step in mine], group, describe_ranks(ranks))


def compare(
    name: str, lines: list[str], group: Any, where: str, what: str = "make different collectives"
) -> None:
    """Compare lines of text between the ranks of a group.

    Args:
        name: the name of the program.
        lines: the lines of this rank.
        group: the process group.
        where: a description of the group for messages, such as "along dp".
        what: what ranks with different lines would do, for messages.

    Raises:
        DisagreementError: as in `agree`.
    """
    store = dist.distributed_c10d._get_default_store()
    world = dist.get_process_group_ranks(group)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    number = _compared.get(group, 0)
    _compared[group] = number + 1
    prefix = f"gflow/plan/{group.group_name}/{number}"
    me = dist.get_rank()
    try:
        # the lines are long, and read only if ranks differ
        store.set(f"{prefix}/lines/{me}", json.dumps([name, lines]))
        store.set(f"{prefix}/{me}", digest)
    except RuntimeError as error:
        raise DisagreementError(_no_store(name, me)) from error
    keys = [f"{prefix}/{rank}" for rank in world]
    timeout = timeout_of(group)
    try:
        store.wait(keys, timeout)
    except (RuntimeError, ValueError) as error:
        raise DisagreementError(
            _missing(name, me, store, dict(zip(world, keys)), timeout)
        ) from error
    for rank, k in zip(world, keys):
        try:
            if store.get(k).decode() == digest:
                continue
            their_name, theirs = json.loads(store.get(f"{prefix}/lines/{rank}"))
        except RuntimeError as error:
            raise DisagreementError(_no_store(name, me)) from error
        where = f"{what} {where}"
        raise DisagreementError(_difference(name, me, lines, rank, their_name, theirs, where))


def _missing(program: str, me: int, store: Any, keys: dict[int, str], timeout: timedelta) -> str:
    """The error message for ranks that have not written their lines. keys: the store's keys, by rank."""
    try:
        late = [str(r) for r, k in keys.items() if not store.check([k])]
    except RuntimeError:
        return _no_store(program, me)
    return (
        f"rank {me} is ready to run {program}, and rank {', '.join(late)} has not come to it within "
        f"{timeout.total_seconds():g} s (the group's timeout). All ranks of a group must run the same programs: "
        "look for a rank that has ended, gets inputs of other shapes, or takes another branch"
    )


def _no_store(program: str, me: int) -> str:
    return (
        f"rank {me} is ready to run {program}, and the store of torch.distributed, in which ranks compare their "
        "plans, does not answer: the process that holds it has ended (rank 0, unless torchrun does)"
    )


def _difference(
    program: str,
    me: int,
    mine: list[str],
    rank: int,
    name: str,
    theirs: list[str],
    what: str,
) -> str:
    where = next(
        (n for n, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs))
    )
    ours = mine[where] if where < len(mine) else "none"
    other = theirs[where] if where < len(theirs) else "none"
    ours, other = _cut(ours, other), _cut(other, ours)
    return (
        f"rank {me} and rank {rank} would {what}: number {where} is {ours} in {program} on rank {me}, and {other} "
        f"in {name} on rank {rank}. All ranks of a group must run the same program, on inputs of the same shapes, and "
        "use the same parameters in the same order (where only some ranks use a parameter, add 0 * parameter.sum() to "
        "the loss of all)"
    )


def _cut(line: str, other: str) -> str:
    """A long line from shortly before the place where it differs from another one, up to some more characters."""
    if len(line) <= 2 * _SHOWN:
        return line
    same = next((n for n, (a, b) in enumerate(zip(line, other)) if a != b), len(other))
    start = max(same - _SHOWN // 2, 0)
    end = start + 2 * _SHOWN
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


def _line(step: CollectiveStep) -> str:
    parts = [step.kind, step.reduction, f"root {step.root}" if step.root >= 0 else ""]
    if step.sends:  # each rank sends its own sizes
        return f"{step.kind} of unequal parts, {step.input and step.input.type.dtype}"
    of = f"of {step.parameters}" if step.parameters else ""
    return " ".join(filter(None, [*parts, of, _tensor(step.input), _tensor(step.output)]))


def _tensor(ref: TensorRef | None) -> str:
    return "" if ref is None else str(ref.type)


def timeout_of(group: Any) -> timedelta:
    """The timeout of a group."""
    backend = group._get_backend(next(iter(group._device_types)))
    return getattr(backend.options, "_timeout", None) or dist.default_pg_timeout
