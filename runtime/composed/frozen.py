"""Runs a program whose parameters are frozen: a prologue computes once what follows from them alone.

What the prologue read is looked at before each call: where it lies, how often PyTorch has changed it (version
counters), and a few of its elements, for changes past these counters (`p.data.mul_(2)`, NumPy). Where that differs, the
prologue runs again, so a call never sees values of parameters that are gone.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from gflow.dialects.program import Program

from ..executable import Executable, HostSpan
from ..loading import load_program
from ..tensors import Placed, addresses_of

#: elements that are looked at of each tensor
_SAMPLES = 8
_version: Callable[[torch.Tensor], int] = attrgetter("_version")
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Constants:
    """What a prologue computes, for the tensors that it was computed from last. Programs with equal prologues share
    one. names: of the tensors that it reads."""

    def __init__(self, program: Program, names: Sequence[str], where: torch.device | None) -> None:
        self.program, self.names = program, tuple(names)
        self._run: Executable = load_program(program, kept_results=0, where=where)
        self._lock = threading.Lock()
        self._held: list[torch.Tensor] = []
        self._places: list[int] = []
        self._versions: list[int] = []
        self._looks: list[_Look] = []
        self._values: list[torch.Tensor] = []
        self.runs = 0

    def of(self, tensors: Sequence[torch.Tensor], places: list[int]) -> list[torch.Tensor]:
        """The prologue's results for these tensors, which lie at `places`."""
        with self._lock:
            if not self._current(tensors, places):
                self._compute(tensors, places)
            return self._values

    def _current(self, tensors: Sequence[torch.Tensor], places: list[int]) -> bool:
        return (
            places == self._places
            and list(map(_version, tensors)) == self._versions
            and all(look.same() for look in self._looks)
        )

    def _compute(self, tensors: Sequence[torch.Tensor], places: list[int]) -> None:
        self._places = []  # given up in the middle, it is computed anew
        versions = list(map(_version, tensors))
        # memory that is held is no other tensor's, so an address tells a tensor
        self._held = [t.detach() for t in tensors]
        self._looks = _looks(self._held)
        self._values = self._run(list(tensors))
        self._run.close()
        self._versions, self._places = versions, list(places)
        self.runs += 1

    @property
    def bytes(self) -> int:
        """Of all results."""
        return sum(r.type.nbytes for r in self.program.results)


class _Look:
    """A few elements of each of some tensors of one width, as they are when this is made.

    One call of NumPy reads them all, by their distances from the first one: a call of PyTorch takes half a microsecond
    for each tensor. The tensors must be held for as long.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        parts = [*map(_sample, tensors)]
        width = parts[0].element_size()
        at = np.concatenate(
            [p.data_ptr() + width * p.stride(0) * np.arange(len(p), dtype=np.int64) for p in parts]
        )
        if (at % width).any():  # then byte by byte
            at, width = (at[:, None] + np.arange(width)).ravel(), 1
        first, last = int(at.min()), int(at.max())
        self._at = (at - first) // width
        self._memory = np.asarray(_Memory(first, (last - first) // width + 1, width))
        self._was = self._memory.take(self._at)

    def same(self) -> bool:
        """Whether they are as they were."""
        return np.array_equal(self._memory.take(self._at), self._was)


class _Memory:
    """What lies from an address on, as so many integers, for NumPy."""

    def __init__(self, address: int, count: int, width: int) -> None:
        self.__array_interface__ = {
            "data": (address, True), "shape": (count,), "typestr": f"<i{width}", "version": 3,
        }  # fmt: skip


def _looks(tensors: Sequence[torch.Tensor]) -> list[_Look]:
    """Looks at tensors on the CPU; on a GPU, looking would wait for it."""
    widths: dict[int, list[torch.Tensor]] = {}
    for t in tensors:
        if t.device.type == "cpu" and t.numel() and not t.is_complex():
            widths.setdefault(t.element_size(), []).append(t)
    return [_Look(found) for found in widths.values()]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Elements from the first to the last, at equal distances, as integers that share the tensor's memory."""
    bits = _BITS[tensor.element_size()]
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    if reach == tensor.numel():  # dense in some order
        count = min(reach, _SAMPLES)
        step = (reach - 1) // (count - 1) if count > 1 else 1
        return tensor.view(bits).as_strided((count,), (step,), tensor.storage_offset())
    row = tensor.view(bits)
    while row.dim() > 1:
        row = row[0]
    return row[:_SAMPLES]


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
