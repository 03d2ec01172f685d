"""The interface of an engine's compiled code: it reads tensors and writes results to given places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


class NotFinite(Exception):
    """The probe of a model is not finite: its results must not be used. The exact model has to run."""


@dataclass
class Copies:
    """The bytes that a run copied because the engine cannot access them in place.

    operands: copied to memory that the engine can read. results: copied from the engine's own memory.
    """

    operands: int = 0
    results: int = 0


def dense(x: torch.Tensor, copies: Copies, alignment: int = 1) -> torch.Tensor:
    """The tensor, or a copy of it if it is not dense and row-major, or begins at no multiple of `alignment` bytes."""
    x = x.detach()
    if x.is_contiguous() and x.data_ptr() % alignment == 0:
        return x
    x = x.clone(memory_format=torch.contiguous_format)
    copies.operands += x.nbytes
    return x


def separate(place: torch.Tensor | None, operands: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The place if an engine may write it while it reads the operands, else None."""
    if place is None or not place.is_contiguous() or not place.numel():
        return None
    begin, end = place.data_ptr(), place.data_ptr() + place.nbytes
    for x in operands:
        if x.data_ptr() < end and begin < x.data_ptr() + x.nbytes:
            return None
    return place


def delivered(made: torch.Tensor, place: torch.Tensor | None, copies: Copies) -> torch.Tensor:
    """A result: in the engine's own memory, or copied to its place if it has one."""
    if place is None:
        return made
    copies.results += place.nbytes
    return place.copy_(made)


class EngineCode(ABC):
    """A region compiled by an engine.

    Attributes:
        copies: the bytes that the latest run copied.
        user: the object for which memory is attached; None if no memory is.
    """

    user: object = None

    def __init__(self) -> None:
        self.copies = Copies()

    def attach(
        self, user: object, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor | None]
    ) -> None:
        """Attach memory for `infer` and set `user`. `user` is None afterwards if an operand or a result would have to
        be copied."""
        self.user = None

    def operand(self, n: int, x: torch.Tensor) -> None:
        """Attach the memory of the dense tensor `x` as operand `n`."""
        raise NotImplementedError

    def result(self, n: int, x: torch.Tensor | None) -> None:
        """Attach the memory of the dense tensor `x` as result `n`; None: the engine allocates the result."""
        raise NotImplementedError

    def infer(self) -> None:
        """Run on the attached memory, and wait for the end.

        Raises:
            NotFinite: the model has a probe, which is not finite. Results were written, operands were not.
        """
        raise NotImplementedError

    @abstractmethod
    def run(
        self,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor | None],
        on_write: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        """Run once and wait for the end. Returns the results in order.

        results: the places of results; None leaves a result in the engine's memory. on_write: is called after all
            operands have been read, before the first result is written.
        """

    @classmethod
    @abstractmethod
    def compile(cls, code: bytes) -> EngineCode:
        """Compile a program in the engine's form.

        Raises:
            EngineUnavailable: the engine's package is not installed.
            RuntimeError: the engine refuses the program.
        """

    @classmethod
    @abstractmethod
    def load(cls, blob: bytes) -> EngineCode:
        """Load what `serialized` returned."""

    def serialized(self) -> bytes | None:
        """The compiled code as bytes for `load`; None if the engine cannot serialize it."""
        return None


class InPlaceCode(EngineCode):
    """Code of an engine that reads dense operands in place, and can write results to given memory."""

    def attach(
        self, user: object, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor | None]
    ) -> None:
        self.user = None
        if all(x.is_contiguous() for x in operands) and all(
            separate(place, operands) is not None for place in results
        ):
            self._set(operands, results)
            self.copies, self.user = Copies(), user

    def _set(
        self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor | None]
    ) -> None:
        for n, x in enumerate(operands):
            self.operand(n, x)
        for n, place in enumerate(results):
            self.result(n, place)

    def run(
        self,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor | None],
        on_write: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        self.user, copies = None, Copies()
        given = [dense(x, copies) for x in operands]
        places = [separate(place, given) for place in results]
        # results have the shapes of their places: an engine does not know them for a program with a dynamic size
        beside = [
            torch.empty(wanted.shape, dtype=wanted.dtype)
            if place is None and wanted is not None
            else place
            for place, wanted in zip(places, results)
        ]
        self._set(given, beside)
        on_write()
        self.infer()
        self.copies = copies
        own = [self.made(n) if x is None else x for n, x in enumerate(beside)]
        return [
            delivered(made, wanted, copies) if place is None else place
            for made, place, wanted in zip(own, places, results, strict=True)
        ]

    @abstractmethod
    def made(self, n: int) -> torch.Tensor:
        """Result `n` of the latest run, in the engine's memory."""
