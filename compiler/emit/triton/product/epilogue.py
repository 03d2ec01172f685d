"""The epilogue of a contraction, computed on the tile of its result that a program holds in registers.

%0 = "gflow.matmul"(%x, %y)               acc = tl.dot(...)
%2 = "gflow.add"(%0, %z)             →    v1 = acc + tl.load(x2 + cols[None, :])
"gflow.yield"(%2)                         tl.store(out0 + ..., v1.to(tl.bfloat16), mask)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.ir.ssa import Op
from gflow.compiler.ir.views import Layout
from gflow.compiler.kernel.description import APART, Access, Kernel, Node
from gflow.compiler.kernel.registers import register_dtype
from gflow.compiler.kernel.selection.gpu.product.contraction import Contraction
from gflow.compiler.kernel.selection.gpu.product.epilogue import Following, of_columns
from gflow.compiler.kernel.sizes import WIDE
from gflow.dialects.program import Place
from gflow.dialects.types import FLOATS, row_major_strides

from ..language import dag
from ..language.expressions import literal, loaded, triton_type
from ..language.parameters import Parameters
from ..language.precision import coarse
from ..program_builder import Builder
from ..region.fused import readable
from ..region.reductions import along, identity, settled
from ..region.writer import register
from .output_tile import Positions, Tile, is_raw

#: ops that are left out of kernels' names
_UNTOLD = frozenset(
    [
        "yield",
        "constant",
        "convert",
        "broadcast",
        "reshape",
        "transpose",
        "slice",
        "select",
        "compare",
    ]
)


@dataclass
class Epilogue(Following):
    """An epilogue with the addresses of its operands and results.

    Attributes:
        loads, stores: addresses by number of operand and result.
        types: the element types of operands.
        comment: the op's text, for readers of the source.
        label: for profiles.
        ops: the names of its ops, for the kernel's name.
        sums: what follows the sums of an operand; None without.
    """

    loads: list[Place]
    stores: list[Place]
    label: str
    comment: Callable[[], str] | None = None
    ops: tuple[str, ...] = ()
    sums: AfterSums | None = None

    def emit(
        self,
        params: Parameters,
        tile: Tile,
        acc: str,
        used: set[str],
        numbers: dict[str, dict[tuple[Any, ...], str]] | None = None,
    ) -> list[str]:
        """The lines that compute and store the epilogue.

        Args:
            params: the parameters of the kernel, to which those of the epilogue are added.
            tile: the tile of the contraction's result.
            acc: the variable of the tile, in the accumulator's type.
            used: the device functions that are called are added to it.
            numbers: the names of operands and constants of another epilogue in the kernel, to which those of this one
                are added.

        Raises:
            CannotLower: the epilogue has a reduction.
        """
        lines: list[str] = []
        numbers = {} if numbers is None else numbers
        for k in self.kernels:
            _Writer(k, self, params, tile, acc, used, lines, numbers).write()
        return lines


@dataclass
class AfterSums:
    """The epilogue of the sums of a product's operand over K.

    operand: its number: 0 is summed by rows, 1 by columns. count: the number of sums.
    """

    operand: int
    count: int
    epilogue: Epilogue


class _Writer(dag.Frame):
    """The writer of one kernel of an epilogue: a `dag.Frame` with a single scope.

    numbers: the names of operands and constants, numbered in order of use, so that equal regions have equal text.
    """

    def __init__(
        self,
        k: Kernel,
        e: Epilogue,
        params: Parameters,
        tile: Tile,
        acc: str,
        used: set[str],
        lines: list[str],
        numbers: dict[str, dict[tuple[Any, ...], str]],
    ) -> None:
        self.k, self.e, self.params, self.tile, self.acc = k, e, params, tile, acc
        self.used, self.lines, self.numbers = used, lines, numbers
        self.coarse = coarse(k)
        self.names: dict[Any, str] = {}
        self.walks: dict[str, int] = {}
        self.picked: set[int] = set()
        self.at = Positions(k, tile, params, lines)

    def write(self) -> None:
        # in DAG order: loads start early, and equal regions have equal text
        nodes = self.k.nodes
        values = []
        for i, node in enumerate(nodes):
            if node.op == "softmax_runs":
                self._runs(i, node)
            if node.op == "picked":
                self._pick(i, node)
            if node.op in ("reduce", "row"):
                self._reduce(i, node)
            values.append("" if node.op in APART else dag.value(self, i))
        everywhere = frozenset(range(self.tile.rank))
        for store in self.k.stores:
            name = f"out{store.operand}"
            if name not in self.params.types:
                self.params.pointer(name, store.dtype, self.e.stores[store.operand])
            node = nodes[store.node]
            if node.op == "partial_sums":
                self._store_sums(name, values[node.args[0]], node)
                continue
            if node.op in ("run_maxima", "run_sums"):
                self._store_of_runs(
                    name, f"{node.op}_{node.args[0]}", nodes[node.args[0]].attrs["run"]
                )
                continue
            if node.op == "picked":
                self._store_picked(name, store)
                continue
            offset, dims = self.at.offset(store.strides, name)
            address = f"{name} + {offset}"
            if of_columns(self.k, store):
                self._store_of_columns(address, values[store.node], store.dtype)
                continue
            if dims != everywhere:
                address = f"tl.broadcast_to({address}, {self.acc}.shape)"
            value = _stored(values[store.node], store.dtype)
            mask = self._mask(name, store, everywhere)
            given = f", mask={mask}" if mask else ""
            self.lines.append(f"tl.store({address}, {value}{given})")

    def _reduce(self, i: int, node: Node) -> None:
        """Write a reduction of columns, all of whose rows are in the tile, or a row of them."""
        rows, width = self.tile.axes[0], self.tile.width
        if self.tile.rank != 2 or len(self.tile.axes) != 2 or rows.dim != 0 or not width:
            raise CannotLower("a reduction of columns on a tile that has no whole columns")
        argument = self.k.nodes[node.args[0]]
        x = dag.value(self, node.args[0])
        if not x.isidentifier():
            x = f"tl.full([], {x}, {triton_type(register_dtype(argument.dtype))})"
        if node.op == "row":
            number = self.params.number(f"row_{i}", node.attrs["row"])
            here = self.tile.spread(f"({rows.text}) == {number}", 0)
            zero = literal(0, register_dtype(node.dtype))
            self.name(
                i,
                f"row_of_{i}",
                f"tl.sum(tl.where({here}, {x}, {zero}), 0, keep_dims=True)",
                node.dims,
            )
            return
        kind = register(node)
        x = f"tl.broadcast_to({x}, {self.acc}.shape).to({triton_type(kind)})"
        x = f"tl.where({self.tile.mask(frozenset({0}))}, {x}, {identity(node)})"
        text = along(self.used, node, x, 0, ", keep_dims=True")
        self.name(i, f"{node.attrs['kind']}_{i}", settled(node, text), node.dims)

    def _store_of_columns(self, address: str, value: str, dtype: str) -> None:
        """Write the store of a number for each column of the tile."""
        shape, columns = f"(1, {self.tile.width})", self.tile.mask(frozenset({1}))
        stored = f"tl.broadcast_to({_stored(value, dtype)}, {shape})"
        given = f", mask={columns}" if columns else ""
        self.lines.append(f"tl.store(tl.broadcast_to({address}, {shape}), {stored}{given})")

    def _store_sums(self, name: str, value: str, node: Node) -> None:
        """Write the stores of the sums over each run of the tile's rows."""
        if self.tile.rank != 2 or self.tile.axes[-2].tile is None:
            raise CannotLower("partial sums of columns on a tile that is no part of a matrix")
        rows, cols = self.tile.axes[-2:]
        run, width = node.attrs["run"], self.tile.width
        x = f"tl.broadcast_to({value}, {self.acc}.shape)"
        if (inside := self.tile.mask(frozenset({0}))) is not None:
            x = f"tl.where({inside}, {x}, 0.0)"
        at, count = f"{name}_run", f"BLOCK_M // {run}"
        runs = self.params.number(f"{name}_runs", -(-rows.size // run))
        long = self.params.number(f"{name}_width", cols.size)
        columns = self.tile.mask(frozenset({1}))
        known = self.tile.spread(f"{at} < {runs}", 0) + (f" & {columns}" if columns else "")
        self.lines += [
            f"{at} = {rows.tile} * ({count}) + tl.arange(0, {count})",
            f"{name}_sums = tl.sum(tl.reshape({x}, ({count}, {run}, {width})), 1)",
            f"{name}_at = {name} + {self.tile.spread(f'{at} * {long}', 0)} + {self.tile.spread(cols.text, 1)}",
            f"tl.store({name}_at, {name}_sums, mask={known})",
        ]

    def _runs(self, i: int, node: Node) -> None:
        """Write the exponentials, maxima and sums of runs of the tile's columns."""
        if self.tile.rank != 2 or len(self.tile.axes) != 2 or self.tile.axes[1].first is None:
            raise CannotLower("runs of columns on a tile that is no part of a matrix")
        self.used.add("gf_softmax_runs")
        x = f"tl.broadcast_to({dag.value(self, node.args[0])}, {self.acc}.shape)"
        if (inside := self.tile.mask(frozenset({1}))) is not None:
            x = f"tl.where({inside}, {x}, float('-inf'))"
        for n, other in enumerate(self.k.nodes):
            if other.op == "picked":
                self._pick(n, other)
        names = f"softmax_runs_{i}, run_maxima_{i}, run_sums_{i}"
        self.lines.append(f"{names} = gf_softmax_runs({x}, {node.attrs['run']})")
        self.names[i] = f"softmax_runs_{i}"

    def _store_of_runs(self, name: str, value: str, run: int) -> None:
        """Write the store of a number for each row and each run of columns; it has a row for each run."""
        rows, cols = self.tile.axes
        at = f"{name}_run"
        runs = self.params.number(f"{name}_runs", -(-cols.size // run))
        far = ".to(tl.int64)" if -(-cols.size // run) * rows.size >= WIDE else ""
        stride = self.params.number(f"{name}_rows", rows.size)
        inside = self.tile.mask(frozenset({0}))
        mask = self.tile.spread(f"{at} < {runs}", 1) + (f" & {inside}" if inside else "")
        self.lines += [
            f"{at} = ({cols.first}) // {run} + tl.arange(0, {self.tile.width} // {run})",
            f"tl.store({name} + {self.tile.spread(f'{at}{far} * {stride}', 1)} + {self.tile.spread(rows.text, 0)}, "
            f"{value}, mask={mask})",
        ]

    def _pick(self, i: int, node: Node) -> None:
        """Write the element of each row at an index, if it is in the tile, and its column there; once for a node.

        This precedes the exponentials, which take the registers of their argument.
        """
        if i in self.picked:
            return
        self.picked.add(i)
        x, index = (dag.value(self, a) for a in node.args)
        cols, at = self.tile.axes[-1], f"picked_at_{i}"
        last = self.params.number(f"picked_last_{i}", cols.size - 1)
        here = f"tl.arange(0, {self.tile.width})[None, :] == {at}"
        self.lines += [
            f"{at} = tl.minimum(tl.maximum({index}, 0), {last}).to(tl.int32) - ({cols.first})",
            f"picked_{i} = tl.sum(tl.where({here}, {x}, 0.0), 1, keep_dims=True)",
        ]

    def _store_picked(self, name: str, store: Access) -> None:
        """Write the store of the elements that `_pick` found in the tile."""
        i = store.node
        offset, _ = self.at.offset(store.strides, name)
        inside = self.tile.mask(frozenset({0}))
        known = f"(picked_at_{i} >= 0) & (picked_at_{i} < {self.tile.width})"
        mask = f"{known} & {inside}" if inside else known
        self.lines.append(f"tl.store({name} + {offset}, picked_{i}, mask={mask})")

    def known(self, key: Any) -> str | None:
        return self.names.get(key)

    def name(self, key: Any, wanted: str, text: str, dims: frozenset[int]) -> str:
        self.lines.append(f"{wanted} = {text}")
        return self.names.setdefault(key, wanted)

    def add(self, text: str, dims: frozenset[int]) -> None:
        self.lines.append(text)

    def parameter(self, name: str, kind: str, value: int | float | Place) -> str:
        if name not in self.params.types:
            self.params.types[name] = kind
            self.params.values.append(value)
        return name

    def load(self, slot: int) -> str:
        access = self.k.loads[slot]
        if is_raw(access, self.e.operands):
            # floats keep the accumulator's precision, integers wrap around
            kind = triton_type(access.dtype)
            return self.acc if access.dtype in FLOATS else f"{self.acc}.to({kind})"
        name = self.numbered("x", (access.operand,))
        if name not in self.params.types:
            self.params.pointer(name, access.dtype, self.e.loads[access.operand])
        self.walks[name] = self.walks.get(name, -1) + 1
        offset, dims = self.at.offset(access.strides, f"{name}_{self.walks[name]}")
        constant = f" + {access.offset}" if access.offset else ""
        address = f"{name}{constant}" if offset == "0" else f"{name}{constant} + {offset}"
        mask = self._mask(name, access, dims)
        text = f"tl.load({address}, mask={mask})" if mask else f"tl.load({address})"
        return loaded(text, access.dtype)

    def _mask(self, name: str, a: Access, dims: frozenset[int]) -> str | None:
        """The mask of an access; None: no condition. name: the name of its pointer."""
        if not a.width or self.tile.rank < 2:
            return self.tile.mask(dims)
        return self.tile.padded(self.params.number(f"{name}_to", a.width)).mask(dims)

    def position(self, slot: int) -> str:
        text, _ = self.at.offset(self.k.indices[slot], f"i{slot}")
        return "" if text == "0" else text

    def fours(self, slot: int, dims: frozenset[int]) -> dag.Fours | None:
        return self.at.fours(self.k.indices[slot], f"i{slot}")


def _stored(value: str, target: str) -> str:
    """Convert a value from its register type to its type in memory."""
    kind = triton_type(target)
    return f"{value}.to({kind})" if value.isidentifier() else f"tl.full([], {value}, {kind})"


def follow(b: Builder, o: Op, c: Contraction) -> tuple[Op, Epilogue]:
    """The contraction of an op as an op of its own, and its epilogue.

    In a fused op, the contraction's result becomes a new value of the function's body, without an address.
    """
    places = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    f, text = c.following, lambda: readable(o.op)
    sums = None
    if c.sums is not None:
        s = c.sums.following
        count = c.types[c.sums.operand].shape[c.sums.operand]
        sums = AfterSums(
            c.sums.operand, count, Epilogue(s.kernels, s.operands, *places, b.label(o), text)
        )
    if c.op is o.op:
        return o, Epilogue(f.kernels, f.operands, *places, b.label(o), text)
    value = len(b.body.types)
    b.body.types.append(c.result)
    b.body.values.append(c.op.results[0])
    b.body.producer.append(o.index)
    b.at.append(Layout(value, 0, row_major_strides(c.result.shape)))
    names = tuple(
        p.operation.name.removeprefix("gflow.")
        for p in c.op.block.operations
        if p.operation.name.removeprefix("gflow.") not in _UNTOLD and p.operation.name != c.op.name
    )
    alone = Op(o.index, c.op, c.name, [*c.operands], [value])
    return alone, Epilogue(f.kernels, f.operands, *places, b.label(o), text, names, sums)
