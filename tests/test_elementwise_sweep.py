"""Every elementwise function of PyTorch at the values where types end, forward and backward, in dense, strided and 0-d
tensors, and between all pairs of types, beside eager. What differs in eager itself is in `elementwise_values.RULES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from elementwise_values import (
    BINARY,
    CANCELLING,
    DIVIDING,
    DTYPES,
    FLOATS,
    OTHER_TYPES,
    SUBNORMAL,
    TABLES,
    UNFUSED,
    Function,
    columns,
)
from torch import Tensor

import gflow as flow

#: what eager raises of operands that a function has no kernel for
_REFUSED = (RuntimeError, ZeroDivisionError, TypeError, ValueError, AttributeError)

pytestmark = pytest.mark.filterwarnings("ignore")


def _results(function: Function, operands: Sequence[Tensor]) -> list[Tensor]:
    """The result and the gradients."""
    leaves = [o.detach().requires_grad_() if o.dtype.is_floating_point else o for o in operands]
    y = function(*leaves)
    needing = [x for x in leaves if x.requires_grad]
    found = [y.detach()]
    if y.requires_grad:
        grads = torch.autograd.grad(y, needing, torch.ones_like(y), allow_unused=True)
        found += [torch.zeros_like(x) if g is None else g for x, g in zip(needing, grads)]
    return found


def _every(table: dict[str, Function], *operands: Tensor) -> list[list[Tensor]]:
    return [_results(function, operands) for function in table.values()]


def _strided(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(3)[::3]


def _close(got: Tensor, want: Tensor, size: Tensor | None = None) -> Tensor:
    """Where two results are the same: kinds of numbers, signs of zeros, values to a few units in the last place."""
    if not got.dtype.is_floating_point:
        return torch.isclose(got, want) if got.is_complex() else got == want
    info = torch.finfo(got.dtype)
    units = 32 if got.dtype in (torch.float32, torch.float64) else 1.01
    g, w = got.double(), want.double()
    slack = 2 * info.tiny * info.eps + (0 if size is None else 4 * info.eps * size)
    zeros = (g == 0) & (w == 0)
    near = w.isfinite() & ((g - w).abs() <= units * info.eps * w.abs() + slack)
    signs = (g.signbit() == w.signbit()) | (size is not None)
    same = torch.where(zeros, signs, near | (g == w))
    return same | (g.isnan() & w.isnan())


def _eager(function: Function, operands: list[Tensor]) -> list[list[Tensor]]:
    """What eager gives in one layout and another, by kernels for vectors, their tails, and single elements."""
    shift = len(operands[0]) // 2 + 3
    rolled = _results(function, [o.roll(shift) for o in operands])
    return [
        _results(function, operands),
        _results(function, [*map(_strided, operands)]),
        [r.roll(-shift) for r in rolled],
    ]


def _wrong(name: str, function: Function, got: list[Tensor], operands: list[Tensor]) -> list[str]:
    """Where results are none of those that are right."""
    dtype, found = operands[0].dtype, []
    rights = _eager(function, operands)
    if name in UNFUSED:
        rights.append(_results(UNFUSED[name], operands))
    exact = None
    if dtype in FLOATS and dtype != torch.float64:
        exact = _results(function, [o.double() for o in operands])
    size = None
    if name in CANCELLING and dtype.is_floating_point:
        size = torch.stack([o.double().abs().nan_to_num(0, 0, 0) for o in operands])
        size = size.clamp(1, 1e4).prod(0)
    for part, mine in enumerate(got):
        label = f"{name}{f' gradient {part}' * bool(part)} of {dtype}"
        first = rights[0][part]
        if mine.dtype != first.dtype or mine.shape != first.shape:
            found.append(
                f"{label}: {mine.dtype}{[*mine.shape]}, eager {first.dtype}{[*first.shape]}",
            )
            continue
        good = torch.stack([_close(mine, right[part], size) for right in rights]).any(0)
        if exact is not None and mine.dtype == dtype:
            kept = exact[part].isfinite() | (torch.finfo(dtype).bits == 16)
            good |= _close(mine, exact[part].to(dtype)) & kept
        if name in ("fmax", "fmin") and dtype == torch.bfloat16:
            good |= (mine == 0) & (first == 0)
        if name in SUBNORMAL and dtype.is_floating_point:
            least = torch.finfo(dtype).tiny
            good |= (mine.abs() < least) & (first.abs() < least)
        for i in (~good).nonzero().flatten().tolist():
            alone = _results(function, [o[i] for o in operands])[part]
            if not _close(mine[i], alone):
                at = ", ".join(str(o[i].item()) for o in operands)
                found.append(f"{label} at ({at}): {mine[i].item()}, eager {first[i].item()}")
                break
    return found


def _known(table: dict[str, Function], operands: list[Tensor]) -> dict[str, Function]:
    """The functions that eager has kernels for."""
    found = {}
    for name, function in table.items():
        if name in DIVIDING and not operands[0].dtype.is_floating_point:
            continue
        try:
            _results(function, operands)
        except _REFUSED:
            continue
        found[name] = function
    return found


def _by_backend(
    table: dict[str, Function], operands: Sequence[Tensor], arrange: Callable[[Tensor], Tensor]
) -> list[list[Tensor]]:
    """`_every` through `torch.compile`, each function on operands of its own."""
    each = [[arrange(o).detach() for o in operands] for _ in table]
    for x in itertools.chain(*each):
        x.requires_grad_(x.is_floating_point())
    count, functions = len(operands), [*table.values()]

    def results(*flat: Tensor) -> list[Tensor]:
        return [f(*flat[n * count : (n + 1) * count]) for n, f in enumerate(functions)]

    torch._dynamo.reset()
    found = torch.compile(results, backend="gflow", fullgraph=True)(*itertools.chain(*each))
    through = [y for y in found if y.requires_grad]
    takers = [x for y, given in zip(found, each) for x in given if y.requires_grad]
    takers = [x for x in takers if x.requires_grad]
    seeds = [torch.ones_like(y) for y in through]
    grads = dict[int, Tensor | None]()
    if through:
        given = torch.autograd.grad(through, takers, seeds, allow_unused=True)
        grads = {id(x): g for x, g in zip(takers, given)}
    return [
        [y.detach(), *(_or_zeros(grads[id(x)], x) for x in own if id(x) in grads)]
        for y, own in zip(found, each)
    ]


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _disagreements(
    arity: int,
    dtype: torch.dtype,
    layouts: Iterable[Callable[[Tensor], Tensor]],
    every: int = 1,
    frontend: str = "compile",
) -> list[str]:
    operands = columns((dtype,) * arity)
    table = _known(dict([*TABLES[arity].items()][::every]), operands)
    if dtype.is_floating_point:
        table.pop("prelu", None)  # of one slope
    compiled = flow.compile(partial(_every, table))
    found = []
    for arrange in layouts:
        if frontend == "backend":
            results = _by_backend(table, operands, arrange)
        else:
            results = compiled(*map(arrange, operands))
        for (name, function), got in zip(table.items(), results):
            found += _wrong(name, function, got, operands)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("arity", TABLES)
def test_a_share(arity: int, dtype: torch.dtype) -> None:
    assert not _disagreements(arity, dtype, [_strided], every=12 if arity == 1 else 7)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("arity", TABLES)
@pytest.mark.parametrize("frontend", ["compile", "backend"])
def test_all(arity: int, dtype: torch.dtype, frontend: str) -> None:
    found = _disagreements(arity, dtype, [Tensor.clone, _strided], 1, frontend)
    assert not found, "\n".join(found)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_elements(dtype: torch.dtype) -> None:
    """0-d tensors, one for each value."""
    found = []
    for arity, step in ((1, 1), (2, 5)):  # eager's vectors and their tails hold each value
        operands = columns((dtype,) * arity)
        table = _known({n: f for n, f in TABLES[arity].items() if n != "prelu"}, operands)
        compiled = flow.compile(partial(_every, table))
        rows = [compiled(*(o[i] for o in operands)) for i in range(0, len(operands[0]), step)]
        some = [o[::step] for o in operands]
        for n, (name, function) in enumerate(table.items()):
            got = [torch.stack([r[n][part] for r in rows]) for part in range(len(rows[0][n]))]
            found += _wrong(name, function, got, some)
    assert not found, "\n".join(found)


# types

#: beside the functions of two tensors, those that write into the first
WRITING: dict[str, Function] = {
    "add_": lambda x, y: x.clone().add_(y),
    "mul_": lambda x, y: x.clone().mul_(y),
    "div_": lambda x, y: x.clone().div_(y),
    "copy_": lambda x, y: x.clone().copy_(y),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
}  # fmt: skip
NUMBERS = (True, 2, -3, 2.5, 1e10)


def _some(dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False])
    numbers = [3, 200, 1, 7, 2] if dtype == torch.uint8 else [3, -5, 1, 100, 7]
    return torch.tensor([1.5, -2.25, 3.5, 0.5, 100.0] if dtype.is_floating_point else numbers).to(
        dtype,
    )


def _promoted(
    functions: dict[str, Function], args: tuple[Any, ...], compile: Any = flow.compile
) -> list[str]:
    """Functions whose results have another type than eager's, or are further away than a unit of the narrowest type."""
    want: dict[str, Tensor] = {}
    for name, function in functions.items():
        try:
            want[name] = function(*args)
        except _REFUSED:
            continue
    got = compile(lambda *given: [functions[name](*given) for name in want])(*args)
    types = [a.dtype for a in args if isinstance(a, Tensor) and a.dtype.is_floating_point]
    eps = max([torch.finfo(t).eps for t in types], default=torch.finfo(torch.float32).eps)
    found = []
    for (name, right), mine in zip(want.items(), got):
        label = f"{name} of {[a.dtype if isinstance(a, Tensor) else a for a in args]}"
        if (mine.dtype, mine.shape) != (right.dtype, right.shape):
            found.append(f"{label}: {mine.dtype}, eager {right.dtype}")
            continue
        slack = 64 * eps if mine.dtype.is_floating_point else 0.0
        if not torch.allclose(mine.double(), right.double(), slack, slack, equal_nan=True):
            found.append(f"{label}: {mine.tolist()}, eager {right.tolist()}")
    return found


def _pairs(first: torch.dtype, second: torch.dtype, compile: Any = flow.compile) -> list[str]:
    table = {n: f for n, f in (BINARY | WRITING).items() if n not in OTHER_TYPES | {"prelu"}}
    if not (first.is_floating_point or second.is_floating_point):
        table = {n: f for n, f in table.items() if n not in DIVIDING}
    x, y = _some(first), _some(second).roll(1)
    found = []
    for args in ((x, y), (x, y[1]), (x[1], y), (x[1], y[1])):
        found += _promoted(table, args, compile)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [(torch.float16, torch.float64), (torch.int8, torch.bfloat16), (torch.uint8, torch.int16)],
    ids=str,
)
def test_a_share_of_types(first: torch.dtype, second: torch.dtype) -> None:
    found = _pairs(first, second)
    assert not found, "\n".join(found)


def _by_torch(function: Function) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="gflow", fullgraph=True)


@pytest.mark.sweep
@pytest.mark.parametrize("first", DTYPES, ids=str)
@pytest.mark.parametrize("compile", [flow.compile, _by_torch], ids=["compile", "backend"])
def test_pairs_of_types(first: torch.dtype, compile: Any) -> None:
    found = [text for second in DTYPES for text in _pairs(first, second, compile)]
    assert not found, "\n".join(found)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_beside_numbers(dtype: torch.dtype) -> None:
    table = {n: f for n, f in BINARY.items() if n not in DIVIDING and n != "prelu"}
    found = []
    for number, x in itertools.product(NUMBERS, (_some(dtype), _some(dtype)[1])):
        right = {n: lambda x, f=f, number=number: f(x, number) for n, f in table.items()}
        left = {
            f"reversed {n}": lambda x, f=f, number=number: f(number, x) for n, f in table.items()
        }
        found += [f"{number}: {text}" for text in _promoted(right | left, (x,))]
    assert not found, "\n".join(found)
