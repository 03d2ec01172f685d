"""Sizes that depend on values, while tracing: PyTorch's unbacked symbols, without guards.

They are the sizes of the tail (`data.tail`). A question about one is answered if the answer is the same for all sizes.
Otherwise it is an error that names the line: the size is not known before the program has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gflow.dialects.extents import Symbol
from gflow.errors import GraphTraceError

from ...data.tail import Unknown
from ...data.values import TraceValue
from .size_functions import function_of_several

_KINDS = (torch.SymInt, torch.SymFloat)
#: stand-ins of sizes begin here: few sizes of models are as large
_FIRST = 100_000


class UnknownSizes(ShapeEnv):
    """PyTorch's symbolic shapes with sizes that depend on values.

    Args:
        where: the user's line, for messages.
        unknown: whether ops may give results of such sizes.
    """

    size: Symbol | None = None

    def __init__(self, where: Callable[[], str], unknown: bool = True) -> None:
        super().__init__(
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=unknown,
            specialize_zero_one=False,
            duck_shape=False,
        )
        self.where = where
        self.variables: list[Any] = []
        self.symints: list[Any] = []
        self.known: dict[Any, Any] = {}  # cached results of ops (`fakes`)
        self.origins: dict[str, str] = {}
        self._stand_ins: dict[str, int] = {}
        self.infers = False  # whether a result's metadata is inferred, and no op is chosen

    def _get_user_frame(self) -> None:
        """The frame that PyTorch's logs name. To find it, PyTorch imports its compiler."""
        return None

    def unknown_in(self, expr: Any) -> list[Any]:
        """The symbols of sizes that depend on values."""
        return [s for s in expr.free_symbols if self.is_unbacked_symint(s)]

    def is_unknown(self, value: Any) -> bool:
        """Whether a number depends on such a size."""
        return isinstance(value, _KINDS) and bool(self.unknown_in(self.replace(value.node.expr)))

    def evaluate_expr(self, orig_expr: Any, hint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The answer for all sizes.

        Raises:
            GraphTraceError: there is none.
        """
        expr = sympy.sympify(orig_expr)
        found = expr if not expr.free_symbols else self._maybe_evaluate_static(expr)
        if found is None and kwargs.get("fallback_value") is not None:
            found = sympy.sympify(kwargs["fallback_value"])  # the code handles all sizes with it
        if found is None and self.infers:  # sizes 0 and 1 give the same formulas
            found = self._maybe_evaluate_static(expr, size_oblivious=True)
        if found is None:
            raise self._undecided(expr)
        return found

    @contextmanager
    def inferring(self) -> Iterator[None]:
        """Within, only the metadata of results is inferred."""
        before, self.infers = self.infers, True
        try:
            yield
        finally:
            self.infers = before

    def _undecided(self, expr: Any) -> GraphTraceError:
        named = {n for s in self.unknown_in(expr) if (n := self.origins.get(str(s))) is not None}
        made = f" ({', '.join(sorted(named))})" if named else ""
        return GraphTraceError(
            f"{self.where()}: Python, or an op, asks for {expr}, where {self._names(expr)} is a size that depends on "
            f"values{made}. A graph is traced once, before values exist: ops whose sizes depend on values run after "
            "the program, and no choice, loop or number of Python can depend on them. Return the tensor and go on "
            "outside build(), use a masked form (torch.where; each expert of a mixture on all rows, multiplied by its "
            "mask), or call the module through gflow.compile instead, which splits it there."
        )

    def plain(self, value: Any) -> Any:
        """An integer that stands for a size in questions about memory: for one that depends on values, a prime."""
        found = self.concrete(value)
        if not isinstance(found, Unknown):
            return found
        places = self.size.place if self.size is not None else ()
        known = dict(
            zip(map(str, self.variables), (places,) if isinstance(places, int) else places)
        )
        for name in found.names:
            if name not in known:
                known[name] = self._stand_ins.setdefault(
                    name, sympy.nextprime(_FIRST * (1 + len(self._stand_ins)))
                )
        return found.at(known)

    def number(self, value: Any, recorder: Any, arguments: Sequence[TraceValue]) -> Any:
        """A size that an op takes as a number: a constant, where it depends on no dynamic dimension."""
        return self.concrete(value)

    def _names(self, expr: Any) -> str:
        return ", ".join(sorted(map(str, self.unknown_in(expr))))

    def concrete(self, value: Any) -> Any:
        """A size or a number for the trace: an integer, or an `Unknown`.

        Raises:
            GraphTraceError: it depends on a size by an operation that is not supported.
        """
        if not isinstance(value, _KINDS):
            return value
        expr = self.replace(value.node.expr)
        if not self.unknown_in(expr):
            return int(expr) if isinstance(value, torch.SymInt) else float(expr)
        return self._computed(expr)

    def assumed(self) -> list[Unknown]:
        """The conditions on such sizes that ops have (equal sizes, indices within them), which later answers follow
        from. Their values are truths."""
        every = [a.expr for found in self.deferred_runtime_asserts.values() for a in found]
        return [self._computed(expr) for expr in every if self.unknown_in(expr)]

    def _computed(self, expr: Any) -> Unknown:
        symbols = sorted(expr.free_symbols, key=str)
        function = function_of_several(expr, symbols)
        if function is None:
            raise self._undecided(expr)
        return Unknown(str(expr), tuple(map(str, symbols)), function)
