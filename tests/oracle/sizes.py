"""Programs whose inputs have other sizes from call to call."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

from .program import Call, Json, Program, Storage, TensorSpec

#: seeds from here on are programs whose sizes vary, where eager takes others
VARYING = 20_000_000
#: from here on two sizes vary on their own, where eager takes others
BOTH = 30_000_000
#: from here on calls use parts of a table of a fixed size, too
TABLES = 60_000_000

_ROWS = 41  # at least the greatest size
#: parts of a table T by a size N, and what N makes of it
_PARTS = (
    "T[:N]", "T[-N:]", "T[G - N:]", "T[N:]", "T[N - 1]", "T[-N]", "T[N // 2]", "T[: N // 2]", "T[:N:2]",
    "T.narrow(0, G - N, N)", "T.select(0, N - 1)", "torch.split(T, [N, G - N])[1]", "T[None].expand(N, -1, -1)",
    "F.pad(T[:N], (0, 0, 0, G - N))", "F.pad(T[:N], (0, 0, G - N, 0), value=2.0)", "F.pad(T, (0, 0, 0, N - G))",
    "F.pad(T[:N], (0, 0, 7 - N, 0))", "torch.roll(T, N - 5, 0)", "torch.roll(T[:N], 5 - N, 0)",
    "torch.slice_scatter(T, T[:N] * 2, 0, G - N, G)", "torch.slice_scatter(T, T[:N] * 2, 0, 0, N)",
    "torch.select_scatter(T, T[0] * 3, 0, N - 1)", "torch.cat([T[N:], T[:N]])", "T[:N].var(0, correction=2)",
    "(T[:N] @ T.t()).diagonal(1)", "(T @ T[:N].t()).diagonal(-2)", "torch.tril(T[:N] @ T.t(), N - 6)",
    "torch.triu(T[:N] @ T[:N].t(), 5 - N)", "T.unfold(0, 2, 1)[:N]", "T.as_strided((N, 3), (3, 1))",
    "F.interpolate(T.t()[None], size=N)", "F.adaptive_avg_pool1d(T.t(), N)", "T[torch.arange(N)]",
    "T[torch.arange(N) + (G - N)]", "T.index_add(0, torch.arange(N), T[G - N:])", "T[0].repeat(N, 1)",
    "T.index_copy(0, torch.arange(G - N, G), T[:N])", "T[:N].cumsum(0)", "T[:N].softmax(0)",
)  # fmt: skip


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
                found = _with_another(candidate, rng, runs) if program.seed >= BOTH else candidate
                return _with_parts(found, size, rng, runs) if program.seed >= TABLES else found
    return program


def _with_parts(
    program: Program, size: int, rng: random.Random, runs: Callable[[Program], bool]
) -> Program:
    """The program with parts of a table, by the size that varies, among its results."""
    settings = program.settings
    table = TensorSpec(
        "table", len(program.storages), (_ROWS, 3), (3, 1), role="parameter", requires_grad=settings.grad
    )  # fmt: skip
    found = replace(
        program,
        storages=(*program.storages, Storage("float32", 3 * _ROWS, program.seed)),
        tensors=(*program.tensors, table),
    )
    where = _place(program, size)
    for number, part in enumerate(rng.sample(_PARTS, rng.randint(1, 3))):
        text = re.sub(
            r"\bN\b", where, re.sub(r"\bG\b", str(_ROWS), re.sub(r"\bT\b", "table", part))
        )
        call = Call(f"part{number}", "torch.mul", ({"py": text}, 1.5))
        more = replace(
            found, calls=(*found.calls, call), outputs=(*found.outputs, call.result)
        )  # fmt: skip
        found = more if runs(more) else found
    return found


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


def _place(program: Program, size: int) -> str:
    """The shape of an input that has a size, as Python."""
    return next(
        f"{t.name}.shape[{t.shape.index(size)}]"
        for t in program.tensors
        if t.role == "input" and size in t.shape
    )


def _by_shape(program: Program, size: int) -> tuple[Call, ...]:
    """The calls with a size of an input in place of the number."""
    where = _place(program, size)

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
