"""A fused region as `linalg.generic` ops, a schedule of the transform dialect, and upstream's passes.

    load x, load b, add, erf, …      →    %out = linalg.generic ins(%x, %b) outs(%y) { addf, …, yield }
    a reduction; a value kept        →    a linalg.generic each, whose results the next ones read

The schedule tiles rows, fuses the producers into that loop, tiles along the row by 16 (reductions with a vector of
partial results), peels the rest, and vectorizes. Threads share the rows as in gflow's own kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gflow.compiler.emit.cpu.language.parameters import Plan
from gflow.compiler.emit.cpu.language.scalars import elementwise
from gflow.compiler.emit.cpu.language.ssa_text import Emitter
from gflow.compiler.kernel.description import Access, Kernel

LANES = 16

#: functions that `math` has ops for
_MATH = frozenset({"erf", "exp", "tanh", "log"})
_IDENTITY = {"max": "0xFF800000", "sum": "0.0"}
_COMBINER = {"max": "arith.maximumf", "sum": "arith.addf"}


@dataclass(frozen=True)
class Variant:
    """What differs between the ways to write a kernel.

    libm: functions are `math` ops, which become a call of libm for each element; else gflow's polynomials.
    fixed: sizes are in the types, so that other sizes are other kernels.
    wide: sums are float64.
    """

    libm: bool = False
    fixed: bool = False
    wide: bool = True


# -- payload


class Target(NamedTuple):
    """What a `linalg.generic` makes: its name, that of the tensor it writes to, element type, dimensions."""

    name: str
    init: str
    dtype: str
    dims: tuple[int, ...]


def _size(n: int, fixed: bool) -> str:
    return str(n) if fixed else "?"


class _Payload:
    """The function that computes a kernel on the rows of the running thread."""

    def __init__(self, k: Kernel, p: Plan, variant: Variant) -> None:
        if len(k.sizes) != 2 or p.mode not in ("pointwise", "row") or p.vector != 1 or p.split:
            raise ValueError(
                f"only kernels of rows have a schedule here, not {p.mode} over {k.sizes}"
            )
        self.k, self.p, self.variant = k, p, variant
        self.columns = _size(k.sizes[1], variant.fixed)
        self.lines: list[str] = []
        #: node → (name of the tensor, element type, dimensions)
        self.known: dict[int, tuple[str, str, tuple[int, ...]]] = {}

    def memref(self, access: Access, offset: str = "0", view: bool = False) -> str:
        """An argument's type. view: that of the rows of this thread."""
        dims, fixed = _dims(access), self.variant.fixed
        sizes = "".join(f"{_size(self.k.sizes[d], fixed and not (view and d == 0))}x" for d in dims)
        strides = [_size(s, fixed or s == 1) for s in access.strides if s]
        return f"memref<{sizes}{access.dtype}, strided<[{', '.join(strides)}], offset: {offset}>>"

    def tensor(self, dims: Sequence[int], dtype: str) -> str:
        return f"tensor<{''.join(('?x', f'{self.columns}x')[d] for d in dims)}{dtype}>"

    def operand(self, name: str, access: Access, writable: bool = False) -> str:
        """This thread's rows of an argument, as a tensor; returns the view's type."""
        dims, ty = _dims(access), self.memref(access)
        view = self.memref(access, "?", view=True)
        at, size, ones = (
            ", ".join(texts[d] for d in dims)
            for texts in (("%low", "0"), ("%rows", self.count), ("1", "1"))
        )
        self.lines.append(
            f"%{name}_v = memref.subview %{name}[{at}] [{size}] [{ones}] : {ty} to {view}"
            if 0 in dims
            else f"%{name}_v = memref.cast %{name} : {ty} to {view}"
        )
        mode = "restrict writable" if writable else "restrict"
        tensor = self.tensor(dims, access.dtype)
        self.lines.append(
            f"%{name}_t = bufferization.to_tensor %{name}_v {mode} : {view} to {tensor}"
        )
        return view

    @property
    def count(self) -> str:
        return self.columns if self.variant.fixed else "%columns"

    def empty(self, name: str, dims: Sequence[int], dtype: str) -> None:
        sizes = ["%rows", "%columns"]
        wanted = ", ".join(sizes[d] for d in dims if d == 0 or not self.variant.fixed)
        self.lines.append(f"%{name} = tensor.empty({wanted}) : {self.tensor(dims, dtype)}")

    # -- one generic

    def leaves(self, node: int) -> dict[int, None]:
        """The tensors that a node is computed from: loads, reductions, values kept."""
        if node in self.known:
            return {node: None}
        return {leaf: None for a in self.k.nodes[node].args for leaf in self.leaves(a)}

    def value(self, e: Emitter, node: int, names: dict[int, str]) -> str:
        """A node as a scalar."""
        if node in names:
            return names[node]
        n = self.k.nodes[node]
        if n.op == "const":
            return e.const(n.attrs["value"], n.dtype)
        args = [self.value(e, a, names) for a in n.args]
        if self.variant.libm and n.op in _MATH:
            names[node] = e(f"math.{n.op} {args[0]} : {n.dtype}")
        else:
            dtypes = [self.k.nodes[a].dtype for a in n.args]
            names[node] = elementwise(e, n.op, args, dtypes, n.dtype, n.attrs, 0)
        return names[node]

    def generic(self, target: Target, role: str, node: int, kind: str = "") -> None:
        """`node` over the index space, combined along rows where there is a `kind` of reduction."""
        e, leaves = Emitter(), [(leaf, *self.known[leaf]) for leaf in self.leaves(node)]
        names, own = {}, self.k.nodes
        for n, (leaf, _, dtype, _) in enumerate(leaves):
            same = dtype == own[leaf].dtype
            names[leaf] = (
                f"%in{n}" if same else e(f"arith.truncf %in{n} : {dtype} to {own[leaf].dtype}")
            )
        value = self.value(e, node, names)
        if kind:
            if target.dtype != own[node].dtype:
                value = e(f"arith.extf {value} : {own[node].dtype} to {target.dtype}")
            value = e(f"{_COMBINER[kind]} {value}, %acc : {target.dtype}")
        maps = [_map(dims) for *_, dims in leaves] + [_map(target.dims)]
        arguments = [f"%in{n}: {dtype}" for n, (_, _, dtype, _) in enumerate(leaves)]
        ins = ", ".join(name for _, name, _, _ in leaves)
        types = ", ".join(self.tensor(dims, dtype) for _, _, dtype, dims in leaves)
        ty = self.tensor(target.dims, target.dtype)
        self.lines += [
            f"%{target.name} = linalg.generic {{indexing_maps = [{', '.join(maps)}],",
            f'  iterator_types = ["parallel", "{"reduction" if kind else "parallel"}"]}}',
            f"  ins({ins} : {types}) outs(%{target.init} : {ty}) attrs = {{{role}}} {{",
            f"  ^bb0({', '.join([*arguments, f'%acc: {target.dtype}'])}):",
            e.text(),
            f"    linalg.yield {value} : {target.dtype}",
            f"}} -> {ty}",
        ]

    # -- all of it

    def text(self) -> str:
        k = self.k
        (store,) = k.stores
        arguments = [(f"load{i}", a) for i, a in enumerate(k.loads)] + [("store", store)]
        for name, access in arguments[:-1]:
            self.operand(name, access)
        view = self.operand("store", store, writable=True)
        for i, n in enumerate(k.nodes):
            if n.op == "load":
                access = k.loads[n.slot]
                self.known[i] = (f"%load{n.slot}_t", access.dtype, _dims(access))
        deepest = max(n.depth for n in k.nodes)
        for level in range(1, deepest + 1):
            for node, first in self.p.cached.items():
                if first == level:
                    self.keep(node)
            for i, n in enumerate(k.nodes):
                if n.op == "reduce" and n.depth == level:
                    self.reduce(i)
        self.generic(Target("out", "store_t", store.dtype, (0, 1)), "store", store.node)
        head = ", ".join(f"%{name}: {self.memref(access)}" for name, access in arguments)
        whole = self.memref(store)
        columns = "" if self.variant.fixed else f"%columns = memref.dim %store, %one : {whole}"
        return "\n".join([
            f"func.func @kernel({head}) {{",
            "%one = arith.constant 1 : index",
            "%zero = arith.constant 0 : index",
            f"%all = memref.dim %store, %zero : {whole}",
            columns,
            _SHARE,
            *self.lines,
            f"bufferization.materialize_in_destination %out in restrict writable %store_v : "
            f"({self.tensor((0, 1), store.dtype)}, {view}) -> ()",
            "return",
            "}",
            _THREADS,
        ])  # fmt: skip

    def keep(self, node: int) -> None:
        """A value that two passes over the row need."""
        name, dtype = f"kept{node}", self.k.nodes[node].dtype
        self.empty(f"{name}_i", (0, 1), dtype)
        self.generic(Target(name, f"{name}_i", dtype, (0, 1)), "keep", node)
        self.known[node] = (f"%{name}", dtype, (0, 1))

    def reduce(self, node: int) -> None:
        n, name = self.k.nodes[node], f"red{node}"
        kind = n.attrs["kind"]
        dtype = "f64" if kind == "sum" and self.variant.wide else n.dtype
        self.empty(f"{name}_e", (0,), dtype)
        ty = self.tensor((0,), dtype)
        self.lines += [
            f"%{name}_s = arith.constant {_IDENTITY[kind]} : {dtype}",
            f"%{name}_i = linalg.fill ins(%{name}_s : {dtype}) outs(%{name}_e : {ty}) -> {ty}",
        ]
        self.generic(Target(name, f"{name}_i", dtype, (0,)), "reduce", n.args[0], kind)
        self.known[node] = (f"%{name}", dtype, (0,))


def _dims(access: Access) -> tuple[int, ...]:
    return tuple(d for d, stride in enumerate(access.strides) if stride)


def _map(dims: Sequence[int]) -> str:
    return f"affine_map<(d0, d1) -> ({', '.join(f'd{d}' for d in dims)})>"


_THREADS = """func.func private @omp_get_thread_num() -> i32
func.func private @omp_get_num_threads() -> i32"""

_SHARE = """%tid32 = func.call @omp_get_thread_num() : () -> i32
%threads32 = func.call @omp_get_num_threads() : () -> i32
%tid = arith.index_cast %tid32 : i32 to index
%threads = arith.index_cast %threads32 : i32 to index
%part = arith.ceildivsi %all, %threads : index
%from = arith.muli %part, %tid : index
%low = arith.minsi %from, %all : index
%to = arith.addi %low, %part : index
%high = arith.minsi %to, %all : index
%rows = arith.subi %high, %low : index"""


# -- schedule

_OP, _LOOP = "!transform.any_op", '!transform.op<"scf.for">'

_AFTER_FUSION = (
    "linalg.tiling_canonicalization",
    "memref.resolve_ranked_shaped_type_result_dims",
    "tensor.fold_tensor_empty",  # else a value that is kept has a buffer of all rows
)
_VECTORS = (
    "vector.cast_away_vector_leading_one_dim",
    "vector.drop_unit_dims_with_shape_cast",
    "vector.lower_masked_transfers",
    "tensor.fold_tensor_subset_ops_into_vector_transfers",
)


def _match(name: str, what: str) -> str:
    return f"%{name} = transform.structured.match {what} in %root : ({_OP}) -> {_OP}"


def _clean(patterns: Sequence[str]) -> list[str]:
    """Simplify the function `%f`, with these patterns too."""
    names = ("canonicalization", *patterns)
    return [
        f"transform.apply_patterns to %f {{ {' '.join(f'transform.apply_patterns.{n}' for n in names)} }} : {_OP}",
        f"transform.apply_cse to %f : {_OP}",
        f"transform.apply_dce to %f : {_OP}",
    ]


def schedule(k: Kernel, p: Plan, variant: Variant) -> str:
    """The schedule of a payload: loops over rows, then along them, without a rest where there is none."""
    reductions = sum(n.op == "reduce" for n in k.nodes)
    lines = [
        _match("last", "attributes{store}"),
        f"%rows:2 = transform.structured.fuse %last tile_sizes [1, 0] : ({_OP}) -> ({_OP}, {_LOOP})",
        _match("f", 'ops{["func.func"]}'),
        *_clean(_AFTER_FUSION),
    ]
    loops, once = [], []
    for role, count in (("reduce", reductions), ("keep", len(p.cached)), ("store", 1)):
        if not count:
            continue
        each = [f"%{role}{i}" for i in range(count)]
        lines.append(_match(role, f"attributes{{{role}}}"))
        types = ", ".join([_OP] * count)
        lines.append(f"{', '.join(each)} = transform.split_handle %{role} : ({_OP}) -> ({types})")
        for x in each:
            loops.append(f"{x}_loop")
            sizes = f"[0, {LANES}] : ({_OP}) ->"
            if role == "reduce":
                lines.append(
                    f"{x}_fill, {x}_part, {x}_merge, {x}_loop = transform.structured.tile_reduction_using_for"
                    f" {x} by tile_sizes = {sizes} ({_OP}, {_OP}, {_OP}, {_LOOP})"
                )
                once += [f"{x}_fill", f"{x}_merge"]
            else:
                tile = "transform.structured.tile_using_for"
                lines.append(f"{x}_tile, {x}_loop = {tile} {x} tile_sizes {sizes} ({_OP}, {_LOOP})")
    if not (variant.fixed and k.sizes[1] % LANES == 0):
        lines += [
            f"{x}_main, {x}_rest = transform.loop.peel {x} : ({_LOOP}) -> ({_OP}, {_OP})"
            for x in loops
        ]
    vectorize = "transform.structured.vectorize"
    lines += [
        _match("generics", 'ops{["linalg.generic"]}'),
        f"{vectorize} %generics vector_sizes [1, {LANES}] : {_OP}",
        *(f"{vectorize} {x} : {_OP}" for x in once),
        *_clean(_VECTORS),
        _match("loops", 'ops{["scf.for"]}'),
        f"transform.apply_licm to %loops : {_OP}",
        f"transform.loop.hoist_loop_invariant_subsets %loops : {_OP}",
        *_clean(_VECTORS),
        "transform.yield",
    ]
    head = f"transform.named_sequence @__transform_main(%root: {_OP}) {{"
    return "\n".join([head, *lines, "}"])


def text_of(k: Kernel, p: Plan, variant: Variant) -> str:
    """The module: payload and schedule.

    Raises:
        ValueError: the kernel isn't one of rows.
    """
    parts = [_Payload(k, p, variant).text(), schedule(k, p, variant)]
    return "\n".join(["module attributes {transform.with_named_sequence} {", *parts, "}"])


# -- lowering

#: the bindings have no approximations of functions: what is not written out calls libm, element by element
LOWERING = (
    "one-shot-bufferize,canonicalize,cse,canonicalize,cse,"
    "func.func(buffer-loop-hoisting,promote-buffers-to-stack),"
    "ownership-based-buffer-deallocation,canonicalize,buffer-deallocation-simplification,"
    "bufferization-lower-deallocations,convert-bufferization-to-memref,convert-linalg-to-loops,"
    "func.func(lower-vector-multi-reduction{lowering-strategy=inner-reduction}),convert-vector-to-scf,"
    "expand-strided-metadata,lower-affine,canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,"
    "convert-math-to-libm,convert-vector-to-llvm,finalize-memref-to-llvm,convert-to-llvm,reconcile-unrealized-casts"
)


def words(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Memrefs of contiguous tensors as arguments of the function: address twice, offset, sizes, strides."""
    found = []
    for t in tensors:
        found += [t.data_ptr(), t.data_ptr(), 0, *t.shape, *t.stride()]
    return found
