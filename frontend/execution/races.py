"""How products on this processor are compared: by short runs, each contest once, the answers kept on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cache

import torch

from gflow.compiler.driver.races import Racing
from gflow.dialects.program import Program
from gflow.dialects.program.processor import processor
from gflow.runtime.executable import Executable
from gflow.runtime.stored import cache as disk

#: rounds in which all programs take turns, at least and at most, and seconds after which no more are begun
_LEAST, _MOST, _SECONDS = 3, 12, 0.03

#: what was measured in this process, and on how many threads: a contest is run once, so equal products are made alike
_known: dict[tuple[str, int], dict[str, float]] = {}


def racing() -> Racing:
    """Measuring on this machine."""
    return Racing(measure, _device())


@cache
def _device() -> str:
    for line in processor().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "this processor"


def measure(what: str, programs: Callable[[], Mapping[str, Program]]) -> Mapping[str, float]:
    """Seconds of each program: the least of some runs in turn. what: is compared, the name of the answer."""
    threads = torch.get_num_threads()
    known = _known.get((what, threads))
    if known is None:
        name = disk.key("race", what, str(threads))
        stored = disk.read("races", name)
        known = _run(programs()) if stored is None else json.loads(stored)
        if stored is None:
            disk.write("races", name, json.dumps(known).encode())
        _known[what, threads] = known
    return known


def _run(programs: Mapping[str, Program]) -> dict[str, float]:
    (first, *_) = programs.values()
    generator = torch.Generator().manual_seed(0)
    values = []
    for argument in first.arguments:
        value = torch.randn(argument.type.shape, generator=generator)
        values.append(torch.empty_strided(value.shape, argument.strides).copy_(value))
    runs = {name: Executable(program) for name, program in programs.items()}
    for run in runs.values():
        run(values)
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + _SECONDS
    for n in range(_MOST):
        for name, run in runs.items():
            start = time.perf_counter()
            run(values)
            best[name] = min(best[name], time.perf_counter() - start)
        if n + 1 >= _LEAST and time.perf_counter() > end:
            break
    return best
