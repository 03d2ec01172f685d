"""A kernel description as an MLIR function over `scf`, `arith`, `vector` and `llvm`.

Four loop structures, by how vectors lie to the reduced dimensions:

    scalar      no loops
    pointwise   outer dimensions (threads) · vectors
    row         outer dimensions (threads) · for each level of reductions a loop over the row · a last one that stores
    column      outer dimensions and tiles of vectors (threads) · reduced dimensions, accumulators in registers

With few outer pieces, threads share the reduced dimensions instead: each leaves partial results in scratch, and after
a barrier they combine them. The tail of a vector loop is one masked vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gflow.dialects.types import FLOATS

from ..kernel import Access, Kernel, Node
from . import philox
from . import scalars as sc
from .emitter import Emitter
from .signature import _BLOCK, Plan, is_plain, stride_class

_STORAGE = {"bf16": "i16", "i1": "i8", "f16": "f16"}
_ALIGN = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "i16": 2, "i8": 1}

#: vectors side by side in a column reduction
_UNROLL = 4


def _storage(dtype: str) -> str:
    return _STORAGE.get(dtype, dtype.removeprefix("u"))


class _Writer:
    """Writes one kernel. `env` maps (node, lanes, unroll position) to an SSA name, in nested scopes."""

    def __init__(self, k: Kernel, p: Plan) -> None:
        self.k, self.p = k, p
        self.e = Emitter()
        self.env: dict[tuple[int, int, int], str] = {}
        self.words = [self.load_word(i, w.kind) for i, w in enumerate(p.words)]
        self.iv: dict[int, str] = {}
        self.mask: str | None = None
        self.position = 0
        self.lanes = p.lanes

    # -- words and addresses

    def load_word(self, i: int, kind: str) -> str:
        e = self.e
        at = e(f"llvm.getelementptr %w[{i}] : (!llvm.ptr) -> !llvm.ptr, i64") if i else "%w"
        ty = (
            "!llvm.ptr"
            if kind in ("load", "store", "scratch")
            else "f64"
            if kind == "float"
            else "i64"
        )
        return e(
            f"llvm.load %w : !llvm.ptr -> {ty}" if not i else f"llvm.load {at} : !llvm.ptr -> {ty}"
        )

    def word(self, *key: object) -> str:
        return self.words[self.p.index[key]]

    def size(self, d: int) -> str:
        return self.word("size", d)

    def i64(self, value: int) -> str:
        return self.e.const(value, "i64")

    def linear(self, name: str, i: int, strides: tuple[int, ...], skip: int = -1) -> str | None:
        """The sum of position times stride over all dimensions but `skip`; None for 0."""
        e, total = self.e, None
        for d, stride in enumerate(strides):
            if not stride or d == skip:
                continue
            term = self.iv[d]
            if stride != 1:
                term = e(f"arith.muli {term}, {self.word(name, i, d)} : i64")
            total = term if total is None else e(f"arith.addi {total}, {term} : i64")
        return total

    def address(self, name: str, i: int, access: Access, skip: int = -1) -> str:
        e = self.e
        pointer = self.word("load" if name == "lstride" else "store", i)
        offset = self.linear(name, i, access.strides, skip)
        storage = _storage(access.dtype)
        if access.offset:
            pointer = e(
                f"llvm.getelementptr {pointer}[{access.offset}] : (!llvm.ptr) -> !llvm.ptr, {storage}"
            )
        if offset is None:
            return pointer
        return e(
            f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {storage}"
        )

    # -- memory

    def decode(self, raw: str, dtype: str, lanes: int) -> str:
        """A value as stored → as held in a register."""
        e = self.e
        if dtype == "i1":
            return e(
                f"arith.cmpi ne, {raw}, {e.const(0, sc.shaped('i8', lanes))} : {sc.shaped('i8', lanes)}"
            )
        if dtype == "bf16":
            i32 = sc.shaped("i32", lanes)
            wide = e(f"arith.extui {raw} : {sc.shaped('i16', lanes)} to {i32}")
            high = e(f"arith.shli {wide}, {e.const(16, i32)} : {i32}")
            return e(f"arith.bitcast {high} : {i32} to {sc.shaped('f32', lanes)}")
        if dtype == "f16":
            return e(f"arith.extf {raw} : {sc.shaped('f16', lanes)} to {sc.shaped('f32', lanes)}")
        return raw

    def encode(self, value: str, dtype: str, lanes: int) -> str:
        """A value as held in a register → as stored."""
        e = self.e
        if dtype == "i1":
            return e(f"arith.extui {value} : {sc.shaped('i1', lanes)} to {sc.shaped('i8', lanes)}")
        if dtype == "bf16":
            bits = sc.bf16_bits(e, value, lanes)
            return e(
                f"arith.trunci {bits} : {sc.shaped('i32', lanes)} to {sc.shaped('i16', lanes)}"
            )
        if dtype == "f16":
            return e(
                f"arith.truncf {value} : {sc.shaped('f32', lanes)} to {sc.shaped('f16', lanes)}"
            )
        return value

    def lane_offsets(self, stride: str) -> str:
        """0, stride, 2·stride, … as i64 lanes."""
        e, n = self.e, self.lanes
        i64 = f"vector<{n}xi64>"
        return e(
            f"arith.muli {e.steps(n, 'i64')}, {e(f'vector.broadcast {stride} : i64 to {i64}')} : {i64}"
        )

    def load(self, i: int, lanes: int) -> str:
        e, access = self.e, self.k.loads[i]
        storage = _storage(access.dtype)
        ty, align = sc.shaped(storage, lanes), _ALIGN[storage]
        at = self.address("lstride", i, access)
        if not lanes:
            return self.decode(
                e(f"llvm.load {at} {{alignment = {align} : i64}} : !llvm.ptr -> {ty}"),
                access.dtype,
                0,
            )
        if access.strides[self.p.vector] == 1:
            if self.mask is None:
                raw = e(f"llvm.load {at} {{alignment = {align} : i64}} : !llvm.ptr -> {ty}")
            else:
                raw = e(
                    f"llvm.intr.masked.load {at}, {self.mask}, {e.const(0, ty)} {{alignment = {align} : i32}} : "
                    f"(!llvm.ptr, vector<{lanes}xi1>, {ty}) -> {ty}"
                )
        else:
            at, mask = (
                self.lane_pointers("lstride", i, at, storage),
                self.mask or e.const(True, f"vector<{lanes}xi1>"),
            )
            raw = e(
                f"llvm.intr.masked.gather {at}, {mask}, {e.const(0, ty)} {{alignment = {align} : i32}} : "
                f"(vector<{lanes}x!llvm.ptr>, vector<{lanes}xi1>, {ty}) -> {ty}"
            )
        return self.decode(raw, access.dtype, lanes)

    def lane_pointers(self, name: str, i: int, at: str, storage: str) -> str:
        offsets = self.lane_offsets(self.word(name, i, self.p.vector))
        n = self.lanes
        return self.e(
            f"llvm.getelementptr {at}[{offsets}] : (!llvm.ptr, vector<{n}xi64>) -> vector<{n}x!llvm.ptr>, {storage}"
        )

    def write(self, stores: Iterable[int], lanes: int) -> None:
        """Write these stores at the current position. All values are computed before the first is written:
        a result may take the place of an operand."""
        stores = list(stores)
        for i in stores:
            self.value(self.k.stores[i].node, lanes)
        for i in stores:
            self.store(i, lanes)

    def store(self, i: int, lanes: int) -> None:
        """Write store `i` at the current position."""
        e, access = self.e, self.k.stores[i]
        storage = _storage(access.dtype)
        align = _ALIGN[storage]
        value = self.encode(self.value(access.node, lanes), access.dtype, lanes)
        at = self.address("sstride", i, access)
        ty = sc.shaped(storage, lanes)
        if not lanes:
            e.line(f"llvm.store {value}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr")
        elif access.strides[self.p.vector] == 1:
            if self.mask is None:
                e.line(f"llvm.store {value}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr")
            else:
                e.line(
                    f"llvm.intr.masked.store {value}, {at}, {self.mask} {{alignment = {align} : i32}} : "
                    f"{ty}, vector<{lanes}xi1> into !llvm.ptr"
                )
        else:
            pointers, mask = (
                self.lane_pointers("sstride", i, at, storage),
                self.mask or e.const(True, f"vector<{lanes}xi1>"),
            )
            e.line(
                f"llvm.intr.masked.scatter {value}, {pointers}, {mask} {{alignment = {align} : i32}} : "
                f"{ty}, vector<{lanes}xi1> into vector<{lanes}x!llvm.ptr>"
            )

    # -- expressions

    def is_vector(self, node: Node) -> bool:
        return self.p.vector in node.dims

    def value(self, i: int, lanes: int) -> str:
        """Node `i` at the current position, as a scalar (lanes 0) or a vector."""
        node = self.k.nodes[i]
        own = lanes if self.is_vector(node) else 0
        name = self.lookup(i, own)
        if name is None:
            name = self.compute(i, node, own)
            self.env[i, own, self.position if own else -1] = name
        if own == lanes:
            return name
        wide = self.lookup(i, lanes, -1)
        if wide is None:
            ty = sc.register_dtype(node.dtype)
            if node.op == "const" and is_plain(node.attrs["value"], node.dtype):
                wide = self.e.const(node.attrs["value"], f"vector<{lanes}x{ty}>")
            else:
                wide = self.e(f"vector.broadcast {name} : {ty} to vector<{lanes}x{ty}>")
            self.env[i, lanes, -1] = wide
        return wide

    def lookup(self, i: int, lanes: int, position: int | None = None) -> str | None:
        if position is None:
            position = self.position if lanes else -1
        return self.env.get((i, lanes, position))

    def compute(self, i: int, node: Node, lanes: int) -> str:
        e = self.e
        match node.op:
            case "load":
                return self.load(node.slot, lanes)
            case "const":
                if not is_plain(node.attrs["value"], node.dtype):
                    return self.constant_word(i, node)
                return e.const(node.attrs["value"], sc.register_type(node.dtype, lanes))
            case "index":
                return self.index(node.slot, lanes)
            case "random":
                args = [self.value(a, lanes if n == 0 else 0) for n, a in enumerate(node.args)]
                return philox.emit(
                    e, node.attrs["kind"], node.attrs["stream"], args, node.dtype, lanes
                )
            case "reduce":
                raise AssertionError("a reduction is computed by its loop")
        args = [self.value(a, lanes) for a in node.args]
        return sc.elementwise(
            e,
            node.op,
            args,
            [self.k.nodes[a].dtype for a in node.args],
            node.dtype,
            node.attrs,
            lanes,
        )

    def constant_word(self, i: int, node: Node) -> str:
        e, raw = self.e, self.word("const", i)
        reg = sc.register_dtype(node.dtype)
        if node.dtype in FLOATS:
            if reg == "f64":
                return raw
            value = e(f"arith.truncf {raw} : f64 to f32")
            return sc.round_half(e, value, node.dtype, 0) if node.dtype in sc.HALVES else value
        return raw if reg == "i64" else e(f"arith.trunci {raw} : i64 to {reg}")

    def index(self, slot: int, lanes: int) -> str:
        e, strides = self.e, self.k.indices[slot]
        base = self.linear("istride", slot, strides) or self.i64(0)
        if not lanes:
            return base
        i64 = f"vector<{lanes}xi64>"
        stride = strides[self.p.vector]
        steps = (
            e.steps(lanes, "i64")
            if stride == 1
            else self.lane_offsets(self.word("istride", slot, self.p.vector))
        )
        return e(f"arith.addi {e(f'vector.broadcast {base} : i64 to {i64}')}, {steps} : {i64}")

    # -- scopes and loops

    def scoped(self, body: Callable[[], None]) -> None:
        """Run `body`; what it computes isn't visible after."""
        saved, iv, mask = dict(self.env), dict(self.iv), self.mask
        with self.e.indented():
            body()
        self.env, self.iv, self.mask = saved, iv, mask

    def loop(
        self,
        low: str,
        high: str,
        step: str,
        inits: list[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """A loop that carries values of the given (initial value, type); returns their last values."""
        e, iv = self.e, self.e.fresh("i")
        if not inits:
            e.line(f"scf.for {iv} = {low} to {high} step {step} : i64 {{")
            self.scoped(lambda: body(iv, []) and None)
            e.line("}")
            return []
        names = [e.fresh("a") for _ in inits]
        result = e.fresh("r")
        args = ", ".join(f"{n} = {init}" for n, (init, _) in zip(names, inits))
        types = ", ".join(ty for _, ty in inits)
        e.line(
            f"{result}:{len(inits)} = scf.for {iv} = {low} to {high} step {step} iter_args({args}) -> ({types}) : i64 {{"
        )

        def inner() -> None:
            e.line(f"scf.yield {', '.join(body(iv, names))} : {types}")

        self.scoped(inner)
        e.line("}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def when(
        self, condition: str, inits: list[tuple[str, str]], body: Callable[[], list[str]]
    ) -> list[str]:
        """`body`'s values if `condition` holds, else the given ones."""
        e = self.e
        if not inits:
            e.line(f"scf.if {condition} {{")
            self.scoped(lambda: body() and None)
            e.line("}")
            return []
        types = ", ".join(ty for _, ty in inits)
        result = e.fresh("r")
        e.line(f"{result}:{len(inits)} = scf.if {condition} -> ({types}) {{")

        def inner() -> None:
            e.line(f"scf.yield {', '.join(body())} : {types}")

        self.scoped(inner)
        e.line("} else {")
        e.line(f"  scf.yield {', '.join(v for v, _ in inits)} : {types}")
        e.line("}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def thread_range(self, total: str, granule: int = 1) -> tuple[str, str]:
        """This thread's share of 0…total, in whole granules."""
        e = self.e
        e.externals.update(("omp_get_thread_num", "omp_get_num_threads"))
        tid = e(f"arith.extsi {e('llvm.call @omp_get_thread_num() : () -> i32')} : i32 to i64")
        count = e(f"arith.extsi {e('llvm.call @omp_get_num_threads() : () -> i32')} : i32 to i64")
        share = e(f"arith.ceildivsi {total}, {count} : i64")
        if granule > 1:
            share = e(
                f"arith.muli {e(f'arith.ceildivsi {share}, {self.i64(granule)} : i64')}, {self.i64(granule)} : i64"
            )
        start = e(f"arith.muli {share}, {tid} : i64")
        low = e(f"arith.minsi {start}, {total} : i64")
        high = e(f"arith.minsi {e(f'arith.addi {start}, {share} : i64')}, {total} : i64")
        return low, high

    def product(self, dims: Iterable[int]) -> str:
        total = None
        for d in dims:
            total = (
                self.size(d)
                if total is None
                else self.e(f"arith.muli {total}, {self.size(d)} : i64")
            )
        return total or self.i64(1)

    def set_position(self, dims: tuple[int, ...], flat: str) -> None:
        """Positions along `dims` from one flat index over them, row-major."""
        e = self.e
        for d in reversed(dims[1:]):
            self.iv[d] = e(f"arith.remui {flat}, {self.size(d)} : i64")
            flat = e(f"arith.divui {flat}, {self.size(d)} : i64")
        if dims:
            self.iv[dims[0]] = flat

    def hoist(self, depth: int, available: set[int]) -> None:
        """Compute here what does not vary in the loops to come."""
        for i, node in enumerate(self.k.nodes):
            ready = (
                node.depth <= depth
                and node.op not in ("const", "reduce")
                and node.dims <= available
            )
            if ready and not self.is_vector(node):
                self.value(i, 0)

    def vectors(
        self,
        low: str,
        high: str,
        inits: list[tuple[str, str]],
        body: Callable[[list[str]], list[str]],
    ) -> list[str]:
        """Whole vectors from low to high, then one masked vector for the rest. `low` is where a vector may start."""
        e, n = self.e, self.i64(self.lanes)
        span = e(f"arith.subi {high}, {low} : i64")
        rest = e(f"arith.remsi {span}, {n} : i64")
        whole = e(f"arith.subi {high}, {rest} : i64")

        def full(iv: str, carried: list[str]) -> list[str]:
            self.iv[self.p.vector] = iv
            return body(carried)

        carried = self.loop(low, whole, n, inits, full)

        def tail() -> list[str]:
            self.iv[self.p.vector] = whole
            self.set_mask(rest)
            return body(carried or [])

        more = e(f"arith.cmpi sgt, {rest}, {self.i64(0)} : i64")
        return self.when(more, [(c, ty) for c, (_, ty) in zip(carried, inits)], tail)

    def set_mask(self, count: str) -> None:
        """Only the first `count` lanes are real."""
        e, n = self.e, self.lanes
        small = e(f"arith.trunci {count} : i64 to i32")
        wide = e(f"vector.broadcast {small} : i32 to vector<{n}xi32>")
        self.mask = e(f"arith.cmpi slt, {e.steps(n, 'i32')}, {wide} : vector<{n}xi32>")

    # -- stores by kind

    def spanning(self) -> list[int]:
        """Stores over the whole index space, reduced dimensions included."""
        return [i for i, s in enumerate(self.k.stores) if any(s.strides[d] for d in self.k.reduced)]

    def kept(self) -> list[int]:
        spanning = set(self.spanning())
        return [i for i in range(len(self.k.stores)) if i not in spanning]

    def reductions(self, depth: int | None = None) -> list[int]:
        return [
            i for i, n in enumerate(self.k.nodes) if n.op == "reduce" and depth in (None, n.depth)
        ]

    # -- the four structures

    def scalar(self) -> None:
        self.write(range(len(self.k.stores)), 0)

    def pointwise(self) -> None:
        p = self.p
        self.hoist(0, set())

        def piece(low: str, high: str) -> None:
            self.hoist(0, set(p.outer))
            self.vectors(
                low,
                high,
                [],
                lambda _: self.write(range(len(self.k.stores)), self.lanes) or [],
            )

        if p.split:
            low, high = self.thread_range(self.size(p.vector), 64)
            self.outer_loop(self.i64(0), self.product(p.outer), lambda: piece(low, high))
        elif p.outer:
            low, high = self.thread_range(self.product(p.outer))
            self.outer_loop(low, high, lambda: piece(self.i64(0), self.size(p.vector)))
        else:
            piece(*self.thread_range(self.size(p.vector), 64))

    def outer_loop(self, low: str, high: str, body: Callable[[], None]) -> None:
        """One pass of `body` for each position of the outer dimensions from low to high."""
        if not self.p.outer:
            body()
            return

        def step(flat: str, _: list[str]) -> list[str]:
            self.set_position(self.p.outer, flat)
            body()
            return []

        self.loop(low, high, self.i64(1), [], step)

    def accumulate(self, reds: list[int], lanes: int) -> list[tuple[str, str]]:
        """Start values and types of the accumulators of `reds`."""
        out = []
        for r in reds:
            node = self.k.nodes[r]
            out.append(
                (
                    sc.identity(self.e, node.attrs["kind"], node.dtype, lanes),
                    sc.register_type(node.dtype, lanes),
                )
            )
        return out

    def fold(self, reds: list[int], carried: list[str], lanes: int) -> list[str]:
        """The accumulators with the values of the current position added."""
        out = []
        for r, acc in zip(reds, carried):
            node = self.k.nodes[r]
            value = self.value(node.args[0], lanes)
            if self.mask is not None and self.p.mode == "row":
                neutral = sc.identity(self.e, node.attrs["kind"], node.dtype, lanes)
                value = sc.select(
                    self.e, self.mask, value, neutral, sc.register_type(node.dtype, lanes), lanes
                )
            out.append(sc.combine(self.e, node.attrs["kind"], acc, value, node.dtype, lanes))
        return out

    def merge(self, reds: list[int], a: list[str], b: list[str], lanes: int) -> list[str]:
        nodes = [self.k.nodes[r] for r in reds]
        return [
            sc.combine(self.e, n.attrs["kind"], x, y, n.dtype, lanes)
            for n, x, y in zip(nodes, a, b)
        ]

    def blocks(self, low: str, high: str, length: int, reds: list[int], lanes: int, width: int,
               body: Callable[[str, str, list[tuple[str, str]]], list[str]]) -> list[str]:  # fmt: skip
        """Accumulate over low…high; with `blocked`, in blocks whose partial results are added up after."""
        inits = [x for x in self.accumulate(reds, lanes) for _ in range(width)]
        if not self.p.blocked:
            return body(low, high, inits)
        e = self.e
        every = [r for r in reds for _ in range(width)]

        def block(start: str, carried: list[str]) -> list[str]:
            end = e(
                f"arith.minsi {e(f'arith.addi {start}, {self.i64(length)} : i64')}, {high} : i64"
            )
            return self.merge(every, carried, body(start, end, inits), lanes)

        return self.loop(low, high, self.i64(length), inits, block)

    def row_reduce(
        self, reds: list[int], bounds: tuple[str, str] | None, spanning: list[int]
    ) -> list[str]:
        """All reductions `reds` (of one level) over the row, as scalars. `bounds` limits the first reduced loop."""
        lanes, dims = self.lanes, self.p.reduced
        zero = self.i64(0)

        def vector_step(carried: list[str]) -> list[str]:
            out = self.fold(reds, carried, lanes)
            self.write(spanning, lanes)
            return out

        def nest(level: int, inits: list[tuple[str, str]]) -> list[str]:
            if level == len(dims):
                low, high = bounds if bounds and not dims else (zero, self.size(self.p.vector))
                if level:
                    return self.vectors(low, high, inits, vector_step)
                return self.blocks(
                    low,
                    high,
                    _BLOCK * lanes,
                    reds,
                    lanes,
                    1,
                    lambda a, b, c: self.vectors(a, b, c, vector_step),
                )
            low, high = bounds if bounds and level == 0 else (zero, self.size(dims[level]))
            types = [ty for _, ty in inits]

            def step(iv: str, carried: list[str]) -> list[str]:
                self.iv[dims[level]] = iv
                return nest(level + 1, list(zip(carried, types)))

            return self.loop(low, high, self.i64(1), inits, step)

        vectors = nest(0, self.accumulate(reds, lanes))
        out = []
        for r, v in zip(reds, vectors):
            node = self.k.nodes[r]
            out.append(sc.horizontal(self.e, node.attrs["kind"], v, node.dtype, lanes))
        return out

    def finish(self, reds: list[int], values: list[str], lanes: int) -> None:
        """Make finished reductions visible as node values."""
        for r, value in zip(reds, values):
            node = self.k.nodes[r]
            if node.dtype in sc.HALVES:
                value = sc.round_half(self.e, value, node.dtype, lanes)
            self.env[r, lanes, self.position if lanes else -1] = value

    def row(self) -> None:
        p, kept, spanning = self.p, self.kept(), self.spanning()
        self.hoist(0, set())
        if p.split:
            self.split_row(kept, spanning)
            return
        depth = max(self.k.nodes[r].depth for r in self.reductions())
        early = [s for s in spanning if self.k.nodes[self.k.stores[s].node].depth < depth]
        late = [s for s in spanning if s not in early]

        def piece() -> None:
            available = set(p.outer)
            self.hoist(0, available)
            for level in range(1, depth + 1):
                stores = [
                    s for s in early if self.k.nodes[self.k.stores[s].node].depth == level - 1
                ]
                reds = self.reductions(level)
                self.finish(reds, self.row_reduce(reds, None, stores), 0)
                self.hoist(level, available)
            self.write(kept, 0)
            if late:
                self.row_sweep(late)

        low, high = self.thread_range(self.product(p.outer))
        if p.outer:
            self.outer_loop(low, high, piece)
        else:  # a single row: the first thread's
            self.loop(low, high, self.i64(1), [], lambda _iv, _c: piece() or [])

    def row_sweep(self, stores: list[int]) -> None:
        """A last loop over the row that writes what spans it."""

        def nest(level: int) -> None:
            if level == len(self.p.reduced):
                self.vectors(
                    self.i64(0),
                    self.size(self.p.vector),
                    [],
                    lambda _: self.write(stores, self.lanes) or [],
                )
                return
            d = self.p.reduced[level]

            def step(iv: str, _: list[str]) -> list[str]:
                self.iv[d] = iv
                nest(level + 1)
                return []

            self.loop(self.i64(0), self.size(d), self.i64(1), [], step)

        nest(0)

    def scratch(self, slot: str, dtype: str) -> str:
        """The address of a 64-bit scratch cell."""
        return self.e(
            f"llvm.getelementptr {self.word('scratch')}[{slot}] : (!llvm.ptr, i64) -> !llvm.ptr, i64"
        )

    def barrier(self) -> None:
        self.e.externals.add("GOMP_barrier")
        self.e.line("llvm.call @GOMP_barrier() : () -> ()")

    def thread_id(self, which: str) -> str:
        e = self.e
        e.externals.add(f"omp_get_{which}")
        return e(f"arith.extsi {e(f'llvm.call @omp_get_{which}() : () -> i32')} : i32 to i64")

    def split_row(self, kept: list[int], spanning: list[int]) -> None:
        e, p, reds = self.e, self.p, self.reductions()
        first = p.reduced[0] if p.reduced else p.vector
        low, high = self.thread_range(self.size(first), 1 if p.reduced else 64)
        tid, total = self.thread_id("thread_num"), self.product(p.outer)
        one, n = self.i64(1), len(reds)

        def partial(flat: str, _: list[str]) -> list[str]:
            self.set_position(p.outer, flat)
            self.hoist(0, set(p.outer))
            values = self.row_reduce(reds, (low, high), spanning)
            for m, (r, v) in enumerate(zip(reds, values)):
                row = e(
                    f"arith.addi {e(f'arith.muli {tid}, {self.i64(n)} : i64')}, {self.i64(m)} : i64"
                )
                slot = e(f"arith.addi {e(f'arith.muli {row}, {total} : i64')}, {flat} : i64")
                ty = sc.register_type(self.k.nodes[r].dtype, 0)
                e.line(f"llvm.store {v}, {self.scratch(slot, ty)} : {ty}, !llvm.ptr")
            return []

        self.loop(self.i64(0), total, one, [], partial)
        self.barrier()
        threads = self.thread_id("num_threads")
        low2, high2 = self.thread_range(total)

        def combine(flat: str, _: list[str]) -> list[str]:
            self.set_position(p.outer, flat)
            inits = self.accumulate(reds, 0)

            def add(t: str, carried: list[str]) -> list[str]:
                values = []
                for m, r in enumerate(reds):
                    row = e(
                        f"arith.addi {e(f'arith.muli {t}, {self.i64(n)} : i64')}, {self.i64(m)} : i64"
                    )
                    slot = e(f"arith.addi {e(f'arith.muli {row}, {total} : i64')}, {flat} : i64")
                    ty = sc.register_type(self.k.nodes[r].dtype, 0)
                    values.append(e(f"llvm.load {self.scratch(slot, ty)} : !llvm.ptr -> {ty}"))
                return self.merge(reds, carried, values, 0)

            self.finish(reds, self.loop(self.i64(0), threads, one, inits, add), 0)
            self.write(kept, 0)
            return []

        self.loop(low2, high2, one, [], combine)

    def column_reduce(
        self,
        reds: list[int],
        start: str,
        unroll: int,
        bounds: tuple[str, str] | None,
        spanning: list[int],
    ) -> list[str]:
        """Reductions of `unroll` vectors from position `start`; reduction-major list of vectors."""
        e, p, lanes = self.e, self.p, self.lanes
        dims, zero = p.reduced, self.i64(0)
        starts = [start] + [
            e(f"arith.addi {start}, {self.i64(u * lanes)} : i64") for u in range(1, unroll)
        ]

        def point(carried: list[str]) -> list[str]:
            out: list[list[str]] = []
            for u in range(unroll):
                self.position, self.iv[p.vector] = u, starts[u]
                out.append(self.fold(reds, carried[u::unroll], lanes))
                self.write(spanning, lanes)
            self.position = 0
            return [out[u][m] for m in range(len(reds)) for u in range(unroll)]

        def nest(level: int, low: str, high: str, inits: list[tuple[str, str]]) -> list[str]:
            types = [ty for _, ty in inits]

            def step(iv: str, carried: list[str]) -> list[str]:
                self.iv[dims[level]] = iv
                if level + 1 == len(dims):
                    return point(carried)
                return nest(level + 1, zero, self.size(dims[level + 1]), list(zip(carried, types)))

            return self.loop(low, high, self.i64(1), inits, step)

        low, high = bounds or (zero, self.size(dims[0]))
        return self.blocks(low, high, _BLOCK, reds, lanes, unroll, lambda a, b, c: nest(0, a, b, c))

    def column_tile(self, tile: str, body: Callable[[str, int], None]) -> None:
        """Cover the vector dimension from `tile` on, for one tile's length: unrolled if it is whole, else masked."""
        e, p, lanes = self.e, self.p, self.lanes
        size = self.size(p.vector)
        length = self.i64(_UNROLL * lanes)
        end = e(f"arith.minsi {e(f'arith.addi {tile}, {length} : i64')}, {size} : i64")
        span = e(f"arith.subi {end}, {tile} : i64")

        def masked(iv: str, _: list[str]) -> list[str]:
            self.set_mask(e(f"arith.subi {size}, {iv} : i64"))
            body(iv, 1)
            return []

        if self.narrow:
            self.loop(tile, end, self.i64(lanes), [], masked)
            return
        whole = e(f"arith.cmpi eq, {span}, {length} : i64")
        self.when(whole, [], lambda: body(tile, _UNROLL) or [])
        start = e(f"arith.select {whole}, {end}, {tile} : i64")
        self.loop(start, end, self.i64(lanes), [], masked)

    @property
    def narrow(self) -> bool:
        return self.k.sizes[self.p.vector] < _UNROLL * self.lanes

    def column(self) -> None:
        p, kept, spanning, reds = self.p, self.kept(), self.spanning(), self.reductions()
        e, lanes = self.e, self.lanes
        self.hoist(0, set())
        if p.split:
            self.split_column(kept, spanning, reds)
            return
        tile_length = self.i64(_UNROLL * lanes)
        tiles = e(f"arith.ceildivsi {self.size(p.vector)}, {tile_length} : i64")
        low, high = self.thread_range(e(f"arith.muli {self.product(p.outer)}, {tiles} : i64"))

        def work(flat: str, _: list[str]) -> list[str]:
            tile = e(f"arith.muli {e(f'arith.remui {flat}, {tiles} : i64')}, {tile_length} : i64")
            self.set_position(p.outer, e(f"arith.divui {flat}, {tiles} : i64"))
            self.hoist(0, set(p.outer))

            def body(start: str, unroll: int) -> None:
                values = self.column_reduce(reds, start, unroll, None, spanning)
                self.store_kept(kept, reds, values, start, unroll)

            self.column_tile(tile, body)
            return []

        self.loop(low, high, self.i64(1), [], work)

    def store_kept(
        self, kept: list[int], reds: list[int], values: list[str], start: str, unroll: int
    ) -> None:
        """What follows the reductions, for each of the unrolled vectors."""
        for u in range(unroll):
            self.position = u
            self.iv[self.p.vector] = (
                start if u == 0 else self.e(f"arith.addi {start}, {self.i64(u * self.lanes)} : i64")
            )
            self.finish(reds, values[u::unroll], self.lanes)
            self.write(kept, self.lanes)
        self.position = 0

    def split_column(self, kept: list[int], spanning: list[int], reds: list[int]) -> None:
        e, p, lanes, n = self.e, self.p, self.lanes, len(reds)
        size, one = self.size(p.vector), self.i64(1)
        outer = self.product(p.outer)
        width = e(f"arith.muli {outer}, {size} : i64")
        low, high = self.thread_range(self.size(p.reduced[0]))
        tid = self.thread_id("thread_num")

        def cell(thread: str, m: int, flat: str, start: str) -> str:
            row = e(
                f"arith.addi {e(f'arith.muli {thread}, {self.i64(n)} : i64')}, {self.i64(m)} : i64"
            )
            base = e(
                f"arith.addi {e(f'arith.muli {row}, {width} : i64')}, {e(f'arith.muli {flat}, {size} : i64')} : i64"
            )
            slot = e(f"arith.addi {base}, {start} : i64")
            # cells are as wide as the register type; 8 bytes are set aside for each
            ty = sc.register_dtype(self.k.nodes[reds[m]].dtype)
            return e(
                f"llvm.getelementptr {self.word('scratch')}[{slot}] : (!llvm.ptr, i64) -> !llvm.ptr, {self.cell_type(ty)}"
            )

        def partial(flat: str, _: list[str]) -> list[str]:
            self.set_position(p.outer, flat)
            self.hoist(0, set(p.outer))

            def body(start: str, unroll: int) -> None:
                values = self.column_reduce(reds, start, unroll, (low, high), spanning)
                for m, r in enumerate(reds):
                    for u in range(unroll):
                        at = e(f"arith.addi {start}, {self.i64(u * lanes)} : i64")
                        self.put(cell(tid, m, flat, at), values[m * unroll + u], r)

            tile = self.i64(_UNROLL * lanes)
            self.loop(self.i64(0), size, tile, [], lambda iv, _c: self.column_tile(iv, body) or [])
            return []

        self.loop(self.i64(0), outer, one, [], partial)
        self.barrier()
        threads = self.thread_id("num_threads")
        low2, high2 = self.thread_range(size, lanes)

        def combine(flat: str, _: list[str]) -> list[str]:
            self.set_position(p.outer, flat)
            self.hoist(0, set(p.outer))

            def tile(iv: str, _c: list[str]) -> list[str]:
                self.set_mask(e(f"arith.subi {size}, {iv} : i64"))

                def add(t: str, carried: list[str]) -> list[str]:
                    return self.merge(
                        reds,
                        carried,
                        [self.get(cell(t, m, flat, iv), r) for m, r in enumerate(reds)],
                        lanes,
                    )

                values = self.loop(self.i64(0), threads, one, self.accumulate(reds, lanes), add)
                self.store_kept(kept, reds, values, iv, 1)
                return []

            self.loop(low2, high2, self.i64(lanes), [], tile)
            return []

        self.loop(self.i64(0), outer, one, [], combine)

    def cell_type(self, reg: str) -> str:
        """All scratch cells of a kernel have one width, that of the widest accumulator."""
        kinds = {sc.register_dtype(self.k.nodes[r].dtype) for r in self.reductions()}
        return "i64" if kinds & {"f64", "i64"} else "i32"

    def put(self, at: str, value: str, r: int) -> None:
        """A vector of partial results into scratch cells."""
        e, lanes, reg = self.e, self.lanes, sc.register_dtype(self.k.nodes[r].dtype)
        cell = self.cell_type(reg)
        bits = self.to_cell(value, reg, cell)
        ty = f"vector<{lanes}x{cell}>"
        if self.mask is None:
            e.line(f"llvm.store {bits}, {at} {{alignment = 4 : i64}} : {ty}, !llvm.ptr")
        else:
            e.line(
                f"llvm.intr.masked.store {bits}, {at}, {self.mask} {{alignment = 4 : i32}} : {ty}, vector<{lanes}xi1> into !llvm.ptr"
            )

    def to_cell(self, value: str, reg: str, cell: str) -> str:
        e, lanes = self.e, self.lanes
        width = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}[reg]
        integer = f"vector<{lanes}xi{width}>"
        if reg.startswith("f"):
            value = e(f"arith.bitcast {value} : vector<{lanes}x{reg}> to {integer}")
        if width == int(cell[1:]):
            return value
        return e(f"arith.extui {value} : {integer} to vector<{lanes}x{cell}>")

    def get(self, at: str, r: int) -> str:
        e, lanes, reg = self.e, self.lanes, sc.register_dtype(self.k.nodes[r].dtype)
        cell = self.cell_type(reg)
        ty = f"vector<{lanes}x{cell}>"
        bits = e(
            f"llvm.intr.masked.load {at}, {self.mask}, {e.const(0, ty)} {{alignment = 4 : i32}} : "
            f"(!llvm.ptr, vector<{lanes}xi1>, {ty}) -> {ty}"
        )
        width = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}[reg]
        if width != int(cell[1:]):
            bits = e(f"arith.trunci {bits} : {ty} to vector<{lanes}xi{width}>")
        if reg.startswith("f"):
            bits = e(f"arith.bitcast {bits} : vector<{lanes}xi{width}> to vector<{lanes}x{reg}>")
        return bits


def render(k: Kernel, p: Plan, name: str) -> tuple[str, set[str]]:
    """The function `name` as MLIR text, and the external functions that it calls."""
    w = _Writer(k, p)
    getattr(w, p.mode)()
    return (
        f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{w.e.text()}\n    llvm.return\n  }}",
        w.e.externals,
    )


__all__ = ["render", "stride_class"]
