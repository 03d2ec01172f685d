"""Programs whose inputs have other sizes from call to call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

from .program import Call, Json, Program, TensorSpec

#: seeds from here on are programs whose sizes vary, where eager takes others
VARYING = 20_000_000
#: from here on two sizes vary on their own, where eager takes others
BOTH = 30_000_000


def at_call(program: Program, call: int) -> Program:
    """The program with the tensors of one call."""
    varying = [s for s in (program.settings.sizes, program.settings.others) if s]
    return resized(program, {s[0]: s[call] for s in varying}) if varying and call else program


def resized(program: Program, others: dict[int, int]) -> Program:
    """The program with other sizes in the inputs, by what they are."""
    storages = list(program.storages)
    tensors = []
    for spec in program.tensors:
        if spec.role == "input" and not others.keys().isdisjoint(spec.shape):
            shape = tuple(others.get(s, s) for s in spec.shape)
            strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
            storages[spec.storage] = replace(storages[spec.storage], size=prod(shape))
            spec = replace(spec, shape=shape, strides=strides)
        tensors.append(spec)
    return replace(program, storages=tuple(storages), tensors=tuple(tensors))


def varying(program: Program, runs: Callable[[Program], bool]) -> Program:
    """The program with calls of several sizes, if eager takes them; else as it is. runs: whether it does."""
    rng = random.Random(program.seed)
    for size in rng.sample(found := _candidates(program), len(found)):
        others = rng.sample([n for n in (2, 3, 4, 5, 6, 7, 9, 12, 17, 40) if n != size], 3)
        sizes = (size, *others[:2], size, others[2])
        settings = replace(program.settings, sizes=sizes, calls=len(sizes))
        for text in (_by_shape(program, size), program.calls):
            candidate = replace(program, calls=text, settings=settings)
            if runs(candidate):
                return _with_another(candidate, rng, runs) if program.seed >= BOTH else candidate
    return program


def _with_another(program: Program, rng: random.Random, runs: Callable[[Program], bool]) -> Program:
    """The program with a second size that varies, if eager takes it."""
    (size, *_) = program.settings.sizes
    found = [s for s in _candidates(program) if s != size]
    for other in rng.sample(found, len(found)):
        a, b, c = rng.sample([n for n in (2, 3, 4, 5, 6, 7, 9, 12, 17, 40) if n != other], 3)
        settings = replace(program.settings, others=(other, a, b, b, c))
        for text in (_by_shape(program, other), program.calls):
            candidate = replace(program, calls=text, settings=settings)
            if runs(candidate):
                return candidate
    return program


def _candidates(program: Program) -> list[int]:
    """Sizes that inputs have, in tensors that are row-major and share no memory."""
    inputs = [t for t in program.tensors if t.role == "input" and t.same is None]
    sizes = sorted({s for t in inputs for s in t.shape if s > 1})
    return [s for s in sizes if all(_is_alone(program, t) for t in inputs if s in t.shape)]


def _is_alone(program: Program, spec: TensorSpec) -> bool:
    dense = tuple(prod(spec.shape[d + 1 :]) for d in range(len(spec.shape)))
    storage = program.storages[spec.storage]
    users = [t for t in program.tensors if t.storage == spec.storage]
    whole = storage.size == prod(spec.shape) and storage.values is None
    return len(users) == 1 and whole and not spec.offset and spec.strides == dense


def _by_shape(program: Program, size: int) -> tuple[Call, ...]:
    """The calls with a size of an input in place of the number."""
    where = next(
        f"{t.name}.shape[{t.shape.index(size)}]"
        for t in program.tensors
        if t.role == "input" and size in t.shape
    )

    def asked(value: Json) -> Any:
        if isinstance(value, dict):
            return {k: asked(v) if k in ("s", "t") else v for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(asked(v) for v in value)
        return {"py": where} if type(value) is int and value == size else value

    def calls() -> Iterator[Call]:
        for call in program.calls:
            kwargs = {k: asked(v) for k, v in call.kwargs.items()}
            yield replace(call, args=asked(call.args), kwargs=kwargs)

    return tuple(calls())
