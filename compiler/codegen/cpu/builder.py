"""Adding steps to a program: where values live, kernels, copies, calls into PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gflow.dialects.mlir import func, ir
from gflow.dialects.program import AtenStep, KernelStep, Place, Step, TensorRef
from gflow.dialects.types import COMPLEX, TensorType

from ...ssa import Body, Op, read_body
from ...views import Layout, argument_strides, layouts
from ..kernel import Access, Kernel, Node, simplify
from . import gemm
from .render import render
from .signature import Plan, plan, structure

#: element operations below which starting the other threads costs more than it saves
_SERIAL_WORK = 32768

#: ops that say nothing about what a kernel is for
_UNTOLD = frozenset({"load", "const", "index", "convert", "select", "compare"})

#: structure → (function name, text, functions that it calls)
_rendered: dict[tuple[Any, ...], tuple[str, str, frozenset[str]]] = {}


class Builder:
    """What a program gets, step by step.

    places: value → its address, for values that aren't views.
    at: value → its layout in memory.
    arena: bytes of the planned arena; scratch that steps share lies behind it.
    threads: the most threads that run a kernel.
    blas: whether the runtime finds BLAS functions.
    """

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
        """A value's strides in memory, in elements."""
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

    def assign_if_planned(self, o: Op) -> None:
        """As `assign`, of an op that may be a view."""
        if "gflow.buffers" in o.op.attributes:
            self.assign(o)

    def label(self, o: Op) -> str:
        return f"{o.name} {o.op.location}"

    def scratch(self, size: int, wanted: bool = True) -> Place:
        """The start of the scratch that steps share, of at least `size` bytes if `wanted`."""
        if wanted:
            self.scratch_bytes = max(self.scratch_bytes, -(-size // 64) * 64)
        return Place("arena", 0, self.arena)

    @contextmanager
    def planned_scratch(self, o: Op) -> Iterator[Callable[[], bool]]:
        """Scratch where `gflow.scratch` has it, in the arena; the answer says whether it fits."""
        if "gflow.scratch" not in o.op.attributes:
            yield lambda: True
            return
        offset, size = ir.DenseI64ArrayAttr(o.op.attributes["gflow.scratch"])
        behind = self.arena, self.scratch_bytes
        self.arena, self.scratch_bytes = offset, 0
        used = 0
        try:
            yield lambda: used <= size
        finally:
            used = self.scratch_bytes
            self.arena, self.scratch_bytes = behind

    # -- kernels

    def launch(
        self,
        k: Kernel,
        loads: Sequence[Place],
        stores: Sequence[Place],
        label: str,
        first: int = 0,
    ) -> None:
        """Add a step that runs kernel `k`; places by operand and result number.

        first: where the kernel starts along its first dimension.
        """
        if k.numel == 0 and not any(n.op == "reduce" for n in k.nodes):
            return
        if any(access.dtype in COMPLEX for access in (*k.loads, *k.stores)):
            raise ValueError(f"there are no kernels on complex numbers: {label}")
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
            if w.kind in ("load", "store"):
                access = k.loads[w.value] if w.kind == "load" else k.stores[w.value]
                place = (loads if w.kind == "load" else stores)[access.operand]
                if first:
                    ty = TensorType((), access.dtype)
                    place = shifted(place, first * access.strides[0], ty)
                words.append(place)
            elif w.kind == "scratch":
                words.append(scratch)
            else:
                words.append(w.bits())
        parallel = p.mode != "scalar" and work >= _SERIAL_WORK
        self.steps.append(KernelStep(name, tuple(words), parallel, label, p.mode != "scalar"))

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

    def gemm(self, dtype: str) -> str:
        """The name of the matrix product's function."""
        name = f"gemm_{dtype}"
        self.kernels[name] = gemm.function(dtype, name)
        callee, declared = gemm.declaration(dtype)
        self.declared[callee] = declared
        self.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
        return name

    # -- filling and copying

    def flat(
        self,
        target: Place,
        ty: TensorType,
        strides: Sequence[int],
        nodes: list[Node],
        label: str,
        source: tuple[Place, Sequence[int]] | None = None,
        indices: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """A kernel that writes the last node over the whole of `target`.

        Args:
            source: the place and strides of the one load, if any.
            indices: the walks of index nodes.
        """
        loads = [] if source is None else [Access(0, ty.dtype, tuple(source[1]))]
        store = Access(0, ty.dtype, tuple(strides), len(nodes) - 1)
        k = Kernel(ty.shape, frozenset(), nodes, loads, list(indices), [store])
        self.launch(simplify(k), [] if source is None else [source[0]], [target], label)

    def copy(
        self,
        source: Place,
        source_strides: Sequence[int],
        target: Place,
        target_strides: Sequence[int],
        ty: TensorType,
        label: str,
    ) -> None:
        """Copy a tensor of type `ty` between two places. A stride of 0 repeats an element."""
        nodes = [Node("load", ty.dtype, slot=0)]
        self.flat(target, ty, target_strides, nodes, label, (source, source_strides))

    def fill(
        self,
        value: float | int | bool,
        target: Place,
        ty: TensorType,
        strides: Sequence[int],
        label: str,
    ) -> None:
        """Write `value` to a whole tensor."""
        nodes = [Node("const", ty.dtype, attrs={"value": value})]
        self.flat(target, ty, strides, nodes, label)

    # -- through PyTorch

    def aten(
        self,
        label: str,
        overload: str,
        args: list[Any],
        inputs: Sequence[TensorRef],
        output: TensorRef,
    ) -> None:
        """Add a call of an ATen overload; in `args`, {"t": i} stands for input i."""
        call = json.dumps([args, {}])
        self.steps.append(AtenStep(overload, call, tuple(inputs), (output,), label))


def kind_of(o: Op) -> str:
    """How a fused op says that it walks its index space; "" if it doesn't say."""
    attributes = o.op.attributes
    return ir.StringAttr(attributes["kind"]).value if "kind" in attributes else ""


def _stem(k: Kernel, p: Plan) -> str:
    """A readable start for a kernel's name: its structure and its last telling ops."""
    names = dict.fromkeys(n.op for n in reversed(k.nodes) if n.op not in _UNTOLD)
    return "_".join([p.mode, *reversed(list(names)[:3])])


def shifted(place: Place, elements: int, ty: TensorType) -> Place:
    """The address of an element that lies `elements` after the one at `place`."""
    return Place(place.space, place.index, place.offset + elements * ty.itemsize)
