"""Runs a program whose parameters are frozen: a prologue computes once what follows from them alone.

What the prologue read is looked at before each call (`runtime/steps/watched.py`). Where it has changed, the prologue
runs again, so a call never sees values of parameters that are gone.
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
    """What a prologue computes, for the tensors that it was computed from last. Programs with equal prologues share
    one. names: of the tensors that it reads."""

    def __init__(self, program: Program, names: Sequence[str], where: torch.device | None) -> None:
        self.program, self.names = program, tuple(names)
        self._run: Executable = load_program(program, kept_results=0, where=where)
        self._lock = threading.Lock()
        self._watched: Watched | None = None
        self._values: list[torch.Tensor] = []
        self.runs = 0

    def of(self, tensors: Sequence[torch.Tensor], places: list[int]) -> list[torch.Tensor]:
        """The prologue's results for these tensors, which lie at `places`."""
        with self._lock:
            if self._watched is None or not self._watched.same(tensors, places):
                self._watched = None  # given up in the middle, it is computed anew
                watched = Watched(tensors, places)
                self._values = self._run(list(tensors))
                self._run.close()
                self._watched = watched
                self.runs += 1
            return self._values

    @property
    def bytes(self) -> int:
        """Of all results."""
        return sum(r.type.nbytes for r in self.program.results)


_shared: WeakValueDictionary[Any, Constants] = WeakValueDictionary()


def constants_of(
    program: Program,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    where: torch.device | None = None,
) -> Constants:
    """What a prologue computes; the same for one that is equal and of the same tensors. names: of these."""
    # of the IR the numbers of arguments differ, where other programs have other arguments
    content = repr(replace(program, ir="", seal="")).encode()
    told = hashlib.sha256(content).hexdigest()
    key = (told, tuple(names), *map(torch.Tensor.data_ptr, tensors), where)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Constants(program, names, where)
    return found


class Frozen:
    """Runs a program as an `Executable`, on the arguments that it has without a prologue.

    constants: what the prologue computes. reads: the positions of what it reads among the arguments. run: the program.
    given: of each of its arguments the position; -1 - n of the n-th constant.
    """

    def __init__(
        self, constants: Constants, reads: Sequence[int], run: Executable, given: Sequence[int]
    ) -> None:
        self.constants, self.reads, self.run = constants, tuple(reads), run
        self.given = tuple(given)
        self.executables = [run]

    @property
    def program(self) -> Program:
        """What runs at each call."""
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
        """As of an `Executable`."""
        return self.run.no_graph

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(self.arguments(arguments))

    def timed(self, arguments: Sequence[torch.Tensor]) -> Any:
        """As `Executable.timed`, of the program that runs at each call."""
        start = time.perf_counter()
        mine = self.arguments(arguments)
        results, times, spans = self.run.timed(mine)
        looked: HostSpan = ("frozen parameters", start, spans[0][1])
        return results, times, [looked, *spans]

    def constants_now(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the prologue computes, for these arguments; None stands for those that it does not read."""
        tensors = [arguments[n] for n in self.reads]
        return self.constants.of(tensors, addresses_of(tensors))

    def arguments(self, arguments: Sequence[torch.Tensor]) -> Placed:
        """Those of the program, from those of a call."""
        places = addresses_of(arguments)
        constants = self.constants.of(
            [arguments[n] for n in self.reads], [places[n] for n in self.reads]
        )
        found = Placed(arguments[n] if n >= 0 else constants[-1 - n] for n in self.given)
        found.addresses = [
            places[n] if n >= 0 else constants[-1 - n].data_ptr() for n in self.given
        ]
        return found
