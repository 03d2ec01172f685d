"""Grows a program call by call, on real tensors.

What a call may take is not modelled: a draw (`ops_*.py`) proposes one, eager runs it, and what eager
refuses is dropped; now and then it is kept, as the last call of a program that must raise.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .program import (
    Call,
    Json,
    Program,
    Storage,
    TensorSpec,
    dtype_of,
    expression,
    op_db_name,
    reads,
    statement,
)  # fmt: skip
from .settings import MODES, MODES_OF_STRUCTURES, Settings, random_settings
from .tensors import FILLS, contiguous, memory, random_layout, span, view

Tensor = torch.Tensor

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
#: dtype → how often it is the program's own
MAIN = {"float32": 50, "bfloat16": 12, "float16": 12, "float64": 12, "int64": 5, "int32": 3, "uint8": 2,
        "int8": 1, "int16": 1, "bool": 1, "complex64": 4}  # fmt: skip
NARROW = ("float16", "bfloat16")
#: results larger than this are dropped
MOST = 40_000
#: storages larger than this are made row-major
MOST_ELEMENTS = 1_000_000


class Rejected(Exception):
    """A draw that eager refuses, or that does not fit."""


@dataclass(frozen=True)
class Value:
    """A tensor of the growing program. ref: how calls name it."""

    name: str
    tensor: Tensor

    @property
    def ref(self) -> dict[str, str]:
        return {"r": self.name}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")


Condition = Callable[[Tensor], bool]


def is_float(t: Tensor) -> bool:
    return t.dtype.is_floating_point


def is_number(t: Tensor) -> bool:
    return t.dtype != torch.bool


def is_integer(t: Tensor) -> bool:
    return not t.dtype.is_floating_point and not t.dtype.is_complex and t.dtype != torch.bool


def is_bool(t: Tensor) -> bool:
    return t.dtype == torch.bool


@dataclass
class Growth:
    """A program as it grows. `rng` decides everything."""

    seed: int
    rng: random.Random
    settings: Settings
    main: str
    fill: str
    dims: Sequence[int]
    values: list[Value] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    elements: list[Tensor] = field(default_factory=list)
    tensors: list[TensorSpec] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    raises: str = ""
    rejected: int = 0

    # -- choosing

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def pick(self, *conditions: Condition) -> Value:
        """A value, a late one rather than an early one."""
        found = [v for v in self.values if all(c(v.tensor) for c in conditions)]
        if not found:
            raise Rejected("no such value")
        if self.chance(0.6):
            found = found[-6:]
        return self.rng.choice(found)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        return tuple(self.rng.choice(self.dims) for _ in range(rank))

    def dtype(self) -> str:
        if self.chance(0.85):
            return self.main
        kind = self.rng.random()
        if kind < 0.5:
            return self.rng.choice(FLOATS)
        return self.rng.choice((*INTEGERS, "bool"))

    def float_dtype(self) -> str:
        return self.main if self.main in FLOATS else "float32"

    def dim(self, v: Value) -> int:
        if not v.shape:
            raise Rejected("0-d")
        return self.rng.randrange(-len(v.shape), len(v.shape))

    def dims_of(self, v: Value, least: int = 0) -> list[int]:
        rank = len(v.shape)
        count = self.rng.randint(min(least, rank), rank)
        return [d - rank * self.chance(0.3) for d in self.rng.sample(range(rank), count)]

    def number(self, dtype: str = "") -> Json:
        """A Python number that fits a dtype, mostly."""
        if dtype in INTEGERS and self.chance(0.8):
            return self.rng.choice((1, 2, 3, -1, 5, 0, 7))
        if dtype == "bool" and self.chance(0.8):
            return self.rng.choice((True, False))
        return self.rng.choice((0.5, 2, 1.5, -1.0, 3, 0.1, 1, -2.5, 0, 1e-3, True))

    # -- arguments

    def argument(
        self, shape: Sequence[int], dtype: str, fill: str = "", role: str = "", grad: bool | None = None,
        values: Sequence[Json] | None = None, plain: bool = False,
    ) -> Value:  # fmt: skip
        """A new tensor of the program. plain: row-major, in memory of its own."""
        shape = tuple(shape)
        floating = dtype in FLOATS or dtype.startswith("complex")
        if not role:
            role = self._role(floating)
        strides, offset, rest = (
            (contiguous(shape), 0, 0) if plain else random_layout(self.rng, shape)
        )
        if role in ("parameter", "buffer") and self.chance(0.85):
            strides, offset, rest = contiguous(shape), 0, 0
        needed = offset + span(shape, strides)
        if needed > MOST_ELEMENTS:  # strides of strides
            strides, offset, rest, needed = contiguous(shape), 0, 0, span(shape, contiguous(shape))
        number = -1
        if values is not None:
            strides, offset, rest, needed = contiguous(shape), 0, 0, len(values)
        elif not plain and role == "input" and self.chance(0.06):
            number, offset = self._shared(dtype, needed, offset)
        if number < 0:
            number = len(self.storages)
            fill = fill or (self.fill if floating else "normal")
            self.storages.append(
                Storage(dtype, needed + rest, self.rng.randrange(1 << 30), fill,
                        None if values is None else tuple(values))
            )  # fmt: skip
            self.elements.append(memory(self.storages[-1]))
        if grad is None:
            leaf = role == "input" and self.settings.mode != "train"
            grad = leaf and self.settings.grad and floating and self.chance(0.6)
        grad = (grad or role == "parameter") and floating and self.settings.grad
        name = f"x{len(self.tensors)}"
        spec = TensorSpec(name, number, shape, strides, offset, role, bool(grad))
        self.tensors.append(spec)
        tensor = view(spec, self.elements[number])
        if grad:
            tensor.requires_grad_()
        self.env[name] = tensor
        made = Value(name, tensor)
        self.values.append(made)
        return made

    def _role(self, floating: bool) -> str:
        if self.settings.mode == "train" and floating:
            return self.rng.choice(("parameter", "parameter", "input", "buffer"))
        if self.settings.mode in ("graph", "graph_grad", "compile", "compile_grad"):
            return self.rng.choices(("input", "buffer", "closure"), (88, 8, 4))[0]
        return "input"

    def _shared(self, dtype: str, needed: int, offset: int) -> tuple[int, int]:
        """A storage of another argument that is large enough: two arguments share memory."""
        found = [
            i for i, s in enumerate(self.storages)
            if s.dtype == dtype and s.size >= needed and s.values is None
            and all(t.role == "input" and not t.requires_grad for t in self.tensors if t.storage == i)
        ]  # fmt: skip
        if not found:
            return -1, offset
        i = self.rng.choice(found)
        return i, self.rng.randint(0, self.storages[i].size - needed) + offset

    def index(
        self, shape: Sequence[int], high: int, negative: bool = False, distinct: bool = False
    ) -> Value:
        """An int64 argument of valid indices below `high`."""
        if high <= 0:
            raise Rejected("nothing to index")
        count = 1
        for n in shape:
            count *= n
        if distinct:
            if count > high:
                raise Rejected("too few distinct indices")
            values = self.rng.sample(range(high), count)
        else:
            values = [self.rng.randrange(-high if negative else 0, high) for _ in range(count)]
        dtype = "int32" if self.chance(0.04) else "int64"
        return self.argument(shape, dtype, role="input", values=values)

    def operand(self, like: Value, dtype: str | None = None) -> Value:
        """A tensor that broadcasts with `like`: an earlier value, or a new argument."""
        shape = like.shape
        if self.chance(0.6):
            fitting = [v for v in self.values if _broadcasts(v.shape, shape)]
            if dtype is not None:
                fitting = [v for v in fitting if v.dtype == dtype]
            if fitting:
                return self.rng.choice(fitting[-8:])
        if self.chance(0.4) and shape:  # broadcast
            shape = shape[self.rng.randrange(len(shape)) :] if self.chance(0.5) else shape
            shape = tuple(1 if self.chance(0.4) else n for n in shape)
        return self.argument(shape, dtype or (like.dtype if self.chance(0.8) else self.dtype()))

    def matching(self, shape: Sequence[int], dtype: str) -> Value:
        """A tensor of this shape and dtype: an earlier value, or a new argument."""
        shape = tuple(shape)
        found = [v for v in self.values if v.shape == shape and v.dtype == dtype]
        if found and self.chance(0.6):
            return self.rng.choice(found[-4:])
        return self.argument(shape, dtype)

    def floating(self, rank: int | None = None, least: int = 0) -> Value:
        """A floating-point value (of some rank), or a new argument."""

        def fits(t: Tensor) -> bool:
            return is_float(t) and (t.dim() == rank if rank is not None else t.dim() >= least)

        found = [v for v in self.values if fits(v.tensor)]
        if found and self.chance(0.8):
            return self.rng.choice(found[-6:])
        rank = self.rng.choice([r for r in (1, 2, 3, 4) if r >= least]) if rank is None else rank
        return self.argument(self.shape(rank), self.float_dtype())

    # -- calls

    def emit(self, target: str, *args: Any, effect: bool = False, **kwargs: Any) -> Value:
        """Run a call eagerly and keep it. effect: it is made for what it writes.

        Raises:
            Rejected: eager refuses it, or its result is too large, or no tensor.
        """
        made = [_json(a) for a in args]
        named = {k: _json(v) for k, v in kwargs.items()}
        name = "" if effect else f"v{len(self.calls)}"
        call = Call(name, target, tuple(made), named)
        if target.startswith("op_db:"):
            self.env[op_db_name(target)] = self.env["op_db"](target.removeprefix("op_db:"))
        try:
            exec(statement(call), self.env)
        except Exception as error:
            if self.chance(0.04) and not isinstance(
                error, (SyntaxError, NameError, AttributeError)
            ):
                self.calls.append(replace(call, result=""))
                self.raises = type(error).__name__
            self.rejected += 1
            raise Rejected(str(error)) from None
        if effect:
            self.calls.append(call)
            return Value("", torch.empty(0))
        result = self.env[name]
        parts = result if isinstance(result, (tuple, list)) else [result]
        if not parts or not all(isinstance(p, Tensor) for p in parts):
            raise Rejected("no tensor")
        if any(
            p.numel() > MOST or p.dim() > 6 or p.is_quantized or p.layout != torch.strided
            for p in parts
        ):
            raise Rejected("too large")
        self.calls.append(call)
        if isinstance(result, Tensor):
            values = [Value(name, result)]
        else:
            values = [Value(f"{name}[{i}]", p) for i, p in enumerate(parts)]
        self.values.extend(values)
        return values[0]

    def drop(self, value: Value) -> None:
        """Let no later call, and no output, take a value (its order of ties is nobody's promise)."""
        self.values = [v for v in self.values if v.name != value.name]

    # -- the whole

    def program(self, outputs: Sequence[str]) -> Program:
        wide = any(s.dtype in ("float64", "complex128") for s in self.storages)
        exact = not any(_narrows(c, wide) for c in self.calls)
        return Program(
            self.seed, tuple(self.storages), tuple(self.tensors), tuple(self.calls), tuple(outputs),
            self.settings, self.raises, exact,
        )  # fmt: skip


def _json(value: Any) -> Json:
    if isinstance(value, Value):
        return value.ref
    if isinstance(value, slice):
        return {"s": [_json(value.start), _json(value.stop), _json(value.step)]}
    if value is Ellipsis:
        return {"py": "..."}
    if isinstance(value, tuple):
        return {"t": [_json(v) for v in value]}
    if isinstance(value, list):
        return [_json(v) for v in value]
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    return value


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b)))


def _narrows(call: Call, wide: bool) -> bool:
    """Whether a call rounds to a narrower type than its operands have, by name."""
    text = statement(call)
    if any(f"torch.{d}" in text for d in NARROW) or ".view(torch." in text or "autocast'" in text:
        return True
    return wide and ("torch.float32" in text or "torch.complex64" in text)


def environment() -> dict[str, Any]:
    """What the text of a program may name."""
    from . import structures
    from .op_db import op_named

    return {
        "torch": torch,
        "F": torch.nn.functional,
        "op_db": op_named,
        "math": __import__("math"),
        "K": structures,
    }


Draw = Callable[[Growth], None]


#: seeds from here on have what surrounds ops (`structures`), too
STRUCTURES = 40_000_000


def draws(seed: int) -> list[tuple[float, Draw]]:
    """(weight, draw) of all tables."""
    from . import (
        ops_elementwise,
        ops_indexing,
        ops_networks,
        ops_reductions,
        ops_structures,
        ops_views,
    )
    from .op_db import DRAWS

    tables = (ops_elementwise, ops_indexing, ops_networks, ops_reductions, ops_views)
    found = [d for table in tables for d in table.DRAWS] + DRAWS
    return found + ops_structures.DRAWS if seed >= STRUCTURES else found


_SIZES = ((1, 2, 3, 4, 5), (2, 3, 4, 8), (1, 3, 7, 16), (4, 8, 16), (2, 5, 33), (1, 2, 64, 130))


def grow(seed: int) -> Program:
    """The program of a seed. The same seed gives the same program, whatever ran before."""
    rng = random.Random(seed)
    settings = random_settings(rng, MODES if seed < STRUCTURES else MODES_OF_STRUCTURES)
    main = rng.choices(list(MAIN), list(MAIN.values()))[0]
    if settings.grad or settings.amp or settings.autocast:
        main = rng.choices(FLOATS, (70, 14, 8, 8))[0]
    if settings.amp or settings.autocast:
        main = "float32"
    fill = rng.choices(list(FILLS), (50, 10, 8, 5, 6, 3, 8, 1))[0]
    if settings.mode == "train" and fill in ("special", "large"):
        fill = "normal"
    dims = rng.choices(_SIZES, (30, 20, 15, 15, 10, 5))[0]
    if rng.random() < 0.05:
        dims = (*dims, 0)
    growth = Growth(seed, rng, settings, main, fill, dims, env=environment())
    with torch.set_grad_enabled(settings.grad), warnings.catch_warnings(), _autocast(settings):
        warnings.simplefilter("ignore")
        for _ in range(rng.randint(1, 3)):
            growth.argument(growth.shape(), growth.dtype())
        if settings.mode == "train":
            growth.argument(growth.shape(), growth.float_dtype(), role="parameter")
        _twice(growth)
        wanted = rng.choice((1, 2, 3, 4, 5, 6, 8, 10, 14, 20))
        weights, table = zip(*draws(seed))
        tries = 0
        while len(growth.calls) < wanted and tries < 6 * wanted + 10 and not growth.raises:
            tries += 1
            try:
                rng.choices(table, weights)[0](growth)
            except Rejected:
                continue
    return growth.program(_outputs(growth))


def _autocast(settings: Settings) -> Any:
    if not settings.autocast:
        return torch.autocast("cpu", enabled=False)
    return torch.autocast("cpu", dtype_of(settings.autocast))


def _twice(growth: Growth) -> None:
    """One tensor as two arguments, now and then."""
    if not growth.chance(0.03):
        return
    first = growth.tensors[0]
    if first.role != "input":
        return
    spec = replace(first, name=f"x{len(growth.tensors)}", same=first.name)
    growth.tensors.append(spec)
    growth.env[spec.name] = growth.env[first.name]
    growth.values.append(Value(spec.name, growth.env[first.name]))


def _outputs(growth: Growth) -> list[str]:
    """What `build` returns: results that nothing reads, and some others."""
    used = {name for call in growth.calls for name in reads(call)}
    made = [v for v in growth.values if v.name.startswith("v")]
    loose = [v.name for v in made if v.name.partition("[")[0] not in used]
    others = [v.name for v in made if v.name not in loose]
    some = growth.rng.sample(others, min(len(others), growth.rng.choice((0, 1, 1, 2))))
    if growth.chance(0.05) and growth.values:
        some.append(growth.rng.choice(growth.values).name)
    chosen = (loose[-6:] + some)[:8]
    if growth.settings.grad and not any(
        growth_value.tensor.requires_grad
        for growth_value in growth.values
        if growth_value.name in chosen
    ):
        chosen += [v.name for v in growth.values if v.tensor.requires_grad][-1:]
    return list(dict.fromkeys(chosen)) or [growth.values[-1].name]


__all__ = ["Growth", "Rejected", "Value", "expression", "grow"]
