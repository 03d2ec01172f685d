"""Symbolic sizes of TorchDynamo's graphs: programs for ranges of one dynamic dimension, or of two.

The symbols of a graph have other values at each call. A program has one dynamic dimension n, with a domain
(`gflow.tracing.data.sizes`). The other symbols are constants, or a n + b (the length of each layer's cache next to
that of the mask). Two calls determine which. Before the second call, lengths that differ by at most one are assumed to
grow together. A call that contradicts this gets another program. Once calls have shown that two sizes vary
independently, that program has both as dynamic dimensions, if possible.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gflow.compiler.ir.errors import CompileError
from gflow.dialects.extents import N, formula
from gflow.dialects.records import record
from gflow.lowering.dtypes import LoweringError, Unsupported
from gflow.tracing.data.sizes import Domain, Fixed, Narrower, at_size, with_forms
from gflow.tracing.data.trace import Trace
from gflow.tracing.dispatch.symbols.size_expressions import Formulas, Second

from .scalars import Beyond
from .trace_fx import FxTrace, Untraceable

_log = logging.getLogger("gflow")

#: the maximal number of programs of a graph; calls that none of them covers run op by op
MOST_PROGRAMS = 16

#: the size up to which a program is compiled, if memory allows it
_REACH = 1024

#: bytes that the largest value of a program may have at the upper bound of its range. Memory is reserved for the
#: largest size, and a call touches only what it needs
_ROOM = 1 << 28

#: the number of latest calls that determine which sizes vary together
_CALLS = 16

#: the number of combinations of sizes whose program is cached
_SEEN = 1 << 12

#: equal sizes from here on are assumed to grow together
_LENGTH = 5


@record
class Place:
    """Where a call has a symbol's value: argument `index` itself, or its dimension `dim`."""

    index: int
    dim: int | None


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic size, or a tensor with symbolic sizes or strides."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return any(isinstance(s, torch.SymInt) for s in sizes)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def hint_of(size: Any) -> int | None:
    """A size as an integer; of a symbolic size the value with which it was traced, None if that is unknown."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


def places_of(module: torch.fx.GraphModule) -> dict[Any, Place]:
    """Where a call has the values of the symbols of a graph's arguments.

    Raises:
        Untraceable: a symbol occurs only inside of formulas.
    """
    found: dict[Any, Place] = {}
    free: set[Any] = set()
    for index, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes: list[tuple[int | None, Any]] = [(None, value)]
        if isinstance(value, torch.Tensor):
            sizes = [*enumerate(value.shape)]
        for dim, size in sizes:
            if isinstance(size, torch.SymInt):
                expr = size.node.expr
                free |= expr.free_symbols
                if expr.is_Symbol:
                    found.setdefault(expr, Place(index, dim))
    if free - found.keys():
        raise Untraceable(
            f"sizes that no argument has alone ({', '.join(map(str, free - found.keys()))})"
        )
    return found


class SizedProgram:
    """A graph with symbolic sizes. A call takes the arguments as a list, which it empties, and returns the outputs as
    a list.

    Args:
        module: the graph.
        phase: "forward" or "backward".
        trace: traces the graph with given formulas for its sizes.
        compile: compiles a trace.
        otherwise: runs the graph op by op.
        numbers: symbols that are inputs of all programs.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        phase: str,
        trace: Callable[[Formulas], FxTrace],
        compile: Callable[[FxTrace], Callable[..., Any]],
        otherwise: Callable[[list[Any]], Any],
        numbers: Collection[Any] = (),
    ) -> None:
        self.phase, self._trace, self._compile, self._otherwise = phase, trace, compile, otherwise
        self._places = {s: p for s, p in places_of(module).items() if s not in numbers}
        self._beyond = False
        self._symbols = list(self._places)
        self._ranges = {s: _range(module, s) for s in self._symbols}
        self._values: dict[Any, set[int]] = {s: set() for s in self._symbols}
        self._seen: dict[tuple[int, ...], tuple[Callable[..., Any], N]] = {}
        self._last: dict[Any, int] = {}
        self._history: list[dict[Any, int]] = []
        self._apart = False  # no program follows two sizes
        self.programs: list[_Sized] = []
        self._full = False

    def __call__(self, args: list[Any]) -> Any:
        values = tuple(
            [
                int(args[p.index] if p.dim is None else args[p.index].shape[p.dim])
                for p in self._places.values()
            ]
        )
        known = self._seen.get(values)
        if known is None:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            known = self._seen[values] = self._find(dict(zip(self._symbols, values)))
        program, k = known
        try:
            return program(args, k)
        except Beyond as error:
            if not self._beyond:
                self._beyond = True
                self._op_by_op(f"a program for the number {error}", "numbers")
            return self._otherwise(args)

    def prepare(self, hints: dict[Any, int] | None) -> None:
        """Compile a program for the expected sizes, if they are known.

        Raises:
            Fixed, Untraceable, LoweringError, Unsupported: there can be no program, not even for these sizes alone.
        """
        if hints is None:
            return
        hints = {symbol: hints[symbol] for symbol in self._symbols}
        found = self._new(hints, {})
        self._seen[tuple(hints[s] for s in self._symbols)] = found
        for symbol, n in hints.items():
            self._values[symbol].add(n)
        self._last = hints
        self._history = [hints]

    def _find(self, values: dict[Any, int]) -> tuple[Callable[..., Any], N]:
        """The program for these sizes, compiled if necessary, and the value of its dynamic dimensions."""
        for symbol, n in values.items():
            self._values[symbol].add(n)
        last, self._last = self._last, values
        self._history = [*self._history[1 - _CALLS :], values]
        for held in self.programs:
            k = held.k(values)
            if k is not None:
                return held.run, k
        if len(self.programs) >= MOST_PROGRAMS:
            if not self._full:
                self._full = True
                return self._op_by_op(f"it has {MOST_PROGRAMS} programs for other sizes already"), 0
            return self._without_program, 0
        try:
            return self._new(values, last)
        except (Fixed, Untraceable, LoweringError, Unsupported) as error:
            run = self._op_by_op(f"gflow cannot compile {error}")
            fixed = {symbol: (n, 0) for symbol, n in values.items()}
            return self._keep(_Sized(None, fixed, None, run)), 0

    def _op_by_op(self, reason: str, of: str = "sizes") -> Callable[..., Any]:
        _log.warning(
            "torch.compile: the %s graph runs through PyTorch op by op for some %s; %s",
            self.phase,
            of,
            reason,
        )
        return self._without_program

    def _without_program(self, args: list[Any], k: N) -> Any:
        return self._otherwise(args)

    def _new(self, values: dict[Any, int], last: dict[Any, int]) -> tuple[Callable[..., Any], N]:
        """Compile a program for these sizes.

        Args:
            last: the sizes of the previous call.

        Raises:
            Fixed, Untraceable, LoweringError, Unsupported: there can be none.
        """
        problems: list[str] = []
        groups = [] if self._apart else self._groups(values)
        if len(groups) == 2:
            try:
                return self._follow_both(groups, values)
            except (Fixed, LoweringError, Unsupported, CompileError) as error:
                self._apart = True
                names = " and ".join(str(variable) for variable, _ in groups)
                _log.info(
                    "torch.compile: the %s graph follows not both %s: %s", self.phase, names, error
                )
        for variable in self._by_variety(values, last):
            try:
                return self._follow(variable, values, last)
            except (Fixed, LoweringError, Unsupported, CompileError) as error:
                problems.append(f"{variable}: {error}")
        if problems:
            _log.info(
                "torch.compile: the %s graph follows no size: %s", self.phase, "; ".join(problems)
            )
        fixed = {symbol: (n, 0) for symbol, n in values.items()}
        run = self._compile(self._trace(Formulas(None, None, fixed)))
        return self._keep(_Sized(None, fixed, None, run)), 0

    def _by_variety(self, values: dict[Any, int], last: dict[Any, int]) -> Iterator[Any]:
        """The symbols that may vary: first those that differ from the previous call, then those with the most values
        so far."""

        def rank(symbol: Any) -> tuple[Any, ...]:
            change = abs(values[symbol] - last[symbol]) if last else 0
            return (not change, change, -len(self._values[symbol]), -values[symbol])

        order = sorted(self._symbols, key=rank)
        return (s for s in order if self._ranges[s][0] < self._ranges[s][1] and values[s] > 0)

    def _follow(
        self, variable: Any, values: dict[Any, int], last: dict[Any, int]
    ) -> tuple[Callable[..., Any], int]:
        """Compile a program with one dynamic dimension.

        Raises:
            Fixed, LoweringError, Unsupported, CompileError: it is not possible.
        """
        n = values[variable]
        others = {s: _related(s, variable, values, last) for s in self._symbols if s != variable}
        domain = self._domain(variable, n)
        while True:
            try:
                found = self._trace(Formulas(domain, variable, others))
                break
            except Narrower as by:
                domain = domain.narrowed(by, n)
        k = domain.k(n)
        if k is None:
            raise Fixed(f"{variable} = {n}")
        domain = _affordable(found.trace, domain, k)
        found.trace.size = domain.symbol
        return self._keep(_Sized(variable, others, domain, self._compile(found))), k

    def _groups(self, values: dict[Any, int]) -> list[tuple[Any, dict[Any, tuple[int, int]]]]:
        """The symbols that have varied independently, those with fewer values first, each with the formulas of the
        symbols that depend on it."""
        moving = [s for s in self._symbols if len({call[s] for call in self._history}) > 1]
        groups: list[tuple[Any, dict[Any, tuple[int, int]]]] = []
        for symbol in sorted(moving, key=lambda s: -len(self._values[s])):
            for variable, others in groups:
                found = self._along(symbol, variable)
                if found is not None:
                    others[symbol] = found
                    break
            else:
                low, high = self._ranges[symbol]
                if low >= high or values[symbol] <= 0:
                    return []
                groups.append((symbol, {}))
        return groups[::-1]

    def _along(self, symbol: Any, variable: Any) -> tuple[int, int] | None:
        """The coefficients (b, a) with which a symbol was b + a n in all calls, where n is another symbol; None if
        there are none."""
        calls = {(call[variable], call[symbol]) for call in self._history}
        (n, value), *rest = calls
        change = next((m - n for m, _ in rest if m != n), 0)
        if not change:
            return None
        slope, left = divmod(next(v - value for m, v in rest if m != n), change)
        b = value - slope * n
        regular = not left and (slope == 1 or (slope > 1 and not b))
        return (b, slope) if regular and all(v == b + slope * m for m, v in calls) else None

    def _follow_both(
        self, groups: list[tuple[Any, dict[Any, tuple[int, int]]]], values: dict[Any, int]
    ) -> tuple[Callable[..., Any], N]:
        """Compile a program with two dynamic dimensions.

        Raises:
            Fixed, LoweringError, Unsupported, CompileError: it is not possible.
        """
        moving = {s for variable, others in groups for s in (variable, *others)}
        constant = {s: (n, 0) for s, n in values.items() if s not in moving}
        problem: Fixed | None = None
        for (outer, along), (inner, beside) in (groups, groups[::-1]):
            domains = [self._domain(s, values[s]) for s in (outer, inner)]
            others = along | constant
            try:
                while True:
                    second = Second(domains[1], inner, beside)
                    try:
                        found = self._trace(Formulas(domains[0], outer, others, second))
                        break
                    except Narrower as by:
                        at = int(by.second)
                        domains[at] = domains[at].narrowed(by, values[(outer, inner)[at]])
                k = (domains[0].k(values[outer]), domains[1].k(values[inner]))
                if None in k:
                    raise Fixed(f"{outer} = {values[outer]}, {inner} = {values[inner]}")
                domains = _affordable_pair(found.trace, domains, k)  # type: ignore[arg-type]
                second = Second(domains[1], inner, beside)
                found.trace.size = Formulas(domains[0], outer, others, second).symbol
                found.trace.size = with_forms(found.trace)
            except (
                Fixed
            ) as error:  # too high a degree, or too large: try with the symbols exchanged
                problem = error
                continue
            made = _Sized(outer, others, domains[0], self._compile(found), second)
            return self._keep(made), k  # type: ignore[return-value]
        assert problem is not None
        raise problem

    def _domain(self, variable: Any, n: int) -> Domain:
        least, most = self._ranges[variable]
        return Domain(str(variable), max(1, least), min(most, max(_REACH, _above(4 * n))))

    def _keep(self, made: _Sized) -> Callable[..., Any]:
        self.programs.append(made)
        _log.info("torch.compile: the %s graph is compiled for %s", self.phase, made)
        return made.run


@record
class _Sized:
    """A program and the sizes that it covers.

    Args:
        variable: the symbol that is its dynamic dimension n; None if it has none.
        others: the coefficients (b, a) of each other symbol, whose value must be b + a n.
        domain: the range of n.
        second: the second dynamic dimension.
    """

    variable: Any
    others: dict[Any, tuple[int, int]]
    domain: Domain | None
    run: Callable[..., Any]
    second: Second | None = None

    def k(self, values: dict[Any, int]) -> N | None:
        """The value of the program's dynamic dimension, or of both, for these sizes; None if the program does not
        cover them."""
        n = 0 if self.domain is None else values[self.variable]
        if any(values[s] != b + a * n for s, (b, a) in self.others.items()):
            return None
        k = 0 if self.domain is None else self.domain.k(n)
        if self.second is None or k is None:
            return k
        m = values[self.second.variable]
        if any(values[s] != b + a * m for s, (b, a) in self.second.others.items()):
            return None
        other = self.second.domain.k(m)
        return None if other is None else (k, other)

    def __str__(self) -> str:
        parts = [] if self.domain is None else [f"{self.domain.name} in {self.domain}"]
        beside: list[tuple[Any, Mapping[Any, tuple[int, int]]]] = [(self.variable, self.others)]
        if self.second is not None:
            parts.append(f"{self.second.domain.name} in {self.second.domain}")
            beside.append((self.second.variable, self.second.others))
        for variable, others in beside:
            parts += [f"{symbol} = {formula(f, str(variable))}" for symbol, f in others.items()]
        return ", ".join(parts) or "numbers of any value"


def _related(
    symbol: Any, variable: Any, values: dict[Any, int], last: dict[Any, int]
) -> tuple[int, int]:
    """The coefficients (b, a) with which a symbol is b + a n, derived from two calls, or guessed from one."""
    value, n = values[symbol], values[variable]
    change = n - last[variable] if last else 0
    if change:
        slope, rest = divmod(value - last[symbol], change)
        regular = not rest and (slope == 1 or (slope > 1 and value == slope * n))
        return (value - slope * n, slope) if regular else (value, 0)
    together = not last and abs(value - n) <= 1 and n >= _LENGTH
    return (value - n, 1) if together else (value, 0)


def _range(module: torch.fx.GraphModule, symbol: Any) -> tuple[int, int]:
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt) and symbol in size.node.expr.free_symbols:
                found = size.node.shape_env.var_to_range[symbol]
                low, high = found.lower, found.upper
                return (
                    int(low) if low.is_Integer else 1,
                    min(int(high), (1 << 24) - 1) if high.is_Integer else (1 << 24) - 1,
                )
    raise AssertionError(f"no argument has {symbol}")


def hints_of(module: torch.fx.GraphModule) -> dict[Any, int] | None:
    """The values that a graph's symbols had when it was traced; None if one is unknown."""
    found: dict[Any, int] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                if not size.node.has_hint():
                    return None
                found[size.node.expr] = int(size.node.hint)
    return found


def _above(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def _largest(trace: Trace) -> Callable[[N], int]:
    """A function from the size to the bytes of a trace's largest value."""
    shapes = {v.shape: v.dtype.itemsize for op in trace.ops for v in op.results if v is not None}
    return lambda at: max(
        (itemsize * math.prod(at_size(shape, at)) for shape, itemsize in shapes.items()), default=0
    )


def _affordable_pair(trace: Trace, domains: list[Domain], k: tuple[int, int]) -> list[Domain]:
    """`_affordable` for two dimensions: halves the range that extends further beyond its current size."""
    largest = _largest(trace)
    most, allowed = [d.most for d in domains], max(_ROOM, 4 * largest(k))
    least = [max(2 * n, d.least + 1) for n, d in zip(k, domains)]
    while largest((most[0], most[1])) > allowed:
        at = max((0, 1), key=lambda i: (most[i] > least[i], most[i] / max(k[i], 1)))
        if most[at] <= least[at]:
            break
        most[at] = max(least[at], most[at] // 2)
    return [replace(d, most=min(d.most, m)) for d, m in zip(domains, most)]


def _affordable(trace: Trace, domain: Domain, k: int) -> Domain:
    """The domain with an upper bound whose memory is within `_ROOM`, or within four times that of the size `k`."""
    largest = _largest(trace)
    most, allowed = domain.most, max(_ROOM, 4 * largest(k))
    while most > max(2 * k, domain.least + 1) and largest(most) > allowed:
        most = max(2 * k, most // 2, domain.least + 1)
    return replace(domain, most=most)
