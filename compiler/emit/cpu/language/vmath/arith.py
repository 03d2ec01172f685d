"""Arithmetic on one scalar or vector type: short names over `Emitter` for long formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.dialects.records import record

from ..ssa_text import Emitter

_BITS = {"f32": 32, "f64": 64}


@record
class Arith:
    """Operations on values of type `ty`: `f32`, `f64`, `vector<Nxf32>` or `vector<Nxf64>`."""

    e: Emitter
    ty: str

    @property
    def scalar(self) -> str:
        """The element type."""
        return self.ty[self.ty.rindex("x") + 1 : -1] if self.lanes else self.ty

    @property
    def lanes(self) -> int:
        """The number of lanes; 0 for a scalar."""
        return int(self.ty[7 : self.ty.rindex("x")]) if self.ty.startswith("vector<") else 0

    def like(self, scalar: str) -> str:
        """The type of the same shape with another element type."""
        return f"vector<{self.lanes}x{scalar}>" if self.lanes else scalar

    @property
    def int_ty(self) -> str:
        """The type of integers as wide as the floats."""
        return self.like(f"i{_BITS[self.scalar]}")

    @property
    def mask_ty(self) -> str:
        """The type of comparisons' results."""
        return self.like("i1")

    # Constants

    def c(self, value: float) -> str:
        """A float constant in every lane."""
        return self.e.const(value, self.ty)

    def ic(self, value: int) -> str:
        """An integer constant, as wide as the floats, in every lane."""
        return self.e.const(value, self.int_ty)

    # Floating point

    def _op(self, op: str, *args: str) -> str:
        return self.e(f"{op} {', '.join(args)} : {self.ty}")

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self._op("arith.addf", a, b)

    def sub(self, a: str, b: str) -> str:
        """a − b."""
        return self._op("arith.subf", a, b)

    def mul(self, a: str, b: str) -> str:
        """a · b."""
        return self._op("arith.mulf", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b."""
        return self._op("arith.divf", a, b)

    def neg(self, a: str) -> str:
        """−a."""
        return self._op("arith.negf", a)

    def fma(self, a: str, b: str, c: str) -> str:
        """a*b + c, rounded once."""
        return self._op("math.fma", a, b, c)

    def abs(self, a: str) -> str:
        """|a|."""
        return self._op("math.absf", a)

    def sqrt(self, a: str) -> str:
        """The square root, correctly rounded."""
        return self._op("math.sqrt", a)

    def trunc(self, a: str) -> str:
        """Rounded towards zero."""
        return self._op("math.trunc", a)

    def floor(self, a: str) -> str:
        """Rounded down."""
        return self._op("math.floor", a)

    def copysign(self, a: str, sign: str) -> str:
        """The magnitude of `a` with the sign of `sign`."""
        return self._op("math.copysign", a, sign)

    def at_most(self, a: str, limit: str) -> str:
        """The smaller one; `a` if it is NaN (one `minps`)."""
        return self.select(self.cmp("olt", limit, a), limit, a)

    def at_least(self, a: str, limit: str) -> str:
        """The larger one; `a` if it is NaN (one `maxps`)."""
        return self.select(self.cmp("ogt", limit, a), limit, a)

    def poly(self, x: str, coefficients: Sequence[float]) -> str:
        """The polynomial with these coefficients, lowest first, by Horner's rule."""
        result = self.c(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.c(coefficient))
        return result

    # Masks

    def cmp(self, predicate: str, a: str, b: str) -> str:
        """A mask. predicate: of `arith.cmpf` (olt, uge, …)."""
        return self.e(f"arith.cmpf {predicate}, {a}, {b} : {self.ty}")

    def select(self, mask: str, a: str, b: str) -> str:
        """`a` where the mask is true, `b` elsewhere."""
        kind = f"{self.mask_ty}, {self.ty}" if self.lanes else self.ty
        return self.e(f"arith.select {mask}, {a}, {b} : {kind}")

    def both(self, a: str, b: str) -> str:
        """The conjunction of two masks."""
        return self.e(f"arith.andi {a}, {b} : {self.mask_ty}")

    def either(self, a: str, b: str) -> str:
        """The disjunction of two masks."""
        return self.e(f"arith.ori {a}, {b} : {self.mask_ty}")

    # Bit patterns

    def bits(self, a: str) -> str:
        """The bits of floats, as integers."""
        return self.e(f"arith.bitcast {a} : {self.ty} to {self.int_ty}")

    def from_bits(self, a: str) -> str:
        """The floats of given bits."""
        return self.e(f"arith.bitcast {a} : {self.int_ty} to {self.ty}")

    def i(self, op: str, a: str, b: str) -> str:
        """An integer operation of `arith` (`addi`, `shli`, ...) on bit patterns."""
        return self.e(f"arith.{op} {a}, {b} : {self.int_ty}")

    def to_float(self, a: str) -> str:
        """Signed integers converted to floats."""
        return self.e(f"arith.sitofp {a} : {self.int_ty} to {self.ty}")

    # float32 code that is easier in float64

    def widened(self) -> Arith:
        """The same arithmetic in float64."""
        return Arith(self.e, self.like("f64"))

    def widen(self, a: str) -> str:
        """float32 converted to float64."""
        return self.e(f"arith.extf {a} : {self.ty} to {self.like('f64')}")

    def narrow(self, a: str) -> str:
        """A float64 value of this shape, rounded to this float32 type."""
        return self.e(f"arith.truncf {a} : {self.like('f64')} to {self.ty}")

    # A rare path

    def where_any(self, mask: str, usual: str, rare: Callable[[], str]) -> str:
        """`usual`, but the lanes of `mask` from `rare()`, which runs only if there is one.

        A lane's result does not depend on the other lanes.
        """
        any_lane = mask
        if self.lanes:
            any_lane = self.e(f"vector.reduction <or>, {mask} : {self.mask_ty} into i1")
        result = self.e.fresh()
        self.e.line(f"{result} = scf.if {any_lane} -> ({self.ty}) {{")
        with self.e.indented():
            blended = self.select(mask, rare(), usual)
            self.e.line(f"scf.yield {blended} : {self.ty}")
        self.e.line("} else {")
        with self.e.indented():
            self.e.line(f"scf.yield {usual} : {self.ty}")
        self.e.line("}")
        return result
