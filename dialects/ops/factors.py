"""Sharding rules that depend on shapes or attributes (`gflow.dialects.distribution.sharding` says what a rule is)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..distribution.sharding import Dim, Dims, Factors, FactorsOf
from ..types import FLOATS, TensorType

Types = Sequence[TensorType]
Attrs = dict[str, Any]

#: reductions that ops which only move elements leave as they are
MOVED = ("sum", "max", "min")


def _own(prefix: str, rank: int) -> Dims:
    return tuple((f"{prefix}{d}",) for d in range(rank))


def elementwise(*linear: tuple[int, ...], passes: tuple[str, ...] = ("sum",)) -> FactorsOf:
    """Every dimension is a factor of its own. linear: as of `Factors`."""

    def rule(operands: Types, results: Types, attrs: Attrs) -> Factors:
        dims = _own("d", operands[0].rank)
        return Factors((dims,) * len(operands), (dims,), linear=linear, passes=passes)

    return rule


def division(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Linear in what is divided, but for integers, whose quotients are cut."""
    dims = _own("d", operands[0].rank)
    linear = ((0,),) if operands[0].dtype in FLOATS else ()
    return Factors((dims, dims), (dims,), linear=linear)


def conversion(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Linear where no digits are lost."""
    dims = _own("d", operands[0].rank)
    x, y = operands[0].dtype, results[0].dtype
    wider = x in FLOATS and y in FLOATS and results[0].itemsize > operands[0].itemsize
    return Factors((dims,), (dims,), linear=((0,),) if wider or x == y else ())


def collective(operands: Types, results: Types, attrs: Attrs) -> Factors | None:
    """Along other axes than its own, parts of what ranks add up or send are treated as wholes are."""
    if attrs["kind"] not in ("all_reduce", "broadcast"):
        return None
    dims = _own("d", operands[0].rank)
    token: Dims = ()
    return Factors((dims, *[token] * (len(operands) - 1)), (dims, token), alike=frozenset({1}))


def constant(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Ranks hold what they need of it."""
    return Factors((), (_own("d", results[0].rank),))


def random(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Parts draw numbers of their own."""
    return Factors((((),),), (_own("d", results[0].rank),), draws=0)


def reshape(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Dimensions that are merged or divided are split by their major factor."""
    x, y = operands[0].shape, results[0].shape
    before: list[list[str]] = [[] for _ in x]
    after: list[list[str]] = [[] for _ in y]
    sizes: dict[str, int] = {}
    if operands[0].numel:
        for n, (i, j, size) in enumerate(_common(x, y)):
            name = f"f{n}"
            before[i].append(name)
            after[j].append(name)
            sizes[name] = size
    return Factors(_dims(before), _dims(after), sizes, linear=((0,),), passes=MOVED)


def _dims(names: list[list[str]]) -> tuple[Dims]:
    return (tuple(tuple(n) for n in names),)


def _common(x: Sequence[int], y: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The factors that two shapes have in common, from the major one on: the dimension of each, and the size.

    Ends where the shapes divide in different places: 6x4 and 8x3 have nothing in common.
    """
    i = j = 0
    left = right = 1
    while i < len(x) or j < len(y):
        while left == 1 and i < len(x):
            left, i = x[i], i + 1
        while right == 1 and j < len(y):
            right, j = y[j], j + 1
        if left == right == 1:
            return
        size = min(left, right)
        if max(left, right) % size:
            return
        yield i - 1, j - 1, size
        left, right = left // size, right // size


def transpose(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """The dimensions of the operand, in the order of `permutation`."""
    dims = _own("d", operands[0].rank)
    turned = tuple(dims[p] for p in attrs["permutation"])
    return Factors((dims,), (turned,), linear=((0,),), passes=MOVED)


def broadcast(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """A dimension that is repeated is a factor of the result alone."""
    x, dims = operands[0], attrs["dims"]
    out = _own("d", results[0].rank)
    shape = results[0].shape
    own = tuple(out[d] if size == shape[d] else () for size, d in zip(x.shape, dims))
    return Factors((own,), (out,), linear=((0,),), passes=MOVED)


def slices(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Dimensions that are taken whole."""
    walk = zip(operands[0].shape, attrs["starts"], attrs["limits"], attrs["strides"])
    kept = [lo == 0 and hi == size and step == 1 for size, lo, hi, step in walk]
    dims = tuple(d if keep else () for d, keep in zip(_own("d", len(kept)), kept))
    return Factors((dims,), (dims,), linear=((0,),), passes=MOVED)


def pad(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Dimensions that nothing is added to. The value around a sum is an addend as well."""
    kept = [lo == hi == 0 for lo, hi in zip(attrs["low"], attrs["high"])]
    dims = tuple(d if keep else () for d, keep in zip(_own("d", len(kept)), kept))
    return Factors((dims, ()), (dims,), linear=((0, 1),), passes=MOVED)


def concatenate(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """All dimensions but the one that is joined, which no rank may divide."""
    dims = tuple(
        () if d == attrs["dim"] else name for d, name in enumerate(_own("d", results[0].rank))
    )
    every = tuple(range(len(operands)))
    return Factors((dims,) * len(operands), (dims,), linear=(every,), passes=MOVED)


def reverse(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """All dimensions but those that are turned round, which no rank may divide."""
    dims = tuple(
        () if d in attrs["dims"] else name for d, name in enumerate(_own("d", results[0].rank))
    )
    return Factors((dims,), (dims,), linear=((0,),), passes=MOVED)


def take(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Positions, and the slice at each. With a sharded table a rank looks up its own rows; a sum over ranks combines them."""
    x, index = operands
    d, positions = attrs["dim"], _own("i", index.rank)
    own = _own("d", x.rank)
    table = (*own[:d], ("v",), *own[d + 1 :])
    out = (*own[:d], *positions, *own[d + 1 :])
    return Factors(
        (table, positions), (out,), linear=((0,),), passes=MOVED, masked=_summed(x, "v", 1)
    )


def _summed(x: TensorType, factor: str, index: int) -> dict[str, int]:
    """A look-up that is a sum over ranks: of what can be added."""
    return {} if x.dtype == "i1" else {factor: index}


def gather(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """As `take`, by dimensions that index and x have in full."""
    x, index = operands
    if not x.rank:
        return Factors(((), ()), ((),))
    table: list[Dim] = []
    out: list[Dim] = []
    for d, (size, count) in enumerate(zip(x.shape, index.shape)):
        along = d == attrs["dim"]
        table.append(("v",) if along else (f"d{d}",) if size == count else ())
        out.append(("i",) if along else table[-1])
    return Factors((tuple(table), tuple(out)), (tuple(out),), linear=((0,),), passes=MOVED,
                   masked=_summed(x, "v", 1))  # fmt: skip


def index_add(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Ranks add what falls into their part of x; split positions give sums that begin with x once."""
    x, index, _ = operands
    d, positions = attrs["dim"], _own("i", index.rank)
    own = _own("d", x.rank)
    table = (*own[:d], ("v",), *own[d + 1 :])
    source = (*own[:d], *positions, *own[d + 1 :])
    return Factors((table, positions, source), (table,), linear=((0, 2),),
                   partial={p[0]: (0,) for p in positions}, masked={"v": 1})  # fmt: skip


def index_copy(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """All dimensions but the one that is written along, which no rank may divide."""
    own = _own("d", operands[0].rank)
    dims = tuple(() if d == attrs["dim"] else name for d, name in enumerate(own))
    return Factors((dims, ((),), dims), (dims,), linear=((0, 2),), passes=MOVED)


_COMBINED = {"sum": "sum", "max": "max", "min": "min"}


def reduce(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Sums, maxima and minima of parts are partial; dimensions of other reductions stay whole."""
    (x,), kind = operands, attrs["kind"]
    combined = _COMBINED.get(kind) if x.dtype != "i1" else None
    dims = tuple(
        () if d in attrs["dims"] and combined is None else name
        for d, name in enumerate(_own("d", x.rank))
    )
    out = tuple(name for d, name in enumerate(dims) if d not in attrs["dims"])
    if combined is None:
        return Factors((dims,), (out,))
    reduces = {f"d{d}": combined for d in attrs["dims"]}
    return Factors((dims,), (out,), reduces=reduces, linear=((0,),), passes=(combined,))


def _activation(layout: str, rank: int, channel: Dim) -> Dims:
    spatial: Dims = ((),) * (rank - 2)
    return (("n",), channel, *spatial) if layout == "NC*" else (("n",), *spatial, channel)


def _weight(layout: str, rank: int, out: Dim, own: Dim) -> Dims:
    spatial: Dims = ((),) * (rank - 2)
    return (out, own, *spatial) if layout == "NC*" else (out, *spatial, own)


def _convolution(attrs: Attrs, rank: int) -> tuple[Dims, Dims, Dims, dict[str, int]]:
    """The factors of x, weight and result: samples, channels of both sides; with groups, these, and no channel
    by itself."""
    layout, groups = attrs["layout"], attrs["groups"]
    c: Dim = ("c",) if groups == 1 else ("g", "cg")
    o: Dim = ("o",) if groups == 1 else ("g", "og")
    weight = _weight(layout, rank, o, ("c",) if groups == 1 else ())
    sizes = {} if groups == 1 else {"g": groups}
    return _activation(layout, rank, c), weight, _activation(layout, rank, o), sizes


def convolution(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Samples, channels and groups of `x`, `w` and `y`; spatial dimensions are not divided."""
    x, w, y, sizes = _convolution(attrs, operands[0].rank)
    return Factors((x, w), (y,), sizes, linear=((0,), (1,)))


def convolution_input_grad(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Those of `convolution`, for `dx` of `dy` and `w`."""
    x, w, y, sizes = _convolution(attrs, operands[0].rank)
    return Factors((y, w), (x,), sizes, linear=((0,), (1,)))


def convolution_weight_grad(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Those of `convolution`, for `dw` of `x` and `dy`, which sums over the samples."""
    x, w, y, sizes = _convolution(attrs, operands[0].rank)
    return Factors((x, y), (w,), sizes, linear=((0,), (1,)))


def pooling(*linear: tuple[int, ...]) -> FactorsOf:
    """Samples and channels."""

    def rule(operands: Types, results: Types, attrs: Attrs) -> Factors:
        dims = _activation(attrs["layout"], operands[0].rank, ("c",))
        return Factors((dims,) * len(operands), (dims,) * len(results), linear=linear)

    return rule


def attention(needed: int, extras: Any) -> FactorsOf:
    """Batch and heads, those of k and v with the heads of q that share them; positions of q unless causal or with a
    window, where they are counted from the first. needed: operands before bias and generator; extras: which of these there are."""

    def rule(operands: Types, results: Types, attrs: Attrs) -> Factors:
        grad = needed == 6
        q, k = operands[1:3] if grad else operands[:2]
        heads, shared = q.shape[2], k.shape[2]
        head: Dim = ("h",) if heads == shared else ("h", "r")
        at: Dim = () if attrs["causal"] or attrs["window"] else ("s",)
        query: Dims = (("b",), at, head, ())
        key: Dims = (("b",), (), ("h",), ())
        sums: Dims = (("b",), head, at)
        given: list[Dims] = [query, query, key, key, query, sums] if grad else [query, key, key]
        found = extras(operands, needed)
        full: Dims = (("b",), head, at, ())
        bias: Dims = ()
        for i, ty in enumerate(operands[needed:], needed):
            if i == found.bias:
                sizes = (q.shape[0], heads, q.shape[1], k.shape[1])
                bias = tuple(
                    dim if size == whole else () for dim, size, whole in zip(full, ty.shape, sizes)
                )
                given.append(bias)
            elif found.documents is not None and i >= found.documents:
                given.append((("b",), at if i == found.documents else ()))
            else:
                given.append(((),) * ty.rank)
        out: tuple[Dims, ...] = (query, key, key) if grad else (query, sums)
        if len(results) == 4:
            out = (*out, bias)
        return Factors(tuple(given), out, {"h": shared}, draws=found.rng)

    return rule


def barrier(operands: Types, results: Types, attrs: Attrs) -> Factors:
    """Each result is its operand."""
    dims = tuple(_own(f"v{n}d", ty.rank) for n, ty in enumerate(operands))
    return Factors(dims, dims, follows=True)
