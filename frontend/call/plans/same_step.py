"""Before the first run of a training step, its ranks compare the parts of the step that must agree.

Ranks with copies or shards of the same parameters make the same updates, so the hyperparameters of their optimizers
must be equal. Ranks of a pipeline, and of global tensors, share one program, of which each runs a part, so they must
have traced the same ops. Data-parallel ranks may compute different losses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist

from gflow.runtime.distributed.agreement import compare
from gflow.tracing.data.global_tensors import axes_of, local_of
from gflow.tracing.data.trace import Trace


def compare_step(trace: Trace) -> None:
    """Compare a step with those of the other ranks; all of them must call this before they run it.

    Raises:
        DisagreementError: another rank has other hyperparameters, or has traced another program.
    """
    given = None
    for group, where, shared in _groups(trace):
        if dist.get_backend(group) == "fake":
            continue
        given = [*_hyperparameters(trace)] if given is None else given
        lines = [*given, *(_ops(trace) if shared else ())]
        if lines:
            compare(trace.name, lines, group, where, "take different steps")


def _groups(trace: Trace) -> Iterator[tuple[Any, str, bool]]:
    """The groups of ranks that update the same parameters, their names in messages, and whether they share one
    program."""
    if trace.stages is not None:
        yield dist.group.WORLD, "in the pipeline", True
    elif trace.mesh is not None:
        shared = trace.shared_axes
        for n, axis in enumerate(axes_of(trace.mesh)):
            yield trace.mesh.get_group(n), f"along {axis}", axis in shared
    else:
        for name, axis in trace.groups.items():
            yield dist.distributed_c10d._resolve_process_group(name), f"along {axis}", False  # type: ignore[arg-type]


def _hyperparameters(trace: Trace) -> Iterator[str]:
    """The hyperparameters of each parameter group with a parameter that other ranks also have, one line each."""
    ids = {id(i.tensor) for i in trace.inputs if i.value in trace.copied}
    every = trace.stages is not None or trace.mesh is not None
    for number, step in enumerate(trace.steps):
        for place in step.places:
            if place.kind != "group":
                continue
            group = place.holder
            if not every and not any(id(local_of(p)) in ids for p in group["params"]):
                continue
            of = f"of group {place.which} of {type(place.optimizer).__name__}, optimizer {number}"
            for key, value in group.items():
                if key not in ("params", "param_names"):
                    yield f"{key} = {_plain(value)} {of}"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else f"a tensor of {list(value.shape)}"
    return value if isinstance(value, (int, float, str, tuple, list, type(None))) else type(value)


def _ops(trace: Trace) -> Iterator[str]:
    """The number of ops of each phase of each module, and their digest. Values are numbered in order, and groups are
    replaced by axes."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return f"%{numbers.setdefault(found[1], str(len(numbers)))}:"

    for (phase, module), found in groupby(trace.ops, lambda op: (op.loc.phase, op.loc.module)):
        known, ops = hashlib.sha256(), [*found]
        for op in ops:
            text = repr((op.results, op.func, op.args, op.kwargs))
            for name, axis in trace.groups.items():
                text = text.replace(f"{name!r}", axis)
            known.update(re.sub(r"%(\d+):", number, text).encode())
        where = f"module {module!r}" if module else "build()"
        yield f"{len(ops)} ops (digest {known.hexdigest()[:12]}) in the {phase} of {where}"
