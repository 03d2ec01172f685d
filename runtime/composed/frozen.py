"""Runs a program with frozen parameters: a prologue computes values that depend only on them, once.

Before each call the inputs of the prologue are compared with those of its latest run (`runtime/steps/watched.py`). If
one has changed, the prologue runs again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch

from gflow.dialects.program import Program

from ..executable import Executable, HostSpan
from ..loading import load_program
from ..steps.watched import Watched
from ..tensors import Placed, addresses_of


class Constants:
    """The results of a prologue for the tensors of its latest run. Programs with equal prologues share them.

    names: the names of the tensors that it reads.
    """

    def __init__(self, program: Program, names: Sequence[str], where: torch.device | None) -> None:
        self.program, self.names = program, tuple(names)
        self._run: Executable = load_program(program, kept_results=0, where=where)
        self._lock = threading.Lock()
        self._watched: Watched | None = None
        self._values: list[torch.Tensor] = []
        self.runs = 0

    def of(self, tensors: Sequence[torch.Tensor], places: list[int]) -> list[torch.Tensor]:
        """The results of the prologue for these tensors, which have the addresses `places`."""
        with self._lock:
            if self._watched is None or not self._watched.same(tensors, places):
                self._watched = None  # after an interrupt, it is computed again
                watched = Watched(tensors, places)
                self._values = self._run(list(tensors))
                self._run.close()
                self._watched = watched
                self.runs += 1
            return self._values

    @property
    def bytes(self) -> int:
        """The bytes of all results of the prologue."""
        return sum(r.type.nbytes for r in self.program.results)


_shared: WeakValueDictionary[Any, Constants] = WeakValueDictionary()


def constants_of(
    program: Program,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    where: torch.device | None = None,
) -> Constants:
    """The results of a prologue. Equal prologues of the same tensors share them.

    Args:
        program: the prologue.
        names: the names of the tensors that it reads.
        tensors: these tensors.
        where: the device; None: the CPU.
    """
    # the IR has the numbers of arguments, which differ between programs with other arguments
    content = repr(replace(program, ir="", seal="")).encode()
    told = hashlib.sha256(content).hexdigest()
    key = (told, tuple(names), *map(torch.Tensor.data_ptr, tensors), where)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Constants(program, names, where)
    return found


class Frozen:
    """Runs a program with a prologue. It has the interface of an `Executable`, with the arguments before freezing.

    Attributes:
        constants: the results of the prologue.
        reads: the positions of the prologue's inputs among the arguments.
        run: the program that runs at each call.
        given: for each argument of that program, its position among the arguments, or -1 - n for result n of the
            prologue.
    """

    def __init__(
        self, constants: Constants, reads: Sequence[int], run: Executable, given: Sequence[int]
    ) -> None:
        self.constants, self.reads, self.run = constants, tuple(reads), run
        self.given = tuple(given)
        self.executables = [run]

    @property
    def program(self) -> Program:
        """The program that runs at each call."""
        return self.run.program

    @property
    def done(self) -> bool:
        """Whether the latest call has taken place."""
        return self.run.done

    @done.setter
    def done(self, value: bool) -> None:
        self.run.done = value

    @property
    def no_graph(self) -> str | None:
        """As `Executable.no_graph`."""
        return self.run.no_graph

    @property
    def graph_copies(self) -> str:
        """As `Executable.graph_copies`."""
        return self.run.graph_copies

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(self.arguments(arguments))

    def timed(self, arguments: Sequence[torch.Tensor]) -> Any:
        """As `Executable.timed`, for the program that runs at each call."""
        start = time.perf_counter()
        mine = self.arguments(arguments)
        results, times, spans = self.run.timed(mine)
        looked: HostSpan = ("frozen parameters", start, spans[0][1])
        return results, times, [looked, *spans]

    def constants_now(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of the prologue for these arguments. Arguments that it does not read may be None."""
        tensors = [arguments[n] for n in self.reads]
        return self.constants.of(tensors, addresses_of(tensors))

    def arguments(self, arguments: Sequence[torch.Tensor]) -> Placed:
        """The arguments of the program, from those of a call."""
        places = addresses_of(arguments)
        constants = self.constants.of(
            [arguments[n] for n in self.reads], [places[n] for n in self.reads]
        )
        found = Placed(arguments[n] if n >= 0 else constants[-1 - n] for n in self.given)
        found.addresses = [
            places[n] if n >= 0 else constants[-1 - n].data_ptr() for n in self.given
        ]
        return found
