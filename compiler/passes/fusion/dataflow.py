"""The ops and values of a function as fusion sees them, without any decision.

An op is of one of four kinds:

    elementwise   its result at a position depends on its operands at that position (and on the position)
    reduce        it combines dimensions of its operand
    free          constants, iotas, broadcasts, reshapes that only add or remove dimensions of
                  size 1, and conversions from half precision to wider floats that only kernels read:
                  repeated in every kernel that needs them, so they are never stored
    other         everything else: not part of a kernel that fusion makes
"""

from __future__ import annotations

from typing import Any, Literal

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.ops import OPS
from gflow.dialects.types import HALVES, without_ones

Kind = Literal["elementwise", "reduce", "free", "other"]

#: for each dimension of a value, the dimension of an index space that it runs along; -1 if none (its size is 1)
DimMap = tuple[int, ...]


class Dataflow:
    """A function body with the attributes and the kind of each op.

    attrs: op number → attributes as plain data ({} for ops that aren't the dialect's).
    kind: op number → kind.
    """

    def __init__(self, body: Body, free_casts: bool = True) -> None:
        self.body = body
        self.attrs = [_read_attributes(o) for o in body.ops]
        self.kind: list[Kind] = [self._classify(o) for o in body.ops]
        if free_casts:
            self._free_casts()
        self._bases = self._find_bases()
        self._read = [self._distinct(o) for o in body.ops]

    def _find_bases(self) -> list[int]:
        """The result of `base` for each value, in one walk: operands have smaller numbers than results."""
        bases: list[int] = []
        for value, p in enumerate(self.body.producer):
            if p < 0 or self.kind[p] != "free":
                bases.append(value)
            else:
                operands = self.body.ops[p].operands
                bases.append(bases[operands[0]] if operands else -1)
        return bases

    def _distinct(self, o: Op) -> list[int]:
        found = dict.fromkeys([self._bases[v] for v in o.operands])
        return [b for b in found if b >= 0]

    def _free_casts(self) -> None:
        """Widening conversions of half-precision values are free: kernels load the half-precision value."""
        body = self.body
        outside = set(body.returned)  # values that something other than a kernel reads
        for o in reversed(body.ops):
            kind, read = self.kind[o.index], not outside.isdisjoint(o.results)
            if kind == "other" or (kind == "free" and read):
                outside.update(o.operands)
            elif o.name == "convert" and not read:
                source, target = (body.types[v].dtype for v in (o.operands[0], o.results[0]))
                if source in HALVES and target in ("f32", "f64"):
                    self.kind[o.index] = "free"

    def _classify(self, o: Op) -> Kind:
        definition = OPS.get(o.name)
        if definition is None:
            return "other"
        if definition.category == "elementwise" or o.name == "random":
            return "elementwise"
        match o.name:
            case "reduce":
                # argmax and argmin return positions, which kernels do not combine
                return "other" if self.attrs[o.index]["kind"].startswith("arg") else "reduce"
            case "constant":
                return "free" if is_splat(o.op.attributes["value"]) else "other"
            case "broadcast" | "iota":
                return "free"
            case "reshape":
                inner, outer = self.shape(o.operands[0]), self.shape(o.results[0])
                return "free" if without_ones(inner) == without_ones(outer) else "other"
        return "other"

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.body.types[value].shape

    def is_rounded(self, value: int) -> bool:
        """Whether a value was rounded to half precision."""
        p = self.body.producer[value]
        return (
            p >= 0 and self.body.ops[p].name == "convert" and self.body.types[value].dtype in HALVES
        )

    def own_space(self, o: Op) -> tuple[int, ...]:
        """The index space of an op on its own: for a reduction, the shape of its operand."""
        return self.shape(o.operands[0] if o.name == "reduce" else o.results[0])

    def base(self, value: int) -> int:
        """The value under a chain of free ops; -1 for constants and iotas."""
        return self._bases[value]

    def bases(self, o: Op) -> list[int]:
        """The distinct bases of an op's operands, constants and iotas left out."""
        return self._read[o.index]

    def pull(self, value: int, dim_map: DimMap) -> tuple[int, DimMap]:
        """As `base`, with the map of the base's dimensions to the index space.

        dim_map: the map of `value`'s own dimensions. A constant or iota is its own base here.
        """
        while True:
            p = self.body.producer[value]
            if p < 0 or self.kind[p] != "free" or not self.body.ops[p].operands:
                return value, dim_map
            inner = self.body.ops[p].operands[0]
            shape = self.shape(inner)
            if self.body.ops[p].name == "broadcast":
                dims = self.attrs[p]["dims"]
                dim_map = tuple(dim_map[d] if s != 1 else -1 for s, d in zip(shape, dims))
            elif self.body.ops[p].name != "convert":
                real = iter([d for s, d in zip(self.shape(value), dim_map) if s != 1])
                dim_map = tuple(next(real) if s != 1 else -1 for s in shape)
            value = inner


def _read_attributes(o: Op) -> dict[str, Any]:
    definition = OPS.get(o.name)
    if definition is None or o.name == "aten":
        return {}
    return read(definition, o.op.attributes)
