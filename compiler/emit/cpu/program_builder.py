"""The builder of a CPU program: adds steps of kernels and copies."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.canonical import canonical
from gflow.compiler.kernel.description import Kernel
from gflow.compiler.kernel.movement import shifted, zeros
from gflow.compiler.kernel.selection.choice import Choice, Way
from gflow.compiler.kernel.selection.cpu.loops import loops_from, runs
from gflow.dialects.extents import Piece
from gflow.dialects.mlir import func
from gflow.dialects.program import KernelStep, Place
from gflow.dialects.types import NO_KERNELS, TensorType

from ..placement import Placement
from .language.parameters import Plan, plan_of, structure
from .product import gemm
from .region.render import render

#: ops that are left out of kernels' names
_UNTOLD = frozenset({"load", "const", "index", "convert", "select", "compare"})

#: characters of kernels' text from which on LLVM begins with them: it takes about 0.2 s for so many
_MANY = 100_000

#: by structure of a kernel: its function's name and text, and the functions that it calls
_rendered: dict[tuple[Any, ...], tuple[str, str, frozenset[str]]] = {}


class Builder(Placement):
    """The builder of a CPU program.

    Attributes:
        threads: the most threads that run a kernel.
        blas: whether the runtime found BLAS functions.
        begun: the names of kernels that threads compile already.
    """

    def __init__(
        self, function: func.FuncOp, threads: int, blas: bool, begun: Collection[str] = ()
    ) -> None:
        super().__init__(function)
        self.threads, self.blas, self.begun = threads, blas, begun
        self.kernels: dict[str, str] = {}
        self.externals: set[str] = set()
        self.declared: dict[str, str] = {}
        self.choice = Choice("none")  # the choice of the op whose steps are being added
        #: by kernel and loop nest: the kernel, in canonical order, its plan, and the name of its function
        self._launched: dict[tuple[int, Way], tuple[Kernel, Kernel, Plan, str]] = {}
        self._taken = 0  # kernels that `new_kernels` has returned
        self._seen = 0  # kernels when it was last called

    # -- kernels

    def new_kernels(self) -> dict[str, str]:
        """The kernels since it last returned some that have not begun, if they are many; else none."""
        if len(self.kernels) == self._seen:
            return {}
        self._seen = len(self.kernels)
        made = islice(self.kernels.items(), self._taken, None)
        new = {name: text for name, text in made if name not in self.begun}
        if sum(map(len, new.values())) < _MANY:
            return {}
        self._taken = len(self.kernels)
        return new

    def launch(
        self,
        k: Kernel,
        loads: Sequence[Place],
        stores: Sequence[Place],
        label: str,
        first: int = 0,
        part: Piece | None = None,
        *,
        way: Way,
    ) -> None:
        """Add a step that runs kernel `k`.

        Args:
            k: the kernel.
            loads, stores: addresses by number of operand and result.
            label: for messages and profiles.
            first: the first position along its first dimension.
            part: the chunk of its first dimension that it computes; None: all of it.
            way: its loop nest.

        Raises:
            CannotLower: the kernel accesses element types without kernels, or cannot run with the chosen loop nest.
        """
        if not runs(k):
            return
        if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
            raise CannotLower(f"there are no kernels on complex numbers or float8: {label}")
        # the kernel is kept: another one must not get its id
        given, found = k, self._launched.get((id(k), way))
        if found is None:
            k = canonical(k)
            p = plan_of(k, loops_from(way, k))
            found = self._launched[id(given), way] = given, k, p, self.kernel(k, p)
        _, k, p, name = found
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
        parallel, shared = way.threads == "all", p.mode != "scalar"
        self.steps.append(
            KernelStep(name, tuple(words), parallel, label, shared, from_size=way.from_size)
        )

    def ways(self, count: int) -> tuple[Way, ...]:
        """The loop nests of an op's `count` kernels, without those of copies, conversions and zeros.

        Raises:
            CannotLower: the op's choice has another number of them.
        """
        before = self.choice.before_epilogue
        then = self.choice.then[before:]
        right = len(self.choice.then) == before + count
        self.choice.check(right, f"needs {before + count} entries in `then`")
        return then

    def way(self, number: int) -> Way:
        """Entry `number` of the choice's `then`.

        Raises:
            CannotLower: there is none.
        """
        then = self.choice.then
        self.choice.check(number < len(then), f"needs more than {number} entries in `then`")
        return then[number]

    def kernel(self, k: Kernel, p: Plan) -> str:
        """The name of the kernel's function; kernels of equal structure share it."""
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
        """The name of the function that calls the BLAS for `dtype`."""
        return gemm.add_function(self, dtype)

    def zero(self, target: Place, ty: TensorType, strides: tuple[int, ...], label: str) -> None:
        """Add a step that writes zeros to a whole tensor. strides: in elements.

        Raises:
            CannotLower: the op's choice has no loop nest for it.
        """
        way = self.way(self.choice.before_epilogue - 1)
        self.launch(zeros(ty, strides), [], [target], label, way=way)


def _stem(k: Kernel, p: Plan) -> str:
    """The start of a kernel's name: its loop structure and its last characteristic ops."""
    names = dict.fromkeys(n.op for n in reversed(k.nodes) if n.op not in _UNTOLD)
    return "_".join([p.mode, *reversed(list(names)[:3])])
