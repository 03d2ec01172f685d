"""How products on this processor are compared: by short runs, each contest once, the answers kept on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache

import torch

from gflow.compiler.driver.races import Racing, Ways
from gflow.dialects.program import Argument, Program
from gflow.dialects.program.processor import processor
from gflow.runtime.cpu import jit
from gflow.runtime.cpu.table import kernels_of
from gflow.runtime.executable import Executable
from gflow.runtime.stored import cache as disk

#: rounds in which all programs take turns, at least and at most, and seconds after which no more are begun
_LEAST, _MOST, _SECONDS = 3, 12, 0.03
#: rounds after which a program is given up that takes so many times as long as the fastest
_CLEAR_ROUNDS, _CLEAR = 2, 1.3
#: different random numbers that operands are filled with, again and again
_NUMBERS = 1 << 16

#: what was measured in this process, and on how many threads: a contest is run once, so equal products are made alike
_known: dict[tuple[str, int], dict[str, float]] = {}


def racing() -> Racing:
    """Measuring on this machine."""
    return Racing(measure, _device(), prepare)


@cache
def _device() -> str:
    for line in processor().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "this processor"


def prepare(races: Sequence[tuple[str, Ways]]) -> None:
    """Compile what will be measured, all at once: to begin with LLVM takes as long as a small kernel."""
    kernels: dict[str, str] = {}
    declarations: dict[str, str] = {}
    for what, ways in races:
        if _answer(what) is None:
            for program in ways().values():
                texts, called = kernels_of(program)
                kernels |= texts
                declarations |= called
    if kernels:
        jit.compile_kernels(kernels, declarations)


def measure(what: str, ways: Ways) -> Mapping[str, float]:
    """Seconds of each program: the least of some runs in turn. what: is compared, the name of the answer."""
    found = _answer(what)
    if found is None:
        found = _run(ways())
        if (name := _name(what)) is not None:
            disk.write("races", name, json.dumps(found).encode())
        _known[what, torch.get_num_threads()] = found
    return found


def _answer(what: str) -> dict[str, float] | None:
    """What was measured before, in this process or in another."""
    at = what, torch.get_num_threads()
    if at not in _known and (name := _name(what)) is not None:
        stored = disk.read("races", name)
        if stored is not None:
            _known[at] = json.loads(stored)
    return _known.get(at)


def _name(what: str) -> str | None:
    """The cache's name for an answer; None if there is no cache."""
    if disk.directory() is None:
        return None
    return disk.key("race", what, str(torch.get_num_threads()))


def _run(programs: Mapping[str, Program]) -> dict[str, float]:
    (first, *_) = programs.values()
    values = [_operand(argument) for argument in first.arguments]
    runs = {name: Executable(program) for name, program in programs.items()}
    for run in runs.values():
        run(values)
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + _SECONDS
    for n in range(1, _MOST + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(values)
            best[name] = min(best[name], time.perf_counter() - start)
        if n >= _CLEAR_ROUNDS and max(best.values()) > _CLEAR * min(best.values()):
            break
        if n >= _LEAST and time.perf_counter() > end:
            break
    return best


def _operand(argument: Argument) -> torch.Tensor:
    """A tensor of random numbers for an argument, dense in whatever order its strides say."""
    ty = argument.type
    numbers = _numbers().repeat(-(-ty.numel // _NUMBERS))[: ty.numel]
    return numbers.as_strided(ty.shape, argument.strides)


@cache
def _numbers() -> torch.Tensor:
    return torch.randn(_NUMBERS, generator=torch.Generator().manual_seed(0))
