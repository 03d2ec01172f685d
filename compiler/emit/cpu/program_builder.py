"""Adding steps to a program for the CPU: kernels and copies."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.canonical import canonical
from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.compiler.kernel.movement import shifted
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.cpu.loops import choice_of_loops, loops_from, runs
from gflow.dialects.extents import Piece
from gflow.dialects.mlir import func
from gflow.dialects.program import KernelStep, Place
from gflow.dialects.types import COMPLEX, TensorType

from ..placement import Placement
from .language.parameters import Plan, plan_of, structure
from .product import gemm
from .region.render import render

#: ops that say nothing about what a kernel is for
_UNTOLD = frozenset({"load", "const", "index", "convert", "select", "compare"})

#: structure → (function name, text, functions that it calls)
_rendered: dict[tuple[Any, ...], tuple[str, str, frozenset[str]]] = {}


class Builder(Placement):
    """What a program gets, step by step.

    threads: the most threads that run a kernel.
    blas: whether the runtime finds BLAS functions.
    """

    def __init__(self, function: func.FuncOp, threads: int, blas: bool) -> None:
        super().__init__(function)
        self.threads, self.blas = threads, blas
        self.kernels: dict[str, str] = {}
        self.externals: set[str] = set()
        self.declared: dict[str, str] = {}
        self.choice = Choice("none")  # for the op whose steps are added

    # -- kernels

    def launch(
        self,
        k: Kernel,
        loads: Sequence[Place],
        stores: Sequence[Place],
        label: str,
        first: int = 0,
        part: Piece | None = None,
        chosen: bool = False,
    ) -> None:
        """Add a step that runs kernel `k`; places by operand and result number.

        first: where the kernel starts along its first dimension. part: how far it goes along that. chosen: whether the
        op's choice says how it runs, or else the model.

        Raises:
            CannotLower: the kernel reads or writes complex numbers, or it cannot run as was chosen.
        """
        if not runs(k):
            return
        if any(access.dtype in COMPLEX for access in (*k.loads, *k.stores)):
            raise CannotLower(f"there are no kernels on complex numbers: {label}")
        k = canonical(k)
        choice = self.choice if chosen else choice_of_loops(k, self.threads)
        p = plan_of(k, loops_from(choice, k))
        name = self.kernel(k, p)
        scratch = Place("arena", 0, self.arena)
        if p.scratch_rows:
            self.scratch_bytes = max(self.scratch_bytes, p.scratch_bytes(self.threads))
        words: list[int | Piece | Place] = []
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
        if part is not None:
            words[p.index["size", 0]] = part
        parallel, shared = choice.threads == "all", p.mode != "scalar"
        self.steps.append(
            KernelStep(name, tuple(words), parallel, label, shared, from_size=choice.from_size)
        )

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
        return gemm.add_function(self, dtype)

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


def _stem(k: Kernel, p: Plan) -> str:
    """A readable start for a kernel's name: its structure and its last telling ops."""
    names = dict.fromkeys(n.op for n in reversed(k.nodes) if n.op not in _UNTOLD)
    return "_".join([p.mode, *reversed(list(names)[:3])])
