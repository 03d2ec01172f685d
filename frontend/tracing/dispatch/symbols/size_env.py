"""Symbolic sizes while tracing: PyTorch's own, with one symbol or two, and no guards.

A question of Python or PyTorch about a dynamic size is answered if the answer is the same for the whole range.
Otherwise it is an error that names the line. If an op takes a size as a number rather than as a shape (a mean's
gradient is divided by a count), the number is the result of an op: it is computed from the size at each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from sympy.core.relational import Relational  # type: ignore[import-untyped]
from sympy.logic.boolalg import Boolean  # type: ignore[import-untyped]
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

from gflow.dialects.extents import Coefficients, Symbol
from gflow.errors import GraphTraceError

from ...data.sizes import Domain, Fixed, Narrower, Size, SizeDecides
from ...data.values import TraceValue
from .number_nodes import Number
from .numbers import wrap
from .size_expressions import Formulas, Second
from .size_functions import function_of
from .unknown_sizes import UnknownSizes

_TORCH = str(Path(torch.__file__).parent)
_FAKE_IMPLS = f"{_TORCH}/_subclasses/fake_impls.py"
_ASKED = {"__bool__", "__int__", "__index__", "__float__", "__round__"}

#: the number of sizes up to which each is tried; for a wider range PyTorch's reasoning must decide
_TRIED = 1024

#: the maximal power of a size
_DEGREE = 3


class SizeEnv(UnknownSizes):
    """PyTorch's symbolic shapes with one symbol or two, and without guards: a question without a single answer for the
    range is an error. The symbol is that of the program: k, where the sizes are step * k + rest.

    Args:
        domains: of the size, or of both.
        symints: the sizes as symbolic integers of PyTorch.
        unknown: whether ops may give results whose sizes depend on values.
    """

    size: Symbol

    def __init__(
        self, domains: Sequence[Domain], where: Callable[[], str], unknown: bool = False
    ) -> None:
        super().__init__(where, unknown)
        self.domains = domains
        steps: list[Domain] = []
        for at, sizes in enumerate(domains):
            name = sizes.symbol.name
            other = "2" if at and name == steps[0].name else ""
            steps.append(Domain(f"{name}{other}", sizes.least, sizes.most))
            source = ConstantSource(steps[-1].name)
            variable: Any = self.create_symbol(
                sizes.most, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
            )
            # PyTorch's reasoning excludes 1, for which broadcasting has special rules. An answer for all sizes
            # from 2 on also holds for 1, unless code asks for it (see `_answer`)
            least = min(max(sizes.least, 2), sizes.most)
            self._constrain_range(variable, least, sizes.most)
            symint = self.create_symintnode(
                sizes.step * variable + sizes.rest,
                hint=sizes.at(sizes.most),
                source=source if sizes.step == 1 else None,
            )
            self.variables.append(variable)
            self.symints.append(symint)
        second = Second(steps[1], self.variables[1], {}) if len(steps) > 1 else None
        self._formulas = Formulas(steps[0], self.variables[0], {}, second)
        self.size = self._formulas.symbol
        self._answers: dict[Any, Any] = {}
        self._sizes: dict[Any, Coefficients | None] = {}

    # -- queries

    def evaluate_expr(self, orig_expr: Any, hint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The answer for all sizes of the range.

        Raises:
            GraphTraceError: the answer differs between sizes of the range.
        """
        expr = sympy.sympify(orig_expr)
        if not expr.free_symbols:
            return expr
        if self.unknown_in(expr):
            return super().evaluate_expr(expr, hint, *args, **kwargs)
        if expr not in self._answers:
            self._answers[expr] = self._answer(expr)
        first, rest = self._answers[expr]
        if rest is None and kwargs.get("fallback_value") is not None:
            return sympy.sympify(
                kwargs["fallback_value"]
            )  # the code handles all sizes with this answer
        if rest is None and _chooses_kernel():
            return self._at(expr, [d.most for d in self.domains])
        if rest is None or (first != rest and _asked_by_user()):
            which = self._which(expr)
            asked = None if which is None else function_of(expr, self.variables[which])
            chooses = isinstance(expr, Boolean) and not expr.is_Symbol
            by = self._splitter(expr) if chooses else None
            message = self._unanswered(expr, rest)
            second = bool(which if by is None else by.second)
            domain = self.domains[second]
            raise SizeDecides(
                message, asked, domain, linear=False, by=by, chooses=chooses, second=second
            )
        return rest

    def _answer(self, expr: Any) -> tuple[Any, Any]:
        """The answers for the least size, and for all others (None: they differ)."""
        first = self._at(expr, [d.least for d in self.domains])
        which = self._which(expr)
        sizes = self.domains[which or 0]
        if which is not None and sizes.most - sizes.least < _TRIED:
            rest = self._same(expr, which)
        else:
            rest = self._maybe_evaluate_static(expr)
        if first != rest and not self._is_about_one(expr):
            rest = None
        return first, rest

    def _which(self, expr: Any) -> int | None:
        """Which of the two sizes a question is about; None: both."""
        found = [i for i, v in enumerate(self.variables) if v in expr.free_symbols]
        return found[0] if len(found) == 1 else None

    def _same(self, expr: Any, which: int) -> Any:
        """The one answer for all sizes except the least; None: they differ."""
        domain = self.domains[which]
        sizes = range(domain.least + 1, domain.most + 1)
        function = function_of(expr, self.variables[which])
        if function is not None:
            try:
                value = function(sizes[0])
                return sympy.sympify(value) if all(function(n) == value for n in sizes) else None
            except ZeroDivisionError:  # fails for some size, for which sympy has an answer
                pass

        def at(n: int) -> Any:
            return self._at(expr, [n] * len(self.domains))

        answer = at(sizes[0])
        return answer if all(at(n) == answer for n in sizes) else None

    def _is_about_one(self, expr: Any) -> bool:
        """Whether a question has another answer for the least size because a dimension is 1 there, as in broadcasting.
        For shapes, the answer for all other sizes is then right for it, too."""
        least = [d.least for d in self.domains]
        if 1 in least:
            return isinstance(expr, Boolean)
        sides = expr.args if isinstance(expr, Relational) else ()
        return bool(sides) and all(self._at(side, least) == 1 for side in sides)

    def _at(self, expr: Any, sizes: Sequence[int]) -> Any:
        value = expr.xreplace(dict(zip(self.variables, map(sympy.Integer, sizes))))
        return value if value.is_Boolean or value.is_number else value.doit()

    def _splitter(self, expr: Any) -> Narrower | None:
        """The divisor on whose remainders the answer depends, if there is one: the parts of the range by remainder may
        have one answer each."""
        for part in expr.atoms(*_ROUNDED):
            try:
                self._formulas.polynomial(part)
            except Narrower as by:
                if by.step > 1:
                    return by
            except Fixed:
                continue
        return None

    def _is_dynamic(self) -> str:
        """The beginning of an error message."""
        size = self.domains[0]
        own = f"{self.size}" if size.step == 1 else f"n = {size.formula} with {self.size}"
        return f"{self.where()}: the size {own} is dynamic (gflow.dynamic_dim), "

    def _named(self, expr: Any) -> str:
        text = str(expr)
        for variable, symbol in zip(self.variables, (self.size, self.size.second)):
            text = text.replace(str(variable), "" if symbol is None else symbol.name)
        return text

    def _unanswered(self, expr: Any, rest: Any) -> str:
        asked, start = self._named(expr), self._is_dynamic()
        if rest is not None:
            return start + (
                f"and code asks whether {asked}, which differs for {self.domains[0].least} alone. Give the "
                f"dimension min={self.domains[0].least + 1}."
            )
        if isinstance(expr, Boolean) and not expr.is_Symbol:
            return start + (
                f"and the answer to {asked} differs within its range. A graph is traced once: leave "
                "the choice out, narrow the range with min= and max=, or leave the dimension static."
            )
        return start + (
            f"and a number is needed for {asked} here (int(), float(), len(), range(), a size that must "
            "equal a fixed one, or an op that takes no size that varies). Use x.shape[...] as it is, "
            "mark all inputs that have this size, or leave the dimension static."
        )

    # -- numbers

    def polynomial(self, expr: Any) -> Coefficients:
        """The coefficients of a size.

        Raises:
            GraphTraceError: it is no polynomial in the symbol.
        """
        expr = sympy.sympify(expr)
        if expr not in self._sizes:
            self._sizes[expr] = self._fit(expr)
        found = self._sizes[expr]
        if found is None:
            raise self._no_polynomial(expr, None)
        return found

    def _no_polynomial(self, expr: Any, by: Narrower | None) -> SizeDecides:
        which = self._which(sympy.sympify(expr))
        second = bool(which if by is None else by.second)
        return SizeDecides(
            self._is_dynamic()
            + f"and a size here is {self._named(expr)}; sizes that follow from it must be sums, "
            "products, floor quotients and remainders by small numbers. Leave the dimension static, or do this outside "
            "the graph.",
            None if which is None else function_of(expr, self.variables[which]),
            self.domains[second],
            linear=True,
            by=by,
            second=second,
        )

    def _fit(self, expr: Any) -> Coefficients | None:
        try:
            return self._formulas.polynomial(expr)
        except Narrower as by:
            raise self._no_polynomial(expr, by) from None
        except Fixed:
            pass
        low, high = self.domains[0].least, self.domains[0].most
        if high - low >= _TRIED or len(self.domains) > 1:
            return None
        (variable,) = self.variables
        function = function_of(expr, variable) or (lambda n: self._at(expr, [n]))
        points = [(n, function(n)) for n in range(low, high + 1)]
        chosen = points[:: max(1, len(points) // (_DEGREE + 1))][: _DEGREE + 1]
        fitted = sympy.interpolate([(n, v) for n, v in chosen], variable)
        again = function_of(fitted, variable)
        if again is None or any(again(n) != v for n, v in points):
            return None
        terms = sympy.Poly(fitted, variable).all_coeffs()[::-1]
        return tuple(map(int, terms)) if all(c.is_Integer for c in terms) else None

    def concrete(self, value: Any) -> Any:
        """An integer for the trace; an `Unknown` for a number that depends on values."""
        if self.is_unknown(value):
            return super().concrete(value)
        if not isinstance(value, torch.SymInt):
            return value
        found = self.polynomial(value.node.expr)
        if not found or (len(found) == 1 and isinstance(found[0], int)):
            return found[0] if found else 0
        return Size.make(found, self.size)

    def number(self, value: Any, recorder: Any, arguments: Sequence[TraceValue]) -> Any:
        """A number that is computed from the size at each call: a traced number, or a constant as a Python number.

        Raises:
            GraphTraceError: it depends on the size by another operation than sums, products, quotients, powers and
                square roots.
        """
        size = [
            wrap(Number(recorder, argument, sizes.most, None))
            for argument, sizes in zip(arguments, self.domains)
        ]
        expr = sympy.sympify(value.node.expr)
        if not expr.free_symbols:
            return float(expr) if isinstance(value, torch.SymFloat) else int(expr)
        try:
            return self._formulas.number(expr, size)
        except Narrower as by:
            raise self._no_polynomial(expr, by) from None
        except Fixed as error:
            raise GraphTraceError(
                self._is_dynamic()
                + f"and a number here is {self._named(error)}; numbers that follow from it may be "
                "sums, products, quotients, powers and square roots. Leave the dimension static, or compute this "
                "outside the graph."
            ) from None


#: formulas whose answers depend on the remainder of the size
_ROUNDED = (FloorDiv, Mod, PythonMod, CleanDiv)


def _chooses_kernel() -> bool:
    """Whether PyTorch asks which of its kernels a convolution would use; all give the same shape."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "conv" and frame.f_code.co_filename == _FAKE_IMPLS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _asked_by_user() -> bool:
    """Whether the code of the author or of a layer needs a number, or the truth of a comparison."""
    frame = sys._getframe(2)
    while frame is not None and "/fx/experimental/" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_code.co_name not in _ASKED:
        return False
    while frame is not None and frame.f_code.co_filename == f"{_TORCH}/__init__.py":
        frame = frame.f_back  # type: ignore[assignment]
    file = frame.f_code.co_filename if frame is not None else ""
    return not file.startswith(_TORCH) or file.startswith(f"{_TORCH}/nn")
