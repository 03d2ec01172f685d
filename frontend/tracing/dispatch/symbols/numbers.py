"""Traced numbers: Python numbers whose value may differ at the next call.

Learning rates, betas, step counters and the like are `torch.SymFloat`/`torch.SymInt` objects with gflow's own node
class, so PyTorch accepts them as numbers. Arithmetic records 0-d float64/int64 ATen ops. If Python needs the value
itself (an `if`, `float(x)`, `range(n)`), it gets the value of this trace and a `Guard` is recorded. If the guard fails
for new values, the graph is traced again. A number that is read from a tensor (`.item()`) has no value while tracing,
so reading it raises `StateBranch`.

Integers of a call's arguments are exact: if a result of Python's arithmetic exceeds int64, or is a rounded quotient of
integers that float64 cannot represent, it is the constant of this trace, with a guard.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gflow.errors import GraphTraceError

from ...data.guards import Expr
from ...data.values import TraceValue
from .exact_numbers import is_exact
from .number_nodes import Number, ScalarRecorder, StateBranch, guard, is_int, number_of

aten = torch.ops.aten


def wrap(node: Number) -> TracedFloat | TracedInt:
    """The Python number for a node."""
    return TracedInt(node) if node.is_integer else TracedFloat(node)


def _float_value(recorder: ScalarRecorder, x: Any) -> TraceValue | float:
    node = number_of(x)
    if node is None:
        return float(x)
    if node.is_integer:
        return recorder.record_number(
            aten._to_copy.default, (node.value,), torch.float64, {"dtype": torch.float64}
        )
    return node.value


def _apply(
    function: Callable[..., Any], func: Any, operands: tuple[Any, ...], integer: bool
) -> Any:
    """Record `func` (a 0-d ATen op) for the host function `function` of `operands`."""
    nodes = [number_of(x) for x in operands]
    recorder = next(n.recorder for n in nodes if n is not None)
    hints = [x if n is None else n.hint for x, n in zip(operands, nodes, strict=True)]
    _guard_domain(recorder, function, operands)
    from_tensor = any(n is not None and n.expr is None for n in nodes)
    expr: Expr = None
    if not from_tensor:
        expr = (
            function,
            *(x if n is None else n.expr for x, n in zip(operands, nodes, strict=True)),
        )
    try:
        hint = function(*hints)
    except (ArithmeticError, ValueError):
        if not from_tensor:
            raise
        hint = math.nan
    of_call = any(n is not None and n.of_call for n in nodes)
    if of_call and from_tensor and integer:
        raise GraphTraceError("integer arithmetic of an argument with a size or a tensor's value")
    if of_call and not is_exact(recorder, function, operands, expr, hint, integer):
        guard(recorder, (operator.eq, expr, hint), True)
        return hint
    dtype = torch.int64 if integer else torch.float64
    values: list[Any]
    if integer:
        values = [int(x) if n is None else n.value for x, n in zip(operands, nodes, strict=True)]
    else:
        values = [_float_value(recorder, x) for x in operands]
    if len(values) == 2 and not isinstance(values[0], TraceValue):
        values[0] = recorder.record_number(
            aten.scalar_tensor.default, (values[0],), dtype, {"dtype": dtype}
        )
    value = recorder.record_number(func, tuple(values), dtype)
    return wrap(Number(recorder, value, hint, expr, of_call))


#: where Python raises an error instead of a result: what must hold of the last operand
_DOMAINS: dict[Any, Callable[[Expr], Expr]] = {
    operator.truediv: lambda x: (operator.ne, x, 0),
    operator.floordiv: lambda x: (operator.ne, x, 0),
    operator.mod: lambda x: (operator.ne, x, 0),
    math.sqrt: lambda x: (operator.ge, x, 0),
    math.log: lambda x: (operator.gt, x, 0),
    math.log2: lambda x: (operator.gt, x, 0),
    math.log10: lambda x: (operator.gt, x, 0),
    math.log1p: lambda x: (operator.gt, x, -1),
}


def _guard_domain(recorder: ScalarRecorder, function: Any, operands: tuple[Any, ...]) -> None:
    """Whether Python computes the result or raises an error, which the step may catch, stays as it is."""
    node = number_of(operands[-1])
    if node is not None and node.expr is not None and function in _DOMAINS:
        condition = _DOMAINS[function](node.expr)
        guard(recorder, condition, condition[0](node.hint, condition[2]))


_BINARY = {
    "add": (operator.add, aten.add.Tensor),
    "sub": (operator.sub, aten.sub.Tensor),
    "mul": (operator.mul, aten.mul.Tensor),
    "truediv": (operator.truediv, aten.div.Tensor),
    "floordiv": (operator.floordiv, aten.floor_divide.default),
    "mod": (operator.mod, aten.remainder.Tensor),
    "pow": (operator.pow, aten.pow.Tensor_Tensor),
    "and": (operator.and_, aten.bitwise_and.Tensor),
    "or": (operator.or_, aten.bitwise_or.Tensor),
    "xor": (operator.xor, aten.bitwise_xor.Tensor),
    "lshift": (operator.lshift, aten.bitwise_left_shift.Tensor),
    "rshift": (operator.rshift, aten.bitwise_right_shift.Tensor),
}
_OF_INTEGERS = ("and", "or", "xor", "lshift", "rshift")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_ALWAYS_FLOAT = ("truediv",)


def _check_no_size(x: Any) -> None:
    """Check that a number is no dynamic size.

    Raises:
        GraphTraceError: it is one.
    """
    if isinstance(x, (torch.SymInt, torch.SymFloat)) and number_of(x) is None:
        raise GraphTraceError(
            f"Python computes with a number that varies and a size that varies, {x}; make a tensor of the number "
            "(torch.tensor(n)) to compute with both"
        )


def _binary(name: str, a: Any, b: Any) -> Any:
    _check_no_size(a)
    _check_no_size(b)
    function, func = _BINARY[name]
    for x in (a, b):
        if isinstance(x, complex):
            return function(*(x if (n := number_of(x)) is None else n.concrete() for x in (a, b)))
        if number_of(x) is None and not isinstance(x, (int, float)):
            return NotImplemented
    integer = name not in _ALWAYS_FLOAT and is_int(a) and is_int(b)
    if name in _OF_INTEGERS and not integer:
        return NotImplemented
    if name == "pow":
        exponent = number_of(b)
        if exponent is None:
            return _power(a, b, integer and b >= 0)
        integer = integer and exponent.of_call and exponent.holds(operator.ge, 0)
    return _apply(function, func, (a, b), integer)


def _power(a: Any, exponent: float, integer: bool) -> Any:
    if exponent == 0.5:
        return _apply(math.sqrt, aten.sqrt.default, (a,), False)
    return _apply(operator.pow, aten.pow.Tensor_Scalar, (a, exponent), integer)


def _compare(name: str, a: Any, b: Any) -> Any:
    _check_no_size(b)
    if number_of(b) is None and not isinstance(b, (int, float)):
        return NotImplemented
    function = getattr(operator, name)
    sides = [(x, number_of(x)) for x in (a, b)]
    if any(n is not None and n.expr is None for _, n in sides):
        raise StateBranch
    expr = (function, *(x if n is None else n.expr for x, n in sides))
    result = function(*(x if n is None else n.hint for x, n in sides))
    recorder = next(n.recorder for _, n in sides if n is not None)
    guard(recorder, expr, result)
    return result


class _Arithmetic:
    """The operators of traced numbers."""

    node: Number

    def __neg__(self) -> Any:
        return _apply(operator.neg, aten.neg.default, (self,), self.node.is_integer)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _apply(operator.abs, aten.abs.default, (self,), self.node.is_integer)

    def __bool__(self) -> bool:
        return self.node.concrete(bool)

    def __float__(self) -> float:
        return self.node.concrete(float)

    def __int__(self) -> int:
        return self.node.concrete(int)

    def __index__(self) -> int:
        if not self.node.is_integer:
            raise TypeError("'float' object cannot be interpreted as an integer")
        return self.node.concrete(int)

    def __hash__(self) -> int:
        return hash(self.node.concrete())

    def __round__(self, digits: int | None = None) -> Any:
        if self.node.is_integer and (digits is None or digits >= 0):
            return self
        return round(self.node.concrete(), digits)

    def __trunc__(self) -> Any:
        return self if self.node.is_integer else self.node.concrete(int)

    def __floor__(self) -> Any:
        return self if self.node.is_integer else self.node.concrete(math.floor)

    def __ceil__(self) -> Any:
        return self if self.node.is_integer else self.node.concrete(math.ceil)

    def __invert__(self) -> Any:
        if not self.node.is_integer:
            raise TypeError("bad operand type for unary ~: 'float'")
        return _apply(operator.invert, aten.bitwise_not.default, (self,), True)

    def __divmod__(self, other: Any) -> Any:
        return _binary("floordiv", self, other), _binary("mod", self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _binary("floordiv", other, self), _binary("mod", other, self)

    def __getattr__(self, name: str) -> Any:
        """Other methods of Python's numbers (`bit_length`, `hex`, `real`) are those of the value."""
        kind = int if self.node.is_integer else float
        if name == "node" or not hasattr(kind, name):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return getattr(self.node.concrete(), name)

    def __format__(self, spec: str) -> str:
        return format(self.node.shown(), spec)

    def __repr__(self) -> str:
        return repr(self.node.shown())

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def item(self) -> Any:
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **words: Any) -> Any:
        """The result of NumPy's functions: those of Python's numbers with an equivalent in `math` or `operator` are
        recorded, others get the values."""
        plain = all(number_of(x) is not None or isinstance(x, (int, float)) for x in inputs)
        if not plain or method != "__call__" or words:
            values = [x if (n := number_of(x)) is None else n.concrete() for x in inputs]
            return getattr(ufunc, method)(*values, **words)
        name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if len(inputs) == 2 and name in _BINARY:
            return _binary(name, *inputs)
        if len(inputs) == 1 and name in _MATH:
            return _apply(_HOST[name], _MATH[name], inputs, False)
        if len(inputs) == 2 and name in _COMPARE:
            return _compare(name, *inputs)
        return ufunc(*(x if (n := number_of(x)) is None else n.concrete() for x in inputs))

    def __sym_float__(self) -> Any:
        return _binary("mul", self, 1.0) if self.node.is_integer else self

    def __sym_int__(self) -> Any:
        return self if self.node.is_integer else self.node.concrete(int)

    def is_integer(self) -> bool:
        return bool(self.node.concrete(lambda value: float(value).is_integer()))


def _install() -> None:
    for name in _BINARY:

        def forward(self: Any, other: Any, *modulus: int, name: str = name) -> Any:
            if modulus:  # pow(n, 2, 5)
                return pow(self.node.concrete(), operator.index(other), *modulus)
            return _binary(name, self, other)

        def reverse(self: Any, other: Any, name: str = name) -> Any:
            return _binary(name, other, self)

        setattr(_Arithmetic, f"__{name}__", forward)
        setattr(_Arithmetic, f"__r{name}__", reverse)
    for name in _COMPARE:

        def compare(self: Any, other: Any, name: str = name) -> Any:
            return _compare(name, self, other)

        setattr(_Arithmetic, f"__{name}__", compare)


_install()


class TracedFloat(_Arithmetic, torch.SymFloat):
    """A traced Python float; `isinstance(x, float)` is true, by its `__class__`."""

    __hash__ = _Arithmetic.__hash__
    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def __init__(self, node: Number) -> None:
        self.node = node


class TracedInt(_Arithmetic, torch.SymInt):
    """A traced Python int; `isinstance(x, int)` is true, by its `__class__`."""

    __hash__ = _Arithmetic.__hash__
    __class__ = property(lambda self: int)  # type: ignore[assignment]

    def __init__(self, node: Number) -> None:
        self.node = node


_MATH = {
    "sqrt": aten.sqrt.default,
    "exp": aten.exp.default,
    "log": aten.log.default,
    "log2": aten.log2.default,
    "log10": aten.log10.default,
    "log1p": aten.log1p.default,
    "expm1": aten.expm1.default,
    "sin": aten.sin.default,
    "cos": aten.cos.default,
    "tan": aten.tan.default,
    "tanh": aten.tanh.default,
    "sinh": aten.sinh.default,
    "cosh": aten.cosh.default,
    "atan": aten.atan.default,
    "fabs": aten.abs.default,
    "pow": aten.pow.Tensor_Tensor,
}
#: NumPy's names of functions → those of `math` and `operator`
_UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv", "power": "pow",
    "floor_divide": "floordiv", "remainder": "mod", "absolute": "fabs", "left_shift": "lshift",
    "right_shift": "rshift", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne", "arctan": "atan",
}  # fmt: skip
_HOST = {name: getattr(math, name) for name in _MATH}
_LOG = math.log
_LIMITS = {"min": aten.minimum.default, "max": aten.maximum.default}


def _is_known(x: Any) -> bool:
    """Whether a number has a value in this trace: it is not read from a tensor."""
    node = number_of(x)
    return node is None or node.has_hint()


@contextlib.contextmanager
def traced_functions(names: Sequence[dict[str, Any]] = ()) -> Iterator[None]:
    """While active, `math.sqrt` and similar functions, `min` and `max` accept traced numbers. names: the globals of
    modules that may have imported them by name."""
    saved: list[tuple[dict[str, Any], str, Any]] = []

    def replace(module: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(module, name)
        saved.append((vars(module), name, original))
        setattr(module, name, function)
        for found in names:
            for key in [k for k, v in found.items() if v is original]:
                saved.append((found, key, original))
                found[key] = function

    for name, func in _MATH.items():
        original = getattr(math, name)

        def call(*args: Any, original: Any = original, func: Any = func) -> Any:
            if not any(number_of(a) is not None for a in args):
                return original(*args)
            if original is _LOG and len(args) == 2:
                return math.log(args[0]) / math.log(args[1])
            return _apply(original, func, args, False)

        replace(math, name, call)
    for name, func in _LIMITS.items():
        original = getattr(builtins, name)
        order = operator.lt if name == "min" else operator.gt

        def limit(
            *args: Any,
            original: Any = original,
            func: Any = func,
            order: Any = order,
            **kwargs: Any,
        ) -> Any:
            items = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
            if kwargs or len(items) < 2 or not any(number_of(a) is not None for a in items):
                return original(*args, **kwargs)
            if not all(number_of(a) is not None or type(a) in (int, float) for a in items):
                return original(*args)
            result = items[0]
            for item in items[1:]:
                if number_of(result) is None and number_of(item) is None:
                    result = original(result, item)
                elif is_int(result) != is_int(item) and _is_known(result) and _is_known(item):
                    result = item if order(item, result) else result  # of the operand's own type
                else:
                    integer = is_int(result) and is_int(item)
                    result = _apply(original, func, (result, item), integer)
            return result

        replace(builtins, name, limit)
    try:
        yield
    finally:
        for module_names, name, original in reversed(saved):
            module_names[name] = original
