"""Collects ONNX nodes and initializers: what all rows of the table do alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from gflow.dialects.extents import current, horner

from ..sizes import is_size

#: the opset that nodes are of, and the version of the file's form
OPSET, IR_VERSION = 21, 10

#: element types: numpy's, and ONNX's number
NUMPY = {
    "f32": np.float32,
    "f64": np.float64,
    "i64": np.int64,
    "i32": np.int32,
    "ui8": np.uint8,
    "i1": np.bool_,
}
NUMBERS = {"f32": 1, "ui8": 2, "i32": 6, "i64": 7, "i1": 9, "f64": 11}


class Writer:
    """Nodes by op type; values are names.

    onnx: the package's helpers. scope: what names of new values begin with: the module that an op comes from.
    sizes: values of the program's sizes that vary, [1] int64, the first one first. constants: nodes that come before
    all others; weights are initializers. bytes: of both.
    """

    def __init__(self) -> None:
        # start-up: loaded when a file of ONNX is written
        from onnx import helper, numpy_helper

        self.helper, self._tensors = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.initializers: list[Any] = []
        self.bytes = 0
        self.scope = ""
        self.sizes: list[str] = []
        self._taken: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._computed: dict[int, str] = {}
        self._expanded: dict[str, str] = {}

    def name(self, wanted: str) -> str:
        """A name that no other value has."""
        found, n = wanted, 1
        while found in self._taken:
            found, n = f"{wanted}_{n}", n + 1
        self._taken.add(found)
        return found

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The result of a node that has one."""
        scope = f"{self.scope}/" if self.scope else ""
        result = self.name(f"{scope}{kind}")
        made = self.helper.make_node(kind, list(inputs), [result], name=result, **attributes)
        self.nodes.append(made)
        return result

    def choice(self, condition: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """One of two values, of which one is computed."""
        return self.node(
            "If", [condition], then_branch=self._branch(yes), else_branch=self._branch(no)
        )

    def _branch(self, write: Callable[[], str]) -> Any:
        outside, self.nodes = self.nodes, []
        result = write()
        made = self.helper.make_graph(
            self.nodes, "branch", [], [self.helper.make_empty_tensor_value_info(result)]
        )
        self.nodes = outside
        return made

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """An initializer, or a constant if it has no name; equal ones are one."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.str, array.shape, array.tobytes())
        if not name and key in self._constants:
            return self._constants[key]
        found = self.name(name or "constant")
        tensor = self._tensors.from_array(array, found)
        self.bytes += array.nbytes
        if name:
            self.initializers.append(tensor)
            return found
        made = self.helper.make_node("Constant", [], [found], name=found, value=tensor)
        self.constants.append(made)
        self._constants[key] = found
        return found

    def scalar(self, value: float, dtype: str) -> str:
        """A 0-d constant."""
        return self.constant(np.array(value, NUMPY[dtype]))

    def ints(self, values: Sequence[int]) -> str:
        """1-d int64: a constant, but for sizes that vary, which are computed."""
        parts = []
        for computed, run in groupby(values, is_size):
            given = list(run)
            parts += (
                [*map(self.size, given)] if computed else [self.constant(np.array(given, np.int64))]
            )
        if not parts:
            return self.constant(np.array([], np.int64))
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, axis=0)

    def size(self, value: int) -> str:
        """A size that varies, [1] int64, computed once."""
        found = self._computed.get(value)
        if found is None:
            symbol = current()
            assert symbol is not None
            scope, self.scope = self.scope, ""
            terms = [_Size(self, name) for name in self.sizes]
            found = horner(symbol.coefficients(value), terms).name
            self._computed[value] = found
            self.scope = scope
        return found

    def positions(self, count: int) -> str:
        """0, 1, … as 1-d int64."""
        if not is_size(count):
            return self.constant(np.arange(count, dtype=np.int64))
        zero, one = self.scalar(0, "i64"), self.scalar(1, "i64")
        return self.node("Range", [zero, self.reshape(self.size(count), []), one])

    def cast(self, x: str, dtype: str) -> str:
        """ONNX's Cast."""
        return self.node("Cast", [x], to=NUMBERS[dtype])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """ONNX's Reshape; sizes of 0 are sizes."""
        return self.node("Reshape", [x, self.ints(shape)], allowzero=1)

    def expand(self, x: str, shape: Sequence[int]) -> str:
        """ONNX's Expand. x: of as many dimensions."""
        found = self.node("Expand", [x, self.ints(shape)])
        self._expanded[found] = x
        return found

    def narrow(self, names: Sequence[str]) -> list[str]:
        """Operands of an elementwise op, of one shape, as they were before they were expanded, which such ops do by
        themselves: engines fuse a bias, not a tensor of its sums' shape. One keeps the shape."""
        found = [self._expanded.get(x, x) for x in names]
        return found if any(x in names for x in found) else list(names)

    def is_narrow(self, x: str) -> bool:
        """Whether a value may be smaller than its op's operands are."""
        return x in self._expanded.values()

    def transpose(self, x: str, permutation: Sequence[int]) -> str:
        """ONNX's Transpose; nothing where no dimension moves."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.node("Transpose", [x], perm=list(permutation))


class _Size:
    """A number [1] int64 with the operators that polynomials are evaluated by."""

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer, self.name = writer, name

    def __mul__(self, other: int | _Size) -> _Size:
        return self._with("Mul", other)

    def __add__(self, other: int | _Size) -> _Size:
        return self._with("Add", other)

    __rmul__, __radd__ = __mul__, __add__

    def _with(self, kind: str, other: int | _Size) -> _Size:
        w = self._writer
        right = other.name if isinstance(other, _Size) else w.constant(np.array([other], np.int64))
        return _Size(w, w.node(kind, [self.name, right]))
