"""The tensors of a program: values of storages, strides, and layouts to draw from."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .program import Program, Storage, TensorSpec, dtype_of

Tensor = torch.Tensor
Generator = torch.Generator

#: what lies in the elements of a storage that no tensor shows, and must stay there
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-40,
    1e30,
    -1e30,
    0.5,
    2.0,
    65504.0,
)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within, what tensors are made in where nothing is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _normal(n: int, g: Generator) -> Tensor:
    return torch.randn(n, generator=g, dtype=torch.float64)


def _special(n: int, g: Generator) -> Tensor:
    values = torch.tensor(SPECIAL, dtype=torch.float64)
    chosen = values[torch.randint(0, len(SPECIAL), (n,), generator=g)]
    return torch.where(torch.rand(n, generator=g, dtype=torch.float32) < 0.3, chosen, _normal(n, g))


FILLS: Mapping[str, Callable[[int, Generator], Tensor]] = {
    "normal": _normal,
    "small": lambda n, g: 0.1 * _normal(n, g),
    "positive": lambda n, g: torch.rand(n, generator=g, dtype=torch.float64) + 0.1,
    "unit": lambda n, g: torch.rand(n, generator=g, dtype=torch.float64),
    "integers": lambda n, g: torch.randint(-3, 4, (n,), generator=g).double(),
    "large": lambda n, g: 1000 * _normal(n, g),
    "special": _special,
    "zeros": lambda n, g: torch.zeros(n, dtype=torch.float64),
}
#: of integer storages: kind → (low, high)
INTEGERS = {
    "normal": (-5, 6),
    "small": (0, 3),
    "index": (0, 2),
    "wide": (-100, 100),
    "positive": (1, 9),
}


def memory(storage: Storage, call: int = 0) -> Tensor:
    """The elements of a storage, as they are before call number `call`."""
    dtype = dtype_of(storage.dtype)
    if storage.values is not None:
        made = [complex(*map(float, v)) if isinstance(v, list) else v for v in storage.values]
        return torch.tensor([_number(v) for v in made], dtype=dtype)
    g = torch.Generator().manual_seed(storage.seed * 1009 + call)
    if dtype == torch.bool:
        return torch.rand(storage.size, generator=g, dtype=torch.float32) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        low, high = INTEGERS.get(storage.fill, (-5, 6))
        if dtype == torch.uint8:
            low, high = max(low, 0), max(high, 1)
        return torch.randint(low, high, (storage.size,), generator=g).to(dtype)
    fill = FILLS[storage.fill]
    if dtype.is_complex:
        return torch.complex(fill(storage.size, g), fill(storage.size, g)).to(dtype)
    return fill(storage.size, g).to(dtype)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def view(spec: TensorSpec, elements: Tensor) -> Tensor:
    """The tensor as a view of its storage's elements. A dense one that is all of them is made with
    nothing else in its storage, as a user's tensor is."""
    return elements.as_strided(spec.shape, spec.strides, spec.offset)


def make(
    program: Program, call: int = 0, wider: bool = False
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """(elements of all storages, tensors by name). wider: in float64."""
    storages = [memory(s, call) for s in program.storages]
    if wider:
        storages = [widened(s) for s in storages]
    tensors: dict[str, Tensor] = {}
    for spec in program.tensors:
        if spec.same is not None:
            tensors[spec.name] = tensors[spec.same]
            continue
        t = view(spec, storages[spec.storage])
        if spec.requires_grad:
            t.requires_grad_()
        tensors[spec.name] = t
    return storages, tensors


def widened(t: Tensor) -> Tensor:
    if t.dtype.is_complex:
        return t.to(torch.complex128)
    return t.double() if t.dtype.is_floating_point else t.clone()


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of storage from a tensor's first to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def random_layout(rng: random.Random, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """(strides, offset, elements after the end) of a tensor: row-major mostly; else permuted, sliced
    with steps and offsets, channels-last, expanded or overlapping."""
    rank = len(shape)
    kind = rng.random()
    dense = contiguous(shape)
    if kind < 0.45 or not rank:
        return dense, (rng.choice((0, 1, 3)) if kind < 0.06 else 0), 0
    if kind < 0.65:  # permuted
        order = rng.sample(range(rank), rank)
        strides, step = [0] * rank, 1
        for d in order:
            strides[d], step = step, step * max(shape[d], 1)
        return tuple(strides), 0, 0
    if kind < 0.72 and rank in (4, 5):  # channels last
        order = [1, *range(rank - 1, 1, -1), 0]
        strides, step = [0] * rank, 1
        for d in order:
            strides[d], step = step, step * max(shape[d], 1)
        return tuple(strides), 0, 0
    if kind < 0.90:  # a slice of something larger, perhaps permuted
        order = rng.sample(range(rank), rank) if rng.random() < 0.4 else list(range(rank))[::-1]
        strides, step = [0] * rank, 1
        for d in order:
            every = rng.choice((1, 1, 2, 3))
            strides[d] = step * every
            step *= max(shape[d] * every + rng.choice((0, 0, 1)), 1)
        return tuple(strides), rng.choice((0, 0, 1, 5)), rng.choice((0, 2))
    if kind < 0.96:  # expanded
        chosen = [d for d in range(rank) if rng.random() < 0.5] or [0]
        kept = contiguous([1 if d in chosen else n for d, n in enumerate(shape)])
        return tuple(0 if d in chosen else s for d, s in enumerate(kept)), 0, 0
    # overlapping windows
    return tuple(rng.choice((1, 1, 2, s)) for s in dense), 0, 0
