"""State of arguments on which a program depends besides shapes, dtypes and strides: attributes of a tensor, and
properties that code has read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from gflow.tracing.data.global_tensors import OWN
from gflow.tracing.dispatch.functions.proxies import Fact
from gflow.tracing.reads.of_modules import OF_TENSORS
from gflow.tracing.reads.state import same

_NOT_LOOKED_AT = OF_TENSORS | OWN


def attributes_of(names: Sequence[str], leaves: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The attributes of tensors among the leaves of a call, with names."""
    for name, leaf in zip(names, leaves):
        if isinstance(leaf, torch.Tensor):
            for key, value in vars(leaf).items():
                if key not in _NOT_LOOKED_AT:
                    yield f"{name}.{key}", value


class ArgumentGuard:
    """Checks that a call's tensors have the same attributes and properties as those of the traced call.

    Args:
        leaves: of the traced call.
        read: names that the code may look up; None for any.
        facts: properties of tensors that were read.
    """

    def __init__(
        self, leaves: Sequence[Any], read: Collection[str] | None, facts: Sequence[Fact]
    ) -> None:
        self._read = None if read is None else frozenset(read)
        self._places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._had = [self._named(leaves[k]) for k in self._places]
        at = {id(leaves[k]): k for k in reversed(self._places)}
        self._facts = [
            (at[id(f.real)], f.question, f.answer, f.name) for f in facts if id(f.real) in at
        ]

    def _named(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(tensor).items()
            if name not in _NOT_LOOKED_AT and (self._read is None or name in self._read)
        }

    def first_change(self, leaves: Sequence[Any]) -> str | None:
        """The first difference of a call with the same signature, as text; None if there is none."""
        for place, had in zip(self._places, self._had):
            if vars(leaves[place]) or had:
                now = self._named(leaves[place])
                if now.keys() != had.keys() or not all(same(now[n], had[n]) for n in had):
                    return f"the attributes of tensor {place} among the arguments have changed"
        for place, question, answer, name in self._facts:
            if question(leaves[place]) != answer:
                return f"{name} of tensor {place} among the arguments is no longer {answer}"
        return None
