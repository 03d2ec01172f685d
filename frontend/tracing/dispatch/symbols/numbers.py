"""Traced numbers: Python numbers whose value may differ at the next call.

Learning rates, betas, step counters and the like are `torch.SymFloat`/`torch.SymInt`
objects with a node of our own, so PyTorch accepts them wherever it takes a number.
Arithmetic records 0-d float64/int64 ATen ops. Where Python needs the value itself (an
`if`, `float(x)`, `range(n)`), the value of this trace is used and a `Guard` is kept: when
it no longer holds for new values, the graph is traced again. A number that comes out of a
tensor (`.item()`) has no value while tracing, so asking for it raises `StateBranch`.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ...data.guards import Expr, Guard, same
from ...data.values import TraceValue

aten = torch.ops.aten


class StateBranch(Exception):
    """Python asked for the value of a number that is only known on the device."""


class ScalarRecorder(Protocol):
    """What a traced number needs from the recorder."""

    guards: list[Guard]

    def record_number(
        self, func: Any, args: tuple[Any, ...], dtype: torch.dtype, words: Any = None
    ) -> TraceValue:
        """Record an ATen op on 0-d tensors, and return its result. dtype: of the result, float64 or int64.
        words: keyword arguments of the op."""


def guard(recorder: ScalarRecorder, expr: Expr, expected: Any) -> None:
    """The trace holds only while `expr` gives what it gives now."""
    if not any(g.expr == expr for g in recorder.guards):
        recorder.guards.append(Guard(expr, expected))


class Number:
    """The node behind a traced number. `hint` is its value in this trace; `expr` is None
    when the value comes out of a tensor."""

    def __init__(
        self, recorder: ScalarRecorder, value: TraceValue, hint: float, expr: Expr
    ) -> None:
        self.recorder, self.value, self.hint, self.expr = recorder, value, hint, expr
        self.is_integer = value.dtype == torch.int64

    def concrete(self, convert: Callable[[Any], Any] = same) -> Any:
        """The value in this trace, guarded.

        Raises:
            StateBranch: the value comes out of a tensor.
        """
        if self.expr is None:
            raise StateBranch
        result = convert(self.hint)
        guard(self.recorder, (convert, self.expr), result)
        return result

    # the interface PyTorch's C++ asks of a symbolic node
    def is_int(self) -> bool:
        """Whether it is an integer (of PyTorch's protocol for symbolic nodes)."""
        return self.is_integer

    def is_float(self) -> bool:
        """Whether it is a float."""
        return not self.is_integer

    def is_bool(self) -> bool:
        """False: comparisons give Python's bools, guarded."""
        return False

    def is_symbolic(self) -> bool:
        """True: the value may differ at the next call."""
        return True

    def is_constant(self) -> bool:
        """False: the value may differ at the next call."""
        return False

    def is_nested_int(self) -> bool:
        """False: it is no size of a nested tensor."""
        return False

    def maybe_as_int(self) -> None:
        """None: no value is known without a guard."""
        return None

    def maybe_as_float(self) -> None:
        """None: no value is known without a guard."""
        return None

    def has_hint(self) -> bool:
        """Whether it has a value in this trace; not where it comes out of a tensor."""
        return self.expr is not None

    def clone(self) -> Number:
        """The node itself, which never changes."""
        return self

    def guard_float(self, file: str = "", line: int = 0) -> float:
        """The value in this trace as a float, guarded.

        Raises:
            StateBranch: it comes out of a tensor.
        """
        return self.concrete(float)

    def guard_int(self, file: str = "", line: int = 0) -> int:
        """The value in this trace as an int, guarded.

        Raises:
            StateBranch: it comes out of a tensor.
        """
        return self.concrete(int)

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        """The value in this trace as a bool, guarded.

        Raises:
            StateBranch: it comes out of a tensor.
        """
        return self.concrete(bool)

    def _graph_repr(self) -> str:
        return f"traced({self.hint})"

    def __str__(self) -> str:
        return self._graph_repr()

    str = __str__


def number_of(obj: Any) -> Number | None:
    """The node of a traced number, None for anything else."""
    if isinstance(obj, (torch.SymFloat, torch.SymInt)):
        node = obj.node
        return node if isinstance(node, Number) else None
    return None


def wrap(node: Number) -> TracedFloat | TracedInt:
    """The Python number around a node."""
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
    """Record `func` (a 0-d ATen op) for the host `function` of `operands`."""
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
    return wrap(Number(recorder, recorder.record_number(func, tuple(values), dtype), hint, expr))


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
}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_ALWAYS_FLOAT = ("truediv",)


def _is_int(x: Any) -> bool:
    node = number_of(x)
    return node.is_integer if node is not None else isinstance(x, int)


def _binary(name: str, a: Any, b: Any) -> Any:
    for x in (a, b):
        if number_of(x) is None and not isinstance(x, (int, float)):
            return NotImplemented
    function, func = _BINARY[name]
    integer = name not in _ALWAYS_FLOAT and _is_int(a) and _is_int(b)
    if name == "pow":
        if number_of(b) is None:
            return _power(a, b, integer and b >= 0)
        integer = False
    return _apply(function, func, (a, b), integer)


def _power(a: Any, exponent: float, integer: bool) -> Any:
    if exponent == 0.5:
        return _apply(math.sqrt, aten.sqrt.default, (a,), False)
    return _apply(operator.pow, aten.pow.Tensor_Scalar, (a, exponent), integer)


def _compare(name: str, a: Any, b: Any) -> Any:
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
    """The operators of a traced number."""

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
        return round(self.node.concrete(), digits)

    def __trunc__(self) -> int:
        return self.node.concrete(int)

    def __floor__(self) -> int:
        return self.node.concrete(math.floor)

    def __ceil__(self) -> int:
        return self.node.concrete(math.ceil)

    def __format__(self, spec: str) -> str:
        return format(self.node.hint, spec)

    def __repr__(self) -> str:
        return repr(self.node.hint)

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def item(self) -> Any:
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **words: Any) -> Any:
        """What numpy's functions give for it: as those of `math` and the operators."""
        if method != "__call__" or words:
            return NotImplemented
        name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if len(inputs) == 2 and name in _BINARY:
            return _binary(name, *inputs)
        if len(inputs) == 1 and name in _MATH:
            return _apply(_HOST[name], _MATH[name], inputs, False)
        if len(inputs) == 2 and name in _COMPARE:
            return _compare(name, *inputs)
        return NotImplemented

    def __sym_float__(self) -> Any:
        return _binary("mul", self, 1.0) if self.node.is_integer else self

    def __sym_int__(self) -> Any:
        return self if self.node.is_integer else self.node.concrete(int)

    def is_integer(self) -> bool:
        return bool(self.node.concrete(lambda value: float(value).is_integer()))


def _install() -> None:
    for name in _BINARY:

        def forward(self: Any, other: Any, name: str = name) -> Any:
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
    """A traced Python float; `isinstance(x, float)` says so, by its `__class__`."""

    __hash__ = _Arithmetic.__hash__
    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def __init__(self, node: Number) -> None:
        self.node = node


class TracedInt(_Arithmetic, torch.SymInt):
    """A traced Python int."""

    __hash__ = _Arithmetic.__hash__

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
#: numpy's names of functions → those of `math` and `operator`
_UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv", "power": "pow",
    "floor_divide": "floordiv", "remainder": "mod", "absolute": "fabs", "less": "lt", "less_equal": "le",
    "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne", "arctan": "atan",
}  # fmt: skip
_HOST = {name: getattr(math, name) for name in _MATH}
_LOG = math.log
_LIMITS = {"min": aten.minimum.default, "max": aten.maximum.default}


@contextlib.contextmanager
def traced_functions(names: Sequence[dict[str, Any]] = ()) -> Iterator[None]:
    """While active, `math.sqrt` and the like, `min` and `max` take traced numbers. names: the globals of
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

        def limit(*args: Any, original: Any = original, func: Any = func, **kwargs: Any) -> Any:
            items = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
            if kwargs or len(items) < 2 or not any(number_of(a) is not None for a in items):
                return original(*args, **kwargs)
            if not all(number_of(a) is not None or type(a) in (int, float) for a in items):
                return original(*args)
            result = items[0]
            for item in items[1:]:
                if number_of(result) is None and number_of(item) is None:
                    result = original(result, item)
                else:
                    integer = _is_int(result) and _is_int(item)
                    result = _apply(original, func, (result, item), integer)
            return result

        replace(builtins, name, limit)
    try:
        yield
    finally:
        for module_names, name, original in reversed(saved):
            module_names[name] = original
