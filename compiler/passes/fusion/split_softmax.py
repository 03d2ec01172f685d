"""Softmax over long rows of a matrix product, and products with its gradient, without passes over whole rows.

Before: scores, whose cross-entropy has the gradient `%g` (with `%lse` and `%n` from the loss, `%t` the targets):

    %x = "gflow.matmul"(%h, %w) : (tensor<8192x768xbf16>, tensor<768x50257xbf16>) -> tensor<8192x50257xbf16>
    %0 = "gflow.convert"(%x) {dtype = "f32"} : …
    %m = "gflow.reduce"(%0) {dims = array<i64: 1>, kind = "max"} : (tensor<8192x50257xf32>) -> tensor<8192xf32>
    …
    %g = … one-hot(%t) * %n - exp(%0 - %lse) * %n, rounded to bf16
    %d = "gflow.matmul"(%g, %v) : (tensor<8192x50257xbf16>, tensor<50257x768xbf16>) -> tensor<8192x768xbf16>

After:

    %p, %m, %s, %xt = "gflow.fused"(%h, %w, %t) ({
      %0 = "gflow.matmul"(…) …
      %1 = "gflow.convert"(%0) {dtype = "f32"} : …
      %2:4 = "gflow.softmax_runs"(%1, …) {run = 128 : i64} : (tensor<8192x50257xf32>, tensor<8192xi64>)
          -> (tensor<8192x50257xf32>, tensor<393x8192xf32>, tensor<393x8192xf32>, tensor<8192xf32>)
      %3 = "gflow.convert"(%2#0) {dtype = "bf16"} : …
      "gflow.yield"(…)
    }) {kind = "contraction"} : …
    … the loss, and the scale %c : tensor<393x8192xf32> of each run, from %m, %s and %xt
    %q = "gflow.put"(%p, %t, %e) : (tensor<8192x50257xbf16>, tensor<8192xi64>, tensor<8192xbf16>) -> …
    %d = "gflow.scaled_matmul"(%q, %v, %c) {along = "columns", run = 128 : i64} : …

The product stores exponentials relative to the maximum of 128 columns. The gradient at a column is its exponential
times a number of the row and run, with which products multiply blocks that they have loaded; only at the target it is
another number, which `put` writes (divided by that scale). A step with a linear layer and its cross-entropy so writes
scores once and reads them twice, where a softmax kernel also reads them and writes the gradient. Scores are not rounded
to half precision before their exponentials.

The pass evaluates the ops between scores and gradient (`softmax_forms.py`): any in which the gradient is an exponential
of the score times a number of the row, except at one column of the row, and in which reductions of rows are maxima of
scores, sums of exponentials, and sums of one-hot rows. Others remain as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.compiler.ir.ssa import Body, Op, clone_into, read_live_body
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..base import Pass
from .softmax_forms import Scores, scores_of

#: the columns of a run
_RUN = 128
#: the exponent of two of the least scale, relative to the gradient at the target: their quotient is finite in bfloat16,
#: and a gradient that is rounded up to it is far below the precision of sums that contain that at the target
_LEAST = 2.0**-96


@record
class SplitSoftmaxOptions:
    """Options of gflow-split-softmax."""

    least_columns: int = field(default=2048, metadata={"doc": "the fewest columns of the scores"})
    least_bytes: int = field(
        default=32 << 20,
        metadata={"doc": "the fewest bytes of the scores; smaller ones stay in the L2 cache"},
    )


@dataclass
class _Match:
    """A softmax that can be split.

    Attributes:
        scores: the values over the scores.
        root: the product.
        chain: the ops from its result to the scores.
        reductions: of rows, in order.
        gradient: the op that rounds the gradient to half precision.
        products: those that read the gradient, each with what its runs cut: "columns", or "rows" of its transpose.
    """

    scores: Scores
    root: Op
    chain: list[Op]
    reductions: list[Op]
    gradient: Op
    products: list[tuple[Op, str]]


def run(function: func.FuncOp, options: SplitSoftmaxOptions) -> None:
    """Split the softmaxes of the function, in place."""
    body = read_live_body(function)
    for o in body.ops:
        if o.name == "reduce" and read(OPS["reduce"], o.op.attributes)["kind"] == "max":
            found = _match(body, o.operands[0], options)
            if found is not None:
                _Split(found).rewrite()
                return run(function, options)
    return None


def _match(body: Body, x: int, options: SplitSoftmaxOptions) -> _Match | None:
    ty = body.types[x]
    if ty.rank != 2 or ty.dtype != "f32" or 1 in ty.shape or ty.shape[1] < options.least_columns:
        return None
    if ty.numel * 2 < options.least_bytes:
        return None
    made = _producers(body, x)
    scores = None if made is None else scores_of(body, x)
    if made is None or scores is None:
        return None
    forms = [scores.form(v) for v in scores.computed]
    rounded = [v for v in scores.computed if body.types[v].dtype == "bf16"]
    if (
        len(rounded) != 1
        or scores.target < 0
        or any(body.types[v].dtype == "f16" for v in scores.computed)
    ):
        return None
    (g,) = rounded
    gradient = body.ops[body.producer[g]]
    products = _products(body, g)
    reductions = sorted(
        {i for v in scores.computed for i in body.users[v] if body.ops[i].name == "reduce"}
    )
    known = all(_reduces(scores, body.ops[i]) for i in reductions)
    form = forms[scores.computed.index(g)]
    if (
        gradient.name != "convert"
        or form.kind != "exp"
        or not form.aimed
        or not products
        or not known
    ):
        return None
    return _Match(scores, *made, [body.ops[i] for i in reductions], gradient, products)


def _producers(body: Body, x: int) -> tuple[Op, list[Op]] | None:
    """The product of bfloat16 operands whose result scores are computed from, elementwise, and the ops in between."""
    chain: dict[int, Op] = {}
    roots: set[int] = set()
    stack = [x]
    while stack:
        p = body.producer[stack.pop()]
        if p < 0:
            continue
        o = body.ops[p]
        if o.name == "matmul":
            roots.add(p)
        elif OPS[o.name].category == "elementwise" and p not in chain:
            chain[p] = o
            stack += [v for v in o.operands if body.types[v].shape == body.types[x].shape]
    if len(roots) != 1:
        return None
    root = body.ops[roots.pop()]
    inner = {*chain, root.index}
    values = [r for o in (root, *chain.values()) for r in o.results if r != x]
    alone = all(set(body.users[v]) <= inner and v not in body.returned for v in values)
    if not alone or body.types[root.results[0]] != TensorType(body.types[x].shape, "bf16"):
        return None
    return root, [chain[i] for i in sorted(chain)]


def _products(body: Body, g: int) -> list[tuple[Op, str]]:
    """The products that read the gradient as their first operand; none if it has other readers."""
    found: list[tuple[Op, str]] = []
    for v, along in ((g, "columns"), *((t, "rows") for t in _transposes(body, g))):
        if v in body.returned:
            return []
        for i in body.users[v]:
            o = body.ops[i]
            if o.name == "matmul" and o.operands[0] == v and o.operands[1] != v:
                found.append((o, along))
            elif not (v == g and o.name == "transpose"):
                return []
    return found


def _transposes(body: Body, g: int) -> list[int]:
    ops = [body.ops[i] for i in dict.fromkeys(body.users[g])]
    return [o.results[0] for o in ops if o.name == "transpose"]


def _reduces(scores: Scores, o: Op) -> bool:
    """Whether a reduction of rows follows from the maxima and sums of runs, and from the score at the target."""
    form, kind = scores.form(o.operands[0]), read(OPS["reduce"], o.op.attributes)["kind"]
    if kind == "max":
        return form.kind == "x" and not form.aimed
    if kind != "sum":
        return False
    return (form.kind == "exp" and not form.aimed) or (form.kind == "flat" and form.zero)


class _Space:
    """Clones of values over the scores for other scores: one for each run, or for each row.

    shape: of the clones. x: what stands for the scores. aimed: whether they are those of the targets.
    """

    def __init__(self, scores: Scores, shape: tuple[int, ...], x: ir.Value, aimed: bool) -> None:
        self.scores, self.shape, self.aimed = scores, shape, aimed
        self.made = {scores.x: x}

    def __call__(self, value: int) -> ir.Value:
        """The clone of a value, built at the current insertion point."""
        found = self.made.get(value)
        if found is None:
            found = self.made[value] = self._clone(value)
        return found

    def _clone(self, value: int) -> ir.Value:
        body, form = self.scores.body, self.scores.form(value)
        o, dtype = body.ops[body.producer[value]], body.types[value].dtype
        if form.zero and not (form.aimed and self.aimed):
            return builder.splat(0, TensorType(self.shape, dtype))
        if o.name == "constant":
            elements = o.op.attributes["value"]
            ty = TensorType(self.shape, dtype).mlir()
            splat = ir.DenseElementsAttr.get_splat(ty, elements.get_splat_value())
            return builder.build("constant", [], {"value": splat})
        if o.name == "iota":  # of rows
            dim = len(self.shape) - 1
            return builder.build("iota", [], {"shape": self.shape, "dim": dim, "dtype": dtype})
        if o.name == "broadcast":
            return self.spread(o.op.operands[0])  # reductions may have been replaced
        if o.name == "compare" and "iota" in [self.scores.form(v).kind for v in o.operands]:
            return builder.splat(True, TensorType(self.shape, dtype))  # at the targets
        attrs = read(OPS[o.name], o.op.attributes)
        return builder.build(o.name, [self(v) for v in o.operands], attrs)

    def spread(self, x: ir.Value) -> ir.Value:
        """A number, or a number of each row, for each of the scores."""
        shape = builder.type_of(x).shape
        if shape == self.shape:
            return x
        return builder.broadcast(x, self.shape, (len(self.shape) - 1,) if shape else ())


class _Split:
    """The rewrite of one softmax."""

    def __init__(self, match: _Match) -> None:
        self.match, self.body = match, match.scores.body
        self.rows, self.columns = match.scores.shape
        self.runs = -(-self.columns // _RUN)
        #: the exponentials, and the maxima and sums of runs, and the scores at the targets
        self.parts: list[ir.Value] = []

    def rewrite(self) -> None:
        """Replace the reductions, the gradient and the products that read it."""
        match, body = self.match, self.body
        first = body.ops[min(o.index for o in match.reductions)].op
        with ir.InsertionPoint(first), match.root.op.location:
            self._hoist(body.values[match.scores.target], first)
            self.parts = self._product()
        _, maxima, _, picked = self.parts
        tiles = _Space(match.scores, (self.runs, self.rows), maxima, aimed=False)
        target = _Space(match.scores, (self.rows,), picked, aimed=True)
        for o in match.reductions:
            with ir.InsertionPoint(o.op), o.op.location:
                o.op.results[0].replace_all_uses_with(self._reduced(o, tiles, target))
        with ir.InsertionPoint(match.gradient.op), match.gradient.op.location:
            scale, exponentials = self._gradient(tiles, target)
        for o, along in match.products:
            with ir.InsertionPoint(o.op), o.op.location:
                a = exponentials if along == "columns" else builder.transpose(exponentials, (1, 0))
                attrs = {"run": _RUN, "along": along}
                made = builder.build("scaled_matmul", [a, o.op.operands[1], scale], attrs)
            o.op.results[0].replace_all_uses_with(made)
        self._erase()

    def _hoist(self, value: ir.Value, before: ir.Operation) -> None:
        """Move the ops that a value depends on before an op, where they are behind it."""
        if isinstance(value.owner, ir.Block):
            return
        op = value.owner.operation
        if before.is_before_in_block(op):
            for v in op.operands:
                self._hoist(v, before)
            op.move_before(before)

    def _product(self) -> list[ir.Value]:
        """The product with the exponentials, maxima and sums of runs in its epilogue, and the scores at the targets."""
        match, body = self.match, self.body
        inner = {r for o in (match.root, *match.chain) for r in o.results}
        target = body.values[match.scores.target]
        small = {v for o in match.chain for v in o.operands if v not in inner}
        free = {
            v: body.ops[p] for v in small if (p := body.producer[v]) >= 0 and _is_free(body.ops[p])
        }
        wanted = [*match.root.operands, *(v for v in small if v not in free)]
        wanted += [v for o in free.values() for v in o.operands]
        given = sorted(
            dict.fromkeys([*(body.values[v] for v in wanted), target]), key=lambda v: str(v.type)
        )
        of_runs = TensorType((self.runs, self.rows), "f32")
        types = [TensorType((self.rows, self.columns), "bf16"), of_runs, of_runs]
        types.append(TensorType((self.rows,), "f32"))
        order = sorted(range(4), key=lambda n: str(types[n]))
        kind = {"kind": "contraction"}
        op = builder.build_op("fused", given, kind, [types[n] for n in order])
        block = op.regions[0].blocks.append(*[v.type for v in given])
        known = dict(zip(given, block.arguments))
        with ir.InsertionPoint(block):
            for o in (*sorted(free.values(), key=lambda o: o.index), match.root, *match.chain):
                clone_into(o.op, known)
            x = known[body.values[match.scores.x]]
            runs = builder.build_op("softmax_runs", [x, known[target]], {"run": _RUN})
            exponentials, *others = runs.results
            made = [builder.convert(exponentials, "bf16"), *others]
            builder.build_op("yield", [made[n] for n in order], {}, [])
        return [op.results[order.index(n)] for n in range(4)]

    def _reduced(self, o: Op, tiles: _Space, target: _Space) -> ir.Value:
        """What a reduction of rows gives."""
        attrs = read(OPS["reduce"], o.op.attributes)
        (x,), form = o.operands, self.match.scores.form(o.operands[0])
        if form.kind == "flat":
            found = builder.build("select", [self._known(), target(x), _zeros(target(x))])
            wide = attrs.get("dtype")
            return found if wide is None else builder.convert(found, wide)
        value = tiles(x)
        if form.kind == "exp":
            value = builder.build("mul", [value, self.parts[2]])
        return builder.build("reduce", [value], {**attrs, "dims": (0,)})

    def _known(self) -> ir.Value:
        """Whether a row's target is a column."""
        t = self._target()
        ty = builder.type_of(t)
        low = builder.build("compare", [t, builder.splat(0, ty)], {"predicate": "ge"})
        high = builder.build("compare", [t, builder.splat(self.columns, ty)], {"predicate": "lt"})
        return builder.build("and", [low, high])

    def _target(self) -> ir.Value:
        return builder.convert(self.body.values[self.match.scores.target], "i64")

    def _gradient(self, tiles: _Space, target: _Space) -> tuple[ir.Value, ir.Value]:
        """The scale of each run, and the exponentials with those of the targets replaced."""
        (f,) = self.match.gradient.operands
        at_target = builder.convert(target(f), "f32")
        least = builder.build("abs", [at_target])
        least = builder.build("mul", [least, builder.splat(_LEAST, builder.type_of(least))])
        scale = _at_least(builder.convert(tiles(f), "f32"), tiles.spread(least))
        own = _Space(self.match.scores, (self.rows,), self._maximum_at_target(tiles), aimed=False)
        of_target = _at_least(builder.convert(own(f), "f32"), least)
        # 0 / 0 where a row has no gradient
        none = builder.build("compare", [at_target, _zeros(at_target)], {"predicate": "eq"})
        quotient = builder.build("div", [at_target, of_target])
        element = builder.build("select", [none, _zeros(quotient), quotient])
        index = self.body.values[self.match.scores.target]
        put = builder.build("put", [self.parts[0], index, builder.convert(element, "bf16")])
        return scale, put

    def _maximum_at_target(self, tiles: _Space) -> ir.Value:
        """The maximum of the run that contains a row's target."""
        shape = (self.runs, self.rows)
        run = builder.build("iota", [], {"shape": shape, "dim": 0, "dtype": "i64"})
        size = builder.splat(_RUN, TensorType(shape, "i64"))
        begin = builder.build("mul", [run, size])
        t = tiles.spread(self._target())
        low = builder.build("compare", [t, begin], {"predicate": "ge"})
        end = builder.build("add", [begin, size])
        here = builder.build("and", [low, builder.build("compare", [t, end], {"predicate": "lt"})])
        maxima = self.parts[1]
        own = builder.build("select", [here, maxima, _zeros(maxima)])
        return builder.build("reduce", [own], {"kind": "sum", "dims": (0,)})

    def _erase(self) -> None:
        """Erase the ops that nothing reads any more."""
        match, body = self.match, self.body
        read_by = [body.producer[v] for v in match.scores.computed if v != match.scores.x]
        dead = {*read_by, *(o.index for o in (*match.reductions, *match.chain, match.root))}
        dead |= {o.index for o, _ in match.products}
        dead |= {body.producer[t] for t in _transposes(body, match.gradient.results[0])}
        for i in sorted(dead, reverse=True):
            body.ops[i].op.erase()


def _is_free(o: Op) -> bool:
    return o.name in ("broadcast", "constant")


def _zeros(like: ir.Value) -> ir.Value:
    return builder.splat(0, builder.type_of(like))


def _at_least(value: ir.Value, least: ir.Value) -> ir.Value:
    """A value with its magnitude raised to at least another one; NaN stays NaN."""
    small = builder.build("compare", [builder.build("abs", [value]), least], {"predicate": "lt"})
    below = builder.build("compare", [value, _zeros(value)], {"predicate": "lt"})
    signed = builder.build("select", [below, builder.build("neg", [least]), least])
    return builder.build("select", [small, signed, value])


PASS = Pass("gflow-split-softmax", run, SplitSoftmaxOptions, __doc__ or "")
