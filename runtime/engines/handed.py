"""Results of a program that stay in memory that an engine allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gflow.dialects.extents import N
from gflow.dialects.program import EngineStep, Place, Program, TensorRef
from gflow.dialects.types import row_major_strides

from ..sizes import fixed_ref

#: engines that can only write to memory of their own, from which results would be copied to their places
_OWN_MEMORY = ("xla",)


def handed_over(program: Program, n: N) -> Mapping[int, tuple[EngineStep, int]]:
    """The results of a program that an engine's step can return in its own memory, for a dynamic size of `n`.

    These are whole results, dense and row-major, that no other step accesses.

    Returns:
        By the number of the result: the step, and the number of the step's output.
    """
    steps = [s for s in program.steps if isinstance(s, EngineStep) and s.engine in _OWN_MEMORY]
    if not steps:
        return {}
    uses = Counter(p.index for p in _places(program.steps) if p.space == "result")
    found = {}
    for step in steps:
        for k, ref in enumerate(step.outputs):
            space, index, offset = ref.place
            if space != "result" or offset != 0 or uses[index] != 1:
                continue
            result = program.results[index]
            whole = ref.type == result.type and _is_dense(ref, n)
            if result.alias is None and whole:
                found[index] = step, k
    return found


def _is_dense(ref: TensorRef, n: N) -> bool:
    """Whether elements are row-major without gaps for a size of `n`."""
    fixed = fixed_ref(ref, n)
    return fixed.strides == row_major_strides(fixed.type.shape)


def _places(value: Any) -> Iterator[Place]:
    if isinstance(value, Place):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _places(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _places(getattr(value, field.name))
