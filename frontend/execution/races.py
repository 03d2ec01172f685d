"""Measures kernels on this processor: short runs in turn, each comparison once, results kept on disk.

Other work on the same cores would decide a race by chance. So a run counts only if its threads hardly waited for a
core, which Linux reports for each thread. A race without such a run has no result. On a busy machine every race would
take its longest time without one, so a compilation stops after several in a row.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from gflow.compiler.driver.races import Racing, Ways
from gflow.compiler.targets.processors import measured_here
from gflow.dialects.program import Argument, Program
from gflow.dialects.program.processor import processor
from gflow.runtime.cpu import jit
from gflow.runtime.cpu.table import kernels_of
from gflow.runtime.executable import Executable
from gflow.runtime.stored import cache as disk

#: the least and the most rounds of a race (in a round each program runs once), and seconds after which none is begun
_LEAST, _MOST, _SECONDS = 3, 12, 0.015
#: rounds after which a race ends if one program takes so many times as long as another
_CLEAR_ROUNDS, _CLEAR = 2, 1.3
#: the share of a run that its threads may have waited for cores, and by what factor a race without such a run is longer
_DISTURBED, _PATIENCE = 0.1, 4
#: races in a row without an answer, after which none is run
_BUSY = 3
#: random numbers that operands are filled with, repeated
_NUMBERS = 1 << 16

#: results of this process, by comparison and number of threads: equal products get the same kernel
_known: dict[tuple[str, int], dict[str, float]] = {}


def racing() -> Racing:
    """Measuring on this machine, for one compilation."""
    races = Races()
    return Racing(races.measure, _device(), races.prepare, measured_here)


@cache
def _device() -> str:
    for line in processor().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "this processor"


class Races:
    """The races of one compilation.

    unanswered: races in a row without a result. After `_BUSY` of them the machine counts as busy: no more races are
    run, and the model's choices stay.
    """

    def __init__(self) -> None:
        self.unanswered = 0

    @property
    def busy(self) -> bool:
        """Whether no more races are run."""
        return self.unanswered >= _BUSY

    def prepare(self, races: Sequence[tuple[str, Ways]]) -> None:
        """Compile the kernels of the races to come in one module: the fixed cost of LLVM is that of a small kernel."""
        kernels: dict[str, str] = {}
        declarations: dict[str, str] = {}
        for what, ways in races:
            if _answer(what) is None and not self.busy:
                for program in ways().values():
                    texts, called = kernels_of(program)
                    kernels |= texts
                    declarations |= called
        if kernels:
            jit.compile_kernels(kernels, declarations)

    def measure(self, what: str, ways: Ways) -> Mapping[str, float]:
        """Seconds of each program: the least over its undisturbed runs. Empty where one had none, or on a busy machine.

        what: names the comparison; the key of its stored result. ways: makes the programs, by name.
        """
        found = _answer(what)
        if found is None and self.busy:
            return {}  # a later compilation tries again
        if found is None:
            found = _run(ways())
            self.unanswered = 0 if found else self.unanswered + 1
            if found and (name := _name(what)) is not None:
                disk.write("races", name, json.dumps(found).encode())
            _known[what, torch.get_num_threads()] = found
        return found


def _answer(what: str) -> dict[str, float] | None:
    """The result of an earlier race, of this process or on disk."""
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
    """The least seconds of each program; nothing if one had no undisturbed run."""
    (first, *_) = programs.values()
    values = [_operand(argument) for argument in first.arguments]
    runs = {name: Executable(program) for name, program in programs.items()}
    for run in runs.values():
        run(values)
    best = dict.fromkeys(runs, float("inf"))
    rounds, start = 0, time.perf_counter()
    while True:
        for name, run in runs.items():
            waits, began = _waits(), time.perf_counter()
            run(values)
            took = time.perf_counter() - began
            if waited_for_cores(waits, _waits()) <= _DISTURBED * took:
                best[name] = min(best[name], took)
        rounds += 1
        undisturbed = max(best.values()) < float("inf")
        if (
            undisturbed
            and rounds >= _CLEAR_ROUNDS
            and max(best.values()) > _CLEAR * min(best.values())
        ):
            return best
        passed = time.perf_counter() - start
        if undisturbed and (rounds >= _MOST or (rounds >= _LEAST and passed > _SECONDS)):
            return best
        if passed > _PATIENCE * _SECONDS and rounds >= _LEAST:
            return best if undisturbed else {}


def _waits() -> dict[str, int]:
    """By thread of this process, nanoseconds in which it was ready to run and another had its core
    (`/proc/<pid>/task/<tid>/schedstat`); empty where the system does not tell."""
    found = {}
    try:
        for entry in os.scandir("/proc/self/task"):
            found[entry.name] = int(Path(entry.path, "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # no such file, or a thread that ends meanwhile
        return {}
    return found


def waited_for_cores(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Seconds that threads waited between two times, all together; each time has waits by thread."""
    return sum(after[t] - n for t, n in before.items() if t in after) / 1e9


def _operand(argument: Argument) -> torch.Tensor:
    """A tensor of random numbers for an argument, dense in whatever order its strides say."""
    ty = argument.type
    numbers = _numbers().repeat(-(-ty.numel // _NUMBERS))[: ty.numel]
    return numbers.as_strided(ty.shape, argument.strides)


@cache
def _numbers() -> torch.Tensor:
    return torch.randn(_NUMBERS, generator=torch.Generator().manual_seed(0))
