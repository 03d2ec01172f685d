"""A planned function to a `Program`: kernels as text, steps in order.

Each op becomes one or a few steps: a generated kernel, a BLAS call, or an ATen call for what has no kernel yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import (
    Argument,
    AtenStep,
    KernelStep,
    Place,
    Program,
    Result,
    Step,
    TensorRef,
)
from gflow.dialects.types import TensorType, row_major_strides

from ...ssa import Body, Op, aliases, read_body
from ...views import Layout, argument_strides, is_view, layouts
from ..kernel import Access, Kernel, Node, describe, simplify
from . import convolution, gemm, vmath
from .constants import constant_bytes
from .render import render
from .signature import Plan, plan, structure

#: element operations below which starting the other threads costs more than it saves
_SERIAL_WORK = 32768

_RUNTIME_FUNCTIONS = {
    "omp_get_thread_num": "  llvm.func @omp_get_thread_num() -> i32",
    "omp_get_num_threads": "  llvm.func @omp_get_num_threads() -> i32",
    "GOMP_barrier": "  llvm.func @GOMP_barrier()",
}

_rendered: dict[tuple[Any, ...], tuple[str, str, frozenset[str]]] = {}


class Builder:
    """Adds steps to a program, op by op."""

    def __init__(self, function: func.FuncOp, threads: int, blas: bool) -> None:
        self.function, self.threads, self.blas = function, threads, blas
        self.body: Body = read_body(function)
        self.at: list[Layout] = layouts(function, self.body)
        self.argument_strides = argument_strides(function, self.body)
        self.places: dict[int, Place] = {}
        self.constants: list[bytes] = []
        self.steps: list[Step] = []
        self.kernels: dict[str, str] = {}
        self.externals: set[str] = set()
        self.declared: dict[str, str] = {}
        self.scratch_bytes = 0
        self.arena = ir.IntegerAttr(function.operation.attributes["gflow.arena_size"]).value

    # -- places

    def place(self, value: int) -> Place:
        """The address of a value's first element."""
        layout = self.at[value]
        base = self.places[layout.base]
        return Place(
            base.space, base.index, base.offset + layout.offset * self.body.types[value].itemsize
        )

    def strides(self, value: int) -> tuple[int, ...]:
        return self.at[value].strides

    def ref(self, value: int) -> TensorRef:
        return TensorRef(self.place(value), self.body.types[value], self.strides(value))

    def assign(self, o: Op) -> None:
        """Record where the results of `o` live, from its `gflow.buffers`."""
        names = [a.value for a in ir.ArrayAttr(o.op.attributes["gflow.buffers"])]
        for r, name in zip(o.results, names):
            space, _, number = name.partition(":")
            if space == "arena":
                self.places[r] = Place("arena", 0, int(number))
            elif space == "result":
                self.places[r] = Place("result", int(number), 0)
            else:
                self.places[r] = Place("arg", int(number), 0)
                self.at[r] = Layout(r, 0, self.argument_strides[int(number)])

    # -- kernels

    def launch(
        self, k: Kernel, loads: Sequence[Place], stores: Sequence[Place], label: str
    ) -> None:
        """Add a step that runs kernel `k`; places by operand and result number."""
        if k.numel == 0 and not any(n.op == "reduce" for n in k.nodes):
            return
        p = plan(k)
        name = self.kernel(k, p)
        work = k.numel * max(1, sum(n.op not in ("load", "const", "index") for n in k.nodes))
        scratch = Place("arena", 0, self.arena)
        if p.scratch_rows:
            self.scratch_bytes = max(
                self.scratch_bytes, 8 * p.scratch_rows * p.scratch_width * self.threads
            )
        words: list[int | Place] = []
        for w in p.words:
            if w.kind == "load":
                words.append(loads[k.loads[w.value].operand])
            elif w.kind == "store":
                words.append(stores[k.stores[w.value].operand])
            elif w.kind == "scratch":
                words.append(scratch)
            else:
                words.append(w.bits())
        parallel = p.mode != "scalar" and work >= _SERIAL_WORK
        self.steps.append(KernelStep(name, tuple(words), parallel, label))

    def kernel(self, k: Kernel, p: Plan) -> str:
        """The name of the kernel's function; kernels of one structure share it."""
        key = structure(k, p)
        if key not in _rendered:
            text, externals = render(k, p, "KERNEL")
            name = f"{_stem(k, p)}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            _rendered[key] = (name, text.replace("@KERNEL(", f"@{name}(", 1), frozenset(externals))
        name, text, externals_ = _rendered[key]
        self.kernels[name] = text
        self.externals |= externals_
        return name

    def copy(self, source: Place, source_strides: Sequence[int], target: Place, target_strides: Sequence[int],
             ty: TensorType, label: str) -> None:  # fmt: skip
        """Copy a tensor of type `ty` between two places."""
        node = Node("load", ty.dtype, slot=0)
        self.launch_flat(
            ty,
            [node],
            [Access(0, ty.dtype, tuple(source_strides))],
            tuple(target_strides),
            [source],
            target,
            label,
        )

    def fill(
        self,
        value: float | int | bool,
        target: Place,
        ty: TensorType,
        strides: Sequence[int],
        label: str,
    ) -> None:
        node = Node("const", ty.dtype, attrs={"value": value})
        self.launch_flat(ty, [node], [], tuple(strides), [], target, label)

    def launch_flat(self, ty: TensorType, nodes: list[Node], loads: list[Access], strides: tuple[int, ...],
                    sources: list[Place], target: Place, label: str,
                    indices: Sequence[tuple[int, ...]] = ()) -> None:  # fmt: skip
        k = Kernel(
            ty.shape,
            frozenset(),
            nodes,
            loads,
            list(indices),
            [Access(0, ty.dtype, strides, len(nodes) - 1)],
        )
        self.launch(simplify(k), sources, [target], label)

    # -- ops

    def op(self, o: Op) -> None:
        if is_view(o, self.at):
            return
        if o.name == "constant":
            self.constant(o)
            return
        if "gflow.buffers" not in o.op.attributes:
            raise ValueError(f"gflow.{o.name} has no place in memory; run gflow-plan-memory first")
        self.assign(o)
        handler: Callable[[Op], None] | None = getattr(self, f"op_{o.name}", None)
        if handler is None:
            raise ValueError(f"gflow.{o.name} has no CPU code; run gflow-fuse first")
        handler(o)

    def label(self, o: Op) -> str:
        return f"{o.name} {o.op.location}"

    def constant(self, o: Op) -> None:
        """A constant that is read from memory: one element for a splat."""
        elements = ir.DenseElementsAttr(o.op.attributes["value"])
        ty = self.body.types[o.results[0]]
        data = constant_bytes(elements, ty)
        self.places[o.results[0]] = Place("constant", len(self.constants), 0)
        self.constants.append(data)

    def op_fused(self, o: Op) -> None:
        k = describe(
            o.op, [self.strides(v) for v in o.operands], [self.strides(v) for v in o.results]
        )
        self.launch(
            k,
            [self.place(v) for v in o.operands],
            [self.place(v) for v in o.results],
            self.label(o),
        )

    def op_iota(self, o: Op) -> None:
        attrs = read(OPS["iota"], o.op.attributes)
        r = o.results[0]
        ty = self.body.types[r]
        nodes = [Node("index", "i64", slot=0)]
        if ty.dtype != "i64":
            nodes.append(Node("convert", ty.dtype, (0,), {"dtype": ty.dtype}))
        walk = tuple(int(d == attrs["dim"]) for d in range(ty.rank))
        self.launch_flat(ty, nodes, [], self.strides(r), [], self.place(r), self.label(o), [walk])

    def op_matmul(self, o: Op) -> None:
        a, b = o.operands
        c = o.results[0]
        types = [self.body.types[v] for v in (a, b, c)]
        if types[2].numel == 0:
            return
        if types[0].shape[-1] == 0:
            self.fill(0, self.place(c), types[2], self.strides(c), self.label(o))
            return
        if not self.blas or types[0].dtype not in gemm.DTYPES:
            self.aten(
                o,
                "aten.matmul.default",
                [{"t": 0}, {"t": 1}],
                [self.ref(a), self.ref(b)],
                self.ref(c),
            )
            return
        name = self.gemm(types[0].dtype)
        for words, parallel in gemm.words(
            [self.place(v) for v in (a, b, c)], types, [self.strides(v) for v in (a, b, c)]
        ):
            self.steps.append(KernelStep(name, words, parallel, self.label(o)))

    def gemm(self, dtype: str) -> str:
        """The name of the matrix product's function."""
        name = f"gemm_{dtype}"
        self.kernels[name] = gemm.function(dtype, name)
        callee, declared = gemm.declaration(dtype)
        self.declared[callee] = declared
        self.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
        return name

    def op_pad(self, o: Op) -> None:
        x, value = o.operands
        r = o.results[0]
        attrs = read(OPS["pad"], o.op.attributes)
        ty, strides = self.body.types[r], self.strides(r)
        place = self.place(r)
        scalar = Access(0, ty.dtype, (0,) * ty.rank)
        self.launch_flat(
            ty,
            [Node("load", ty.dtype, slot=0)],
            [scalar],
            strides,
            [self.place(value)],
            place,
            self.label(o),
        )
        inner = Place(
            place.space,
            place.index,
            place.offset + ty.itemsize * sum(a * s for a, s in zip(attrs["low"], strides)),
        )
        self.copy(self.place(x), self.strides(x), inner, strides, self.body.types[x], self.label(o))

    def op_concatenate(self, o: Op) -> None:
        r = o.results[0]
        dim = read(OPS["concatenate"], o.op.attributes)["dim"]
        place, strides, ty = self.place(r), self.strides(r), self.body.types[r]
        start = 0
        for x in o.operands:
            target = Place(
                place.space, place.index, place.offset + start * strides[dim] * ty.itemsize
            )
            self.copy(
                self.place(x), self.strides(x), target, strides, self.body.types[x], self.label(o)
            )
            start += self.body.types[x].shape[dim]

    def op_reverse(self, o: Op) -> None:
        (x,), r = o.operands, o.results[0]
        dims = read(OPS["reverse"], o.op.attributes)["dims"]
        ty, own, place = self.body.types[x], self.strides(x), self.place(x)
        if ty.numel == 0:
            return
        last = sum((ty.shape[d] - 1) * own[d] for d in dims)
        start = Place(place.space, place.index, place.offset + last * ty.itemsize)
        flipped = tuple(-s if d in dims else s for d, s in enumerate(own))
        self.copy(start, flipped, self.place(r), self.strides(r), ty, self.label(o))

    # -- through ATen

    def aten(
        self, o: Op, overload: str, args: list[Any], inputs: Sequence[TensorRef], output: TensorRef
    ) -> None:
        self.steps.append(
            AtenStep(overload, json.dumps([args, {}]), tuple(inputs), (output,), self.label(o))
        )

    def op_aten(self, o: Op) -> None:
        attrs = read(OPS["aten"], o.op.attributes)
        outputs = tuple(self.ref(r) for r in o.results)
        inputs = tuple(self.ref(v) for v in o.operands)
        self.steps.append(
            AtenStep(attrs["overload"], attrs["args"], inputs, outputs, self.label(o))
        )

    def op_reduce(self, o: Op) -> None:
        attrs = read(OPS["reduce"], o.op.attributes)
        args = [{"t": 0}, attrs["dims"][0]]
        self.aten(
            o,
            f"aten.{attrs['kind']}.default",
            args,
            [self.ref(o.operands[0])],
            self.ref(o.results[0]),
        )

    def op_gather(self, o: Op) -> None:
        dim = read(OPS["gather"], o.op.attributes)["dim"]
        inputs = [self.ref(v) for v in o.operands]
        self.aten(
            o, "aten.gather.default", [{"t": 0}, dim, {"t": 1}], inputs, self.ref(o.results[0])
        )

    def flat(self, value: int, low: int, rank: int) -> TensorRef:
        """A dense value with dimensions low…low+rank merged into one."""
        ref = self.ref(value)
        shape = ref.type.shape
        merged = TensorType(shape[low : low + rank], "i1").numel
        new = (*shape[:low], merged, *shape[low + rank :])
        return TensorRef(ref.place, TensorType(new, ref.type.dtype), row_major_strides(new))

    def op_take(self, o: Op) -> None:
        x, index = o.operands
        dim = read(OPS["take"], o.op.attributes)["dim"]
        rank = self.body.types[index].rank
        out = self.flat(o.results[0], dim, rank)
        self.aten(
            o,
            "aten.index_select.default",
            [{"t": 0}, dim, {"t": 1}],
            [self.ref(x), self.dense(index, 0, rank)],
            out,
        )

    def dense(self, value: int, low: int, rank: int) -> TensorRef:
        if self.strides(value) != row_major_strides(self.body.types[value].shape) and rank > 1:
            raise ValueError(
                "an index of more than one dimension must be dense; run gflow-materialize first"
            )
        return self.flat(value, low, rank) if rank != 1 else self.ref(value)

    def op_index_add(self, o: Op) -> None:
        x, index, source = o.operands
        dim = read(OPS["index_add"], o.op.attributes)["dim"]
        rank = self.body.types[index].rank
        inputs = [self.ref(x), self.dense(index, 0, rank), self.dense(source, dim, rank)]
        self.aten(
            o,
            "aten.index_add.default",
            [{"t": 0}, dim, {"t": 1}, {"t": 2}],
            inputs,
            self.ref(o.results[0]),
        )

    def channels_first(self, ref: TensorRef, layout: str) -> TensorRef:
        """The same memory seen as NC* (or OI*)."""
        if layout == "NC*":
            return ref
        n, c, spatial = conv_dims(layout, ref.type.rank)
        order = (n, c, *spatial)
        shape = tuple(ref.type.shape[d] for d in order)
        return TensorRef(
            ref.place, TensorType(shape, ref.type.dtype), tuple(ref.strides[d] for d in order)
        )

    def convolution(self, o: Op, shape_of: str | None) -> None:
        attrs = read(OPS[o.name], o.op.attributes)
        a, b = (self.channels_first(self.ref(v), attrs["layout"]) for v in o.operands)
        out = self.channels_first(self.ref(o.results[0]), attrs["layout"])
        if out.type.numel == 0:
            return
        geometry = [
            list(attrs["stride"]),
            list(attrs["padding"]),
            list(attrs["dilation"]),
            False,
            [0] * (out.type.rank - 2),
            attrs["groups"],
        ]
        if shape_of is None:
            self.aten(
                o, "aten.convolution.default", [{"t": 0}, {"t": 1}, None, *geometry], [a, b], out
            )
            return
        # ATen reads only the shape of the tensor whose gradient it computes: one element stands for all
        shape = TensorRef(a.place, out.type, (0,) * out.type.rank)
        inputs, mask = (
            ([a, shape, b], [True, False, False])
            if shape_of == "input"
            else ([b, a, shape], [False, True, False])
        )
        args = [{"t": 0}, {"t": 1}, {"t": 2}, None, *geometry, mask]
        self.aten(o, "aten.convolution_backward.default", args, inputs, out)

    def op_convolution(self, o: Op) -> None:
        if not convolution.native(self, o):
            self.convolution(o, None)

    def op_convolution_input_grad(self, o: Op) -> None:
        if not convolution.native(self, o):
            self.convolution(o, "input")

    def op_convolution_weight_grad(self, o: Op) -> None:
        if not convolution.native(self, o):
            self.convolution(o, "weight")


def _stem(k: Kernel, p: Plan) -> str:
    """A readable start for a kernel's name: its structure and its most telling ops."""
    names = [
        n.op
        for n in k.nodes
        if n.op not in ("load", "const", "index", "convert", "select", "compare")
    ]
    told = list(dict.fromkeys(f"{n}" if n != "reduce" else "reduce" for n in reversed(names)))[:3]
    return "_".join([p.mode, *reversed(told)])


def build_program(function: func.FuncOp, *, threads: int, blas: bool) -> Program:
    """Generate code for a planned function.

    Args:
        threads: the most threads that its kernels will run on.
        blas: whether the runtime finds BLAS functions to call from generated code.
    """
    b = Builder(function, threads, blas)
    strides = b.argument_strides
    for i, v in enumerate(b.body.arguments):
        b.places[v] = Place("arg", i, 0)
    for o in b.body.ops:
        b.op(o)
    libm = [name for name in b.externals if name not in _RUNTIME_FUNCTIONS]
    declared = {
        name: _RUNTIME_FUNCTIONS[name] for name in sorted(b.externals - set(libm))
    } | b.declared
    declared |= {f"libm{i}": text for i, text in enumerate(vmath.declarations(libm))}
    arg_attrs = (
        list(function.arg_attrs) if "arg_attrs" in function.attributes else [{}] * len(strides)
    )
    arguments = [
        Argument(
            _text(a, "gflow.role", "input"), _text(a, "gflow.name", f"arg{i}"), b.body.types[v], s
        )
        for i, (a, v, s) in enumerate(zip(arg_attrs, b.body.arguments, strides))
    ]
    alias = aliases(function, b.body)
    result_attrs = (
        list(ir.ArrayAttr(function.attributes["res_attrs"]))
        if "res_attrs" in function.attributes
        else []
    )
    results = []
    for i, v in enumerate(b.body.returned):
        attrs = ir.DictAttr(result_attrs[i]) if i < len(result_attrs) else {}
        results.append(Result(_text(attrs, "gflow.name", f"result{i}"), b.body.types[v], alias[i]))
    name = ir.StringAttr(function.attributes["sym_name"]).value
    return Program(name, "", arguments, results, b.steps, b.kernels, declared, b.arena + b.scratch_bytes,
                   b.constants, threads)  # fmt: skip


def _text(attrs: Any, key: str, default: str) -> str:
    return ir.StringAttr(attrs[key]).value if key in attrs else default
