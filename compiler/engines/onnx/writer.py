"""The writer of ONNX nodes and initializers, which the rows of the table use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ..sizes import computed, is_size

#: the opset of the nodes, and the IR version of the file
OPSET, IR_VERSION = 21, 10

#: by element type: NumPy's dtype, and ONNX's number
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
    """The nodes of a model. Values are represented by their names.

    Attributes:
        onnx: the package's helpers.
        scope: the prefix of names of new values: the module path of the op.
        sizes: the values of the program's dynamic sizes, int64 of shape [1], the first size first.
        constants: constant nodes, which precede all others; weights are initializers.
        bytes: the bytes of constants and initializers.
        probes: 0-d float32 values that are finite if nodes that ignore NaN and infinities get none.
    """

    def __init__(self) -> None:
        # start-up time: only needed when an ONNX file is written
        from onnx import helper, numpy_helper

        self.helper, self._tensors = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.initializers: list[Any] = []
        self.bytes = 0
        self.scope = ""
        self.sizes: list[str] = []
        self.probes: list[str] = []
        self._taken: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._computed: dict[int, str] = {}
        self._expanded: dict[str, str] = {}

    def name(self, wanted: str) -> str:
        """A unique name that begins with `wanted`."""
        found, n = wanted, 1
        while found in self._taken:
            found, n = f"{wanted}_{n}", n + 1
        self._taken.add(found)
        return found

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one result; returns the result."""
        scope = f"{self.scope}/" if self.scope else ""
        result = self.name(f"{scope}{kind}")
        made = self.helper.make_node(kind, list(inputs), [result], name=result, **attributes)
        self.nodes.append(made)
        return result

    def choice(self, condition: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """Add an `If`: the value of `yes` or of `no`, only one of which is computed."""
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
        """An initializer, or a constant if `name` is empty; equal constants are shared."""
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
        """A 1-d int64 tensor: a constant, unless a value is a dynamic size, which is computed."""
        parts = []
        for dynamic, run in groupby(values, is_size):
            given = list(run)
            parts += (
                [*map(self.size, given)] if dynamic else [self.constant(np.array(given, np.int64))]
            )
        if not parts:
            return self.constant(np.array([], np.int64))
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, axis=0)

    def size(self, value: int) -> str:
        """A dynamic size as int64 of shape [1], computed once."""
        found = self._computed.get(value)
        if found is None:
            scope, self.scope = self.scope, ""
            found = self._computed[value] = computed(value, self.sizes, self._combine)
            self.scope = scope
        return found

    def _combine(self, kind: str, x: str, y: str | int) -> str:
        right = self.constant(np.array([y], np.int64)) if isinstance(y, int) else y
        return self.node({"add": "Add", "multiply": "Mul"}[kind], [x, right])

    def positions(self, count: int) -> str:
        """0, 1, …, count - 1 as 1-d int64."""
        if not is_size(count):
            return self.constant(np.arange(count, dtype=np.int64))
        zero, one = self.scalar(0, "i64"), self.scalar(1, "i64")
        return self.node("Range", [zero, self.reshape(self.size(count), []), one])

    def cast(self, x: str, dtype: str) -> str:
        """ONNX's Cast."""
        return self.node("Cast", [x], to=NUMBERS[dtype])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """ONNX's Reshape with `allowzero`: a size of 0 means 0."""
        return self.node("Reshape", [x, self.ints(shape)], allowzero=1)

    def expand(self, x: str, shape: Sequence[int]) -> str:
        """ONNX's Expand. x: of the same rank."""
        found = self.node("Expand", [x, self.ints(shape)])
        self._expanded[found] = x
        return found

    def narrow(self, names: Sequence[str]) -> list[str]:
        """The operands of an elementwise op without their Expand nodes, since such ops broadcast implicitly.

        Engines can then fuse a bias. At least one operand keeps the full shape.
        """
        found = [self._expanded.get(x, x) for x in names]
        return found if any(x in names for x in found) else list(names)

    def is_narrow(self, x: str) -> bool:
        """Whether a value may have a smaller shape than the dialect's value, until it is broadcast."""
        return x in self._expanded.values()

    def transpose(self, x: str, permutation: Sequence[int]) -> str:
        """ONNX's Transpose; the value itself for the identity permutation."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.node("Transpose", [x], perm=list(permutation))
