"""Checks of values that eager PyTorch makes, as `gflow.check` ops before the call.

A rule emits the conditions on a call's arguments; the call itself is lowered as if they held. Conditions and
exceptions are those of PyTorch's CPU kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gflow.dialects import extents
from gflow.dialects.extents import varies
from gflow.dialects.mlir import ir
from gflow.dialects.types import type_of
from gflow.tracing.dispatch.failures.refusals import REFUSING, name_if_refusing

from .dtypes import is_float
from .emitter import Emitter, Value, broadcast_shapes
from .registry import lowers
from .rules.shape import wrap

#: (emitter, *args, **kwargs) of a call: emits its conditions
Rule = Callable[..., None]

#: the least number, one more than the greatest, and one other allowed number
Bounds = tuple[int, int, int | None]

RULES: dict[str, Rule] = {}


def checks(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule of checks, like `registry.lowers`."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"{name} has a check already"
            assert name in REFUSING, f"{name} is not kept in traces whose results nothing reads"
            RULES[name] = rule
        return rule

    return register


def find_check(func: Any) -> Rule | None:
    """The rule of an overload, otherwise the one for all overloads of its op."""
    name = name_if_refusing(func)
    return None if name is None else RULES[name]


# -- conditions


def fail_if(em: Emitter, bad: Value, error: str, message: str, found: Value | None = None) -> None:
    """Emit a check: the run ends with an error if an element of `bad` is true.

    found: integers of the same shape; the largest of the bad ones replaces `{}` in the message.
    """
    if bad.numel == 0 or (bad.const is not None and not bad.const):
        return
    dims = range(bad.rank)
    operands = [em.reduce(bad, "any", dims)]
    if found is not None:
        least = em.dense(np.array(-(1 << 63)), "i64")  # a constant for all sizes
        values = em.select(bad, found.to("i64"), em.broadcast(least, bad.shape))
        operands.append(em.reduce(values, "max", dims))
    em.create("check", operands, {"error": error, "message": message}, [])


def in_range(
    em: Emitter, index: Any, low: int, high: int, error: str, message: str,
    other: int | None = None,
) -> None:  # fmt: skip
    """Check that integers are in low … high - 1, or equal `other`. Emits no condition that an earlier check
    implies."""
    if not isinstance(index, Value) or index.dtype == "i1" or is_float(index.dtype):
        return
    index = _source(em, index)
    said = em.checked.setdefault(index.ir, set())
    if any(_follows((low, high, other), known) for known in said):
        return
    said.add((low, high, other))
    known = _range(em, index.ir)
    if known is not None and not varies(high) and low <= known[0] and known[1] < high:
        return
    wide = index.to("i64")
    bad = (
        wide.ge(high) if index.dtype.startswith("u") and low <= 0 else wide.lt(low) | wide.ge(high)
    )
    if other is not None and not low <= other < high:
        bad = bad & wide.ne(other)
    fail_if(em, bad, error, message, wide)


def _follows(wanted: Bounds, known: Bounds) -> bool:
    """Whether the range `known` is within `wanted`."""
    (low, high, other), (known_low, known_high, extra) = wanted, known
    if any(varies(x) for x in (low, high, known_low, known_high)):
        return wanted == known
    return (
        low <= known_low and known_high <= high and (extra in (None, other) or low <= extra < high)
    )


def _source(em: Emitter, index: Value) -> Value:
    """The tensor whose elements a tensor has, possibly in another shape or order, or repeated."""
    value = index.ir
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation if hasattr(value.owner, "operation") else value.owner
        if op.name not in ("gflow.reshape", "gflow.transpose", "gflow.broadcast", "gflow.reverse"):
            break
        value = op.operands[0]
    return index if value is index.ir else em.wrap(value, type_of(value).shape, index.dtype)


def number(size: int) -> str:
    """A size as a message shows it."""
    symbol = extents.current()
    return symbol.text(size) if symbol is not None and varies(size) else str(size)


def _range(em: Emitter, value: ir.Value) -> tuple[int, int] | None:
    """The least and the greatest number in a tensor of positions that the program computes itself."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation if hasattr(owner, "operation") else owner
    name = op.name.removeprefix("gflow.")
    if name in ("broadcast", "reshape", "transpose", "slice", "convert", "reverse"):
        return _range(em, op.operands[0])
    if name == "iota":
        shape = ir.RankedTensorType(value.type).shape
        size = shape[ir.IntegerAttr(op.attributes["dim"]).value]
        return None if varies(size) else (0, size - 1)
    return None


# -- look-ups


def _others(shape: Sequence[int], dims: Sequence[int]) -> int:
    """The elements of a tensor at one position of some dimensions."""
    return math.prod(s for d, s in enumerate(shape) if d not in dims)


def _bounds(dim: int, size: int) -> str:
    return f"index {{}} is out of bounds for dimension {dim} with size {number(size)}"


def _rows(em: Emitter, x: Value, dim: int, index: Value) -> None:
    """`index_select`, whose kernels raise another error along dimension 1 and for tensors without elements."""
    size = x.shape[dim] if x.rank else 1
    error, message = "IndexError", f"index out of range in self: {_bounds(dim, size)}"
    if x.rank > 1 and size == 0:
        error, message = "RuntimeError", "index_select(): self indexing axis dim should be positive"
    elif x.rank > 1 and (dim == 1 or x.numel == 0):
        error = "RuntimeError"
        message = f"INDICES element is out of DATA bounds, id={{}} axis_dim={number(size)}"
    in_range(em, index, 0, size, error, message)


@checks("aten.embedding")
def embedding(em: Emitter, weight: Value, index: Value, *rest: Any, **named: Any) -> None:
    """Check that indices are in [0, rows of the weight)."""
    _rows(em, weight, 0, index)


@checks("aten.index_select")
def index_select(em: Emitter, x: Value, dim: int, index: Value) -> None:
    """Check that indices are in [0, size of the dimension)."""
    _rows(em, x, wrap(dim, x.rank) if x.rank else 0, index)


@checks("aten.gather")
def gather(em: Emitter, x: Value, dim: int, index: Value, **named: Any) -> None:
    """Check that indices are in [0, size of the dimension)."""
    dim, size = (wrap(dim, x.rank), x.shape[wrap(dim, x.rank)]) if x.rank else (0, 1)
    in_range(em, index, 0, size, "RuntimeError", _bounds(dim, size))


@checks("aten.scatter_add", "aten.scatter_reduce")
def scatter_add(em: Emitter, x: Value, dim: int, index: Value, *rest: Any, **named: Any) -> None:
    """Check that indices are in [0, size of the dimension)."""
    gather(em, x, dim, index)


@checks("aten.take")
def take(em: Emitter, x: Value, index: Value) -> None:
    """Check that indices are in [−n, n), where n is the number of elements."""
    n = x.numel
    message = f"out of range: tried to access index {{}} on a tensor of {number(n)} elements."
    in_range(em, index, -n, n, "IndexError", message)


@checks("aten.index_add")
def index_add(em: Emitter, x: Value, dim: int, index: Value, source: Value, **named: Any) -> None:
    """Check that indices are in [0, size of the dimension), except for an empty source, or if the tensor has no rows,
    as in ATen."""
    dim, size = (wrap(dim, x.rank), x.shape[wrap(dim, x.rank)]) if x.rank else (0, 1)
    if source.numel == 0 or (x.rank > 1 and size == 0):
        return
    if x.rank > 1:
        in_range(em, index, 0, size, "RuntimeError", _bounds(dim, size))
    else:
        message = f"index out of range in self: {_bounds(dim, size)}"
        in_range(em, index, 0, size, "IndexError", message)


@checks("aten.index_copy")
def index_copy(em: Emitter, x: Value, dim: int, index: Value, source: Value) -> None:
    """Check that indices are in [0, size of the dimension), unless nothing is written."""
    if source.numel == 0:
        return
    dim, size = (wrap(dim, x.rank), x.shape[wrap(dim, x.rank)]) if x.rank else (0, 1)
    in_range(em, index, 0, size, "IndexError", f"index_copy_(): {_bounds(dim, size)}")


@checks("aten.scatter.src", "aten.scatter.value")
def scatter(em: Emitter, x: Value, dim: int, index: Value, source: Any) -> None:
    """Check that indices are in [0, size of the dimension)."""
    dim, size = (wrap(dim, x.rank), x.shape[wrap(dim, x.rank)]) if x.rank else (0, 1)
    if index.numel:
        in_range(em, index, 0, size, "RuntimeError", _bounds(dim, size))


@checks("aten.index_fill")
def index_fill(em: Emitter, x: Value, dim: int, index: Value, value: Any) -> None:
    """Check that indices are in [−size, size) of the dimension."""
    dim, size = (wrap(dim, x.rank), x.shape[wrap(dim, x.rank)]) if x.rank else (0, 1)
    if _others(x.shape, [dim]):
        in_range(em, index, -size, size, "IndexError", _bounds(dim, size))


@checks("aten.index.Tensor", "aten.index_put")
def index(em: Emitter, x: Value, indices: Sequence[Value | None], *rest: Any, **named: Any) -> None:
    """Check that positions are in [−size, size) of their dimension. A mask is one index for several dimensions."""
    dim = 0
    places: list[tuple[int, Value]] = []
    dims: list[int] = []
    for given in indices:
        mask = given is not None and given.dtype in ("i1", "ui8")
        rank = given.rank if mask and given is not None else 1
        if given is not None:
            dims += range(dim, dim + rank)
            if not mask:
                places.append((dim, given))
        dim += rank
    if not _others(x.shape, dims):
        return
    for d, given in places:
        in_range(em, given, -x.shape[d], x.shape[d], "IndexError", _bounds(d, x.shape[d]))


# -- losses


@checks("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(
    em: Emitter, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> None:
    """Check that targets are classes, or `ignore_index`."""
    classes = x.shape[0 if x.rank == 1 else 1]
    message = f"Target {{}} is out of bounds: there are {number(classes)} classes, and {ignore_index} is ignored"
    in_range(em, target, 0, classes, "IndexError", message, ignore_index)


@checks("aten.binary_cross_entropy")
def binary_cross_entropy(em: Emitter, x: Value, y: Value, *rest: Any, **named: Any) -> None:
    """Check that input and target are in [0, 1]."""
    for value, name in ((x, "input"), (y, "target")):
        message = f"all elements of {name} should be between 0 and 1"
        fail_if(em, ~_within(value, 0.0, 1.0), "RuntimeError", message)


def _within(x: Value, low: float, high: float) -> Value:
    """Where numbers are in low … high; false for NaN."""
    wide = x.compute()
    return wide.ge(low) & wide.le(high)


# -- arithmetic


@checks("aten.floor_divide", "aten.remainder", "aten.fmod", "aten.div.Tensor_mode",
        "aten.div.Scalar_mode")  # fmt: skip
def divide(em: Emitter, a: Any, b: Any, *, rounding_mode: str | None = "floor") -> None:
    """Check integers for division by zero."""
    if rounding_mode is None or any(_is_real(v) for v in (a, b)):
        return
    shape: tuple[int, ...] = ()
    for value in (a, b):
        shape = broadcast_shapes(shape, value.shape) if isinstance(value, Value) else shape
    if 0 in shape:
        return
    bad = b.eq(0) if isinstance(b, Value) and b.dtype != "i1" else None
    if isinstance(b, Value) and bad is None:
        bad = ~b
    elif bad is None:
        bad = em.full(b == 0, (), "i1")
    if isinstance(b, Value) and b.const is not None:
        bad = em.full(b.const == 0, (), "i1")
    fail_if(em, bad, "RuntimeError", "ZeroDivisionError: integers are divided by zero")


def _is_real(value: Any) -> bool:
    return is_float(value.dtype) if isinstance(value, Value) else isinstance(value, float)


# -- random numbers


@checks("aten.bernoulli")
def bernoulli(em: Emitter, x: Value, p: Any = None, **named: Any) -> None:
    """Check that probabilities are in [0, 1]; a number is checked while lowering, a tensor by the program."""
    if isinstance(p, int | float):
        if x.numel and not 0 <= p <= 1:
            message = f"bernoulli_ expects p to be in [0, 1], but got p={p}"
            fail_if(em, em.full(True, (), "i1"), "RuntimeError", message)
        return
    given = p if isinstance(p, Value) else x
    message = "bernoulli: a probability is not in [0, 1] (Expected p_in >= 0 && p_in <= 1)"
    fail_if(em, ~_within(given, 0.0, 1.0), "RuntimeError", message)


@checks("aten.multinomial")
def multinomial(em: Emitter, weights: Value, *rest: Any, **named: Any) -> None:
    """Check that weights are finite and not negative, and that a row has a positive one."""
    wide = weights.compute()
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    fail_if(em, ~(wide.ge(0.0) & ~wide.eq(math.inf)), "RuntimeError", message)
    nothing = em.reduce(wide, "max", (wide.rank - 1,)).le(0.0)
    message = "invalid multinomial distribution (sum of probabilities <= 0)"
    fail_if(em, nothing, "RuntimeError", message)


@checks("aten.normal")
def normal(em: Emitter, mean: Any, std: Any = 1.0, *rest: Any, **named: Any) -> None:
    """Check that standard deviations are not negative."""
    if isinstance(std, Value):
        message = "normal expects all elements of std >= 0.0"
        fail_if(em, ~std.compute().ge(0.0), "RuntimeError", message)


# -- conditions in the author's program


@checks("aten._assert_async")
def assert_async(em: Emitter, x: Value, message: str = "") -> None:
    """The author's own check: a one-element tensor must not be zero."""
    message = message or "Expected Tensor with single nonzero value, but got zero"
    held = x if x.dtype == "i1" else x.compute().ne(0)
    fail_if(em, ~held, "RuntimeError", _plain(message))


@checks("gflow.fail_if")
def stated(em: Emitter, bad: Value, error: str, message: str) -> None:
    """A check in the trace: it fails if `bad` is true. error: the exception's name."""
    fail_if(em, bad, error, _plain(message))


def _plain(message: str) -> str:
    """A message without a placeholder for a value."""
    return message.replace("{}", "{ }")


#: the error of a failed factorization, by the function's name in it
_SINGULAR = "the input matrix is singular"
_FACTORED = {
    "inv": ("LinAlgError", "The diagonal element {} is zero, the inversion could not be completed because "
            f"{_SINGULAR}."),
    "solve": ("LinAlgError", f"The solver failed because {_SINGULAR}."),
    "cholesky": ("LinAlgError", "The factorization could not be completed because the input is not positive-definite "
                 "(the leading minor of order {} is not positive-definite)."),
    "svd": ("LinAlgError", "The algorithm failed to converge because the input matrix is ill-conditioned or has too "
            "many repeated singular values (error code: {})."),
    "eig": ("LinAlgError", "The algorithm failed to converge because the input matrix is ill-conditioned or has too "
            "many repeated eigenvalues (error code: {})."),
    "syevd": ("LinAlgError", "The algorithm failed to converge because the input matrix is ill-conditioned or has too "
              "many repeated eigenvalues (error code: {})."),
    "lstsq": ("LinAlgError", "The least squares solution could not be computed because the input matrix does not have "
              "full rank (error code: {})."),
    "lu_factor": ("RuntimeError", "U[{0},{0}] is zero and using it on lu_solve would result in a division by zero. If "
                  "you still want to perform the factorization, consider calling linalg.lu(A, pivot) or "
                  "linalg.lu_factor_ex(A, pivot)"),
}  # fmt: skip


@checks("aten._linalg_check_errors")
def factorization(em: Emitter, info: Value, name: str, *, is_matrix: bool) -> None:
    """Check the status of LAPACK: 0, or the position of the failure."""
    key = next((k for k in _FACTORED if k in name.rsplit(".", 1)[-1]), None)
    error, message = (
        _FACTORED[key] if key else ("RuntimeError", "the factorization failed (error code: {})")
    )
    where = "" if is_matrix else " (of a batch)"
    fail_if(em, info.ne(0), error, f"{name}:{where} {message.replace('{0}', '{}')}", info)


def _nothing(em: Emitter, *args: Any, **named: Any) -> None:
    """Calls that consist of their checks."""


lowers("aten._assert_async", "aten._linalg_check_errors", "gflow.fail_if")(_nothing)
