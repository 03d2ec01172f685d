"""The backward of attention over blocks of keys and rows. It recomputes p = exp(scores - log-sum-exp).

    for a head of k and v                               (a task, which a thread takes when it is free)
        for blocks of keys                                  (packed: k and v)
            for heads of q that share it, for blocks of rows (packed: q and dy)
                p = exp(q kᵀ scale + bias - log)   dp = dy vᵀ
                ds = p ∘ (dp - Σ dy ∘ y) scale     (dropout: of dp, and of p for dv)
                dv += pᵀ dy    dk += dsᵀ q    dq += ds k     (dy, q and k are read in place; in bfloat16, in pairs)

One thread computes all terms of an element in a fixed order, so results do not depend on the number of threads. Pairs
of rows and keys that a causal mask excludes are skipped, unless an element of q, k, v or dy is not finite.

Of bfloat16 operands, p and ds are rounded, and dq, dk and dv are float32 values. Words of p and ds hold two rows, for
sums over rows; ds is also stored by rows, for sums over keys.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.blocks import ITEM
from gflow.dialects.records import record

from ..product.bfloat16 import words
from ..product.function import VECTOR
from .kernel import COMMON, Attention, Form

WORDS = (
    *COMMON,
    *("dy", "y", "dq", "dk", "dv_", "fb", "fh", "ft", "yb", "yh", "yt"),
    *("eb", "eh", "et", "gb", "gh", "gt", "hb", "hh", "ht"),
    *("pack_rows", "pack_keys", "pair_rows", "scores", "by_keys", "by_rows", "wide"),
    *("q_panels", "k_panels", "dy_panels", "v_panels", "block", "value_terms"),
    *("d_line", "dv_line", "q_pairs", "dy_pairs", "k_pairs"),
)
_ADDRESSES = (
    *("q", "k", "v", "sums", "bias", "rng", "scratch"),
    *("dy", "y", "dq", "dk", "dv_"),
)
_FUNCTIONS = ("pack_rows", "pack_keys", "pair_rows", "scores", "by_keys", "by_rows")


@cache
def function(name: str, form: Form) -> str:
    """The text of the function `name` that computes the gradients."""
    return _Backward(form).function(name)


@record
class _Row:
    """A row of a block, during the computation of p and ds.

    Args:
        p, ds: the addresses of its products q kᵀ and dy vᵀ.
        seen: the number of keys that it attends to.
        inner, shift: Σ dy ∘ y and the log-sum-exp, in every lane.
        bias: the address of the bias's row.
        position: the number of its first element, for dropout; "": there is none.
    """

    p: str
    ds: str
    seen: str
    inner: str
    shift: str
    bias: str
    position: str


class _Backward(Attention):
    def __init__(self, form: Form) -> None:
        super().__init__(form, WORDS, _ADDRESSES, _FUNCTIONS)
        w = self.w
        self.shared_heads = self.binary("divui", w["heads"], w["group"])
        self.tasks(self.mul(w["batch"], self.shared_heads), self._task)

    def _task(self, t: str) -> None:
        w = self.w
        self.b, self.shared = self.split(t, self.shared_heads)
        self.k, self.v = (self.line_of(x, self.b, self.shared, 0) for x in ("k", "v"))
        self.dk = self.line_of("dk", self.b, self.shared, 0, "g")
        self.dv = self.line_of("dv_", self.b, self.shared, 0, "h")
        self.q_panels = self.mine
        self.k_panels = self.at(self.q_panels, w["q_panels"])
        self.dy_panels = self.at(self.k_panels, w["k_panels"])
        self.v_panels = self.at(self.dy_panels, w["dy_panels"])
        self.p = self.at(self.v_panels, w["v_panels"])
        self.ds = self.at(self.p, w["block"])
        self.q_pairs = self.at(self.ds, w["block"])
        self.dy_pairs = self.at(self.q_pairs, w["q_pairs"])
        self.k_pairs = self.at(self.dy_pairs, w["dy_pairs"])
        self.ds_rows = self.at(self.k_pairs, w["k_pairs"])
        self._zeros(self.dk, w["gt"], w["tk"], w["d"])
        self._zeros(self.dv, w["ht"], w["tk"], w["dv"])

        def clear(g: str) -> None:
            dq = self.line_of("dq", self.b, self._head(g), 0, "e")
            self._zeros(dq, w["et"], w["tq"], w["d"])

        self.repeat(0, w["group"], 1, clear)
        if self.form.causal:
            self.whole = self._is_infinite()
        self.repeat(0, w["tk"], w["keys"], self._block)

    def _head(self, g: str) -> str:
        return self.add(self.mul(self.shared, self.w["group"]), g)

    def _is_infinite(self) -> str:
        """Whether some element of the task's operands is not finite."""
        w = self.w
        some = self.zeros_times(self.k, w["kt"], w["tk"], w["d"], self.m.c(0.0))
        some = self.zeros_times(self.v, w["vt"], w["tk"], w["dv"], some)

        def head(g: str, found: list[str]) -> list[str]:
            q = self.line_of("q", self.b, self._head(g), 0)
            dy = self.line_of("dy", self.b, self._head(g), 0, "f")
            sums = self.zeros_times(q, w["qt"], w["tq"], w["d"], found[0])
            return [self.zeros_times(dy, w["ft"], w["tq"], w["dv"], sums)]

        (some,) = self.loop(0, w["group"], 1, [(some, VECTOR)], head)
        return self.is_nan(some)

    def _zeros(self, at: str, stride: str, rows: str, columns: str) -> None:
        def row(i: str) -> None:
            line = self.at(at, self.mul(i, stride))

            def part(j: str, _: list[str]) -> list[str]:
                inside = self.first(self.sub(columns, j))
                self.store(self.m.c(0.0), self.at(line, self.mul(j, ITEM)), inside)
                return []

            self.vectors(columns, [], part)

        self.repeat(0, rows, 1, row)

    def _block(self, key: str) -> None:
        w = self.w
        self.key = key
        self.there = self.at_most(w["keys"], self.sub(w["tk"], key))
        self.k_block = self.at(self.k, self.mul(key, w["kt"]))
        v_block = self.at(self.v, self.mul(key, w["vt"]))
        self.dk_block = self.at(self.dk, self.mul(key, w["gt"]))
        self.dv_block = self.at(self.dv, self.mul(key, w["ht"]))
        self.pack("pack_keys", "nr", self.k_block, w["kt"], self.k_panels, self.there, w["terms"])
        self.pack("pack_keys", "nr", v_block, w["vt"], self.v_panels, self.there, w["value_terms"])
        if self.form.pairs:
            self.pair(self.k_block, w["kt"], self.k_pairs, w["d_line"], self.there, w["d"])
        first = self.i64(0)
        if self.form.causal:  # the first block of rows that attends to the first key
            begin = self.mul(self.binary("divui", key, w["rows"]), w["rows"])
            first = self.choose(self.whole, 0, begin)

        def head(g: str) -> None:
            self.h = self._head(g)
            self.repeat(first, w["tq"], w["rows"], self._rows)

        self.repeat(0, w["group"], 1, head)

    def _rows(self, row0: str) -> None:
        w, b, h = self.w, self.b, self.h
        self.row0 = row0
        self.count = self.at_most(w["rows"], self.sub(w["tq"], row0))
        self.q = self.line_of("q", b, h, row0)
        self.dy = self.line_of("dy", b, h, row0, "f")
        self.y = self.line_of("y", b, h, row0)
        self.dq = self.line_of("dq", b, h, row0, "e")
        self.out = self.line_of("sums", b, h, row0, "s")
        self.bias = self.line_of("bias", b, h, row0, "b") if self.form.bias else self.null
        if self.form.dropout:
            head = self.add(self.mul(b, w["heads"]), h)
            self.element = self.mul(self.add(self.mul(head, w["tq"]), row0), w["tk"])
        self.pack("pack_rows", "mr", self.q, w["qt"], self.q_panels, self.count, w["terms"])
        self.pack("pack_rows", "mr", self.dy, w["ft"], self.dy_panels, self.count, w["value_terms"])
        self._products(self.q_panels, self.k_panels, self.p, "terms")
        self._products(self.dy_panels, self.v_panels, self.ds, "value_terms")
        if self.form.pairs:
            self.pair(self.q, w["qt"], self.q_pairs, w["d_line"], self.count, w["d"])
            self.pair(self.dy, w["ft"], self.dy_pairs, w["dv_line"], self.count, w["dv"])
            self.repeat(0, self.count, 2, self._weights_of_two)
            self._sum_over_rows(self.p, self.dy_pairs, "dv_line", self.dv_block, "ht", "dv")
            self._sum_over_rows(self.ds, self.q_pairs, "d_line", self.dk_block, "gt", "d")
        else:
            self.repeat(0, self.count, 1, self._weights)
            self._sum_over_rows(self.p, self.dy, "ft", self.dv_block, "ht", "dv")
            self._sum_over_rows(self.ds, self.q, "qt", self.dk_block, "gt", "d")
        self.repeat(0, self.count, w["mr"], self._queries)

    def _sees(self, row: str) -> str:
        """The number of keys of the block that a row of the block attends to."""
        if not self.form.causal:
            return self.there
        seen = self.sub(self.add(self.row0, row, 1), self.key)
        return self.at_least(self.at_most(seen, self.there), 0)

    def _width(self, row: str) -> str:
        """The number of keys of the block that a tile of rows is multiplied with. row: the last row of the tile."""
        seen = self._sees(row)
        return self.choose(self.whole, self.there, seen) if self.form.causal else seen

    def _products(self, a: str, b: str, c: str, terms: str) -> None:
        """Write the product of rows and keys, both packed."""
        w = self.w
        high, across = (self.panel(w[terms], side) for side in ("mr", "nr"))
        line = self.mul(w["nr"], ITEM)

        def rows(i: str) -> None:
            count = self.at_most(w["mr"], self.sub(self.count, i))
            seen = self._width(self.sub(self.add(i, count), 1))
            left = self.at(a, self.mul(self.binary("divui", i, w["mr"]), high))
            target = self.at(c, self.mul(i, w["across"]))

            def columns(j: str) -> None:
                right = self.at(b, self.mul(self.binary("divui", j, w["nr"]), across))
                to = self.at(target, self.mul(j, ITEM))
                wide = self.at_most(w["nr"], self.sub(seen, j))
                self.tile("scores", left, right, line, w[terms], to, w["across"], count, wide)

            self.repeat(0, seen, w["nr"], columns)

        self.repeat(0, self.count, w["mr"], rows)

    def _weights(self, row: str) -> None:
        """Write p and ds of one row, which overwrite the products q kᵀ and dy vᵀ."""
        given = self._row(row)

        def one(j: str, _: list[str]) -> list[str]:
            p, ds = self._weight(given, j)
            self.store(p, self.at(given.p, self.mul(j, ITEM)))
            self.store(ds, self.at(given.ds, self.mul(j, ITEM)))
            return []

        self.vectors(self.there, [], one)

    def _weights_of_two(self, row: str) -> None:
        """Write p and ds of two rows, rounded: words of both over the products of the first row, and ds by rows.

        Of an odd last row, the partner is zeros.
        """
        second = self.add(row, 1)
        there = self.compare("slt", second, self.count)
        given = self._row(row), self._row(self.choose(there, second, row))
        lines = [self.at(self.ds_rows, self.mul(n, self._half_across())) for n in (row, second)]

        def one(j: str, _: list[str]) -> list[str]:
            offset, zero = self.mul(j, ITEM), self.m.c(0.0)
            halves = []
            for to, low, high in zip(
                (given[0].p, given[0].ds), *(self._weight(x, j) for x in given)
            ):
                high = self(f"arith.select {there}, {high}, {zero} : {VECTOR}")
                halves = [words.rounded(self, x) for x in (low, high)]
                word = words.paired(self, *halves)
                self.write(word, self.at(to, offset), words.WORDS, ITEM, None)
            for line, half in zip(lines, halves):  # of ds
                self.put_halves(half, self.at(line, self.mul(j, ITEM // 2)))
            return []

        self.vectors(self.there, [], one)

    def _half_across(self) -> str:
        """The bytes between rows of ds, in bfloat16."""
        return self.binary("divui", self.w["across"], 2)

    def _row(self, row: str) -> _Row:
        w = self.w
        bias = self.null
        if self.form.bias:
            offset = self.add(self.mul(row, w["bt"]), self.mul(self.key, w["bj"]))
            bias = self.at(self.bias, offset)
        position = ""
        if self.form.dropout:
            position = self.add(self.element, self.mul(row, w["tk"]), self.key)
        p, ds = (self.at(x, self.mul(row, w["across"])) for x in (self.p, self.ds))
        shift = self.wide(self.number(self.at(self.out, self.mul(row, w["st"]))))
        return _Row(p, ds, self._sees(row), self._dot(row), shift, bias, position)

    def _weight(self, row: _Row, j: str) -> tuple[str, str]:
        """16 elements of p and ds, from key `j` of the block on."""
        m, offset = self.m, self.mul(j, ITEM)
        x, inside = self.scored(self.load(self.at(row.p, offset)), j, row.bias, row.seen)
        p, dp = self.exp(m.sub(x, row.shift)), self.load(self.at(row.ds, offset))
        weight = p
        if row.position:
            kept = self.dropped(self.m.c(1.0), self.add(row.position, j))
            dp = m.mul(dp, kept)
            weight = m.mul(p, kept)
        ds = m.mul(m.mul(p, m.sub(dp, row.inner)), self.scale)
        return weight, m.select(inside, ds, m.c(0.0))

    def _dot(self, row: str) -> str:
        """The sum of dy ∘ y over a row, in every lane."""
        w, m = self.w, self.m
        dy, y = (self.at(x, self.mul(row, w[s])) for x, s in ((self.dy, "ft"), (self.y, "yt")))

        def part(j: str, sums: list[str]) -> list[str]:
            inside = self.first(self.sub(w["dv"], j))
            a, b = (self.elements(x, j, inside) for x in (dy, y))
            # NaN where an element of dy is infinite, as eager's weighted sum of dp
            return [m.fma(a, m.c(0.0), m.fma(a, b, sums[0]))]

        (sums,) = self.vectors(w["dv"], [m.c(0.0)], part)
        return self.wide(self.total(sums))

    def _sum_over_rows(
        self, a: str, b: str, stride: str, c: str, c_stride: str, channels: str
    ) -> None:
        """Write C += Aᵀ B (keys × channels), summed over the rows of the block."""
        w = self.w

        def keys(i: str) -> None:
            count = self.at_most(w["mr"], self.sub(self.there, i))
            first = self.i64(0)
            if self.form.causal:  # the first row that attends to one of them
                sees = self.at_least(self.sub(self.add(self.key, i), self.row0), 0)
                first = self.choose(self.whole, 0, sees)
            deep, line = self.sub(self.count, first), w["across"]
            if self.form.pairs:  # words of two rows
                first = self.binary("divui", first, 2)
                deep, line = self.sub(self.granules(self.count, 2), first), self.mul(line, 2)
            left = self.at(a, self.add(self.mul(i, ITEM), self.mul(first, line)))
            right = self.at(b, self.mul(first, w[stride]))
            target = self.at(c, self.mul(i, w[c_stride]))

            def columns(j: str) -> None:
                offset = self.mul(j, ITEM)
                wide = self.at_most(w["wide"], self.sub(w[channels], j))
                self.tile(
                    "by_rows", left, self.at(right, offset), w[stride], deep, self.at(target, offset), w[c_stride],
                    count, wide, 1,
                )  # fmt: skip

            some = self.compare("sgt", deep, 0)
            self.branch(some, lambda: self.repeat(0, w[channels], w["wide"], columns))

        self.repeat(0, self.there, w["mr"], keys)

    def _queries(self, i: str) -> None:
        """Write dq += ds k for the rows of a tile."""
        w = self.w
        count = self.at_most(w["mr"], self.sub(self.count, i))
        seen = self._width(self.sub(self.add(i, count), 1))
        left, k, stride, deep = (
            self.at(self.ds, self.mul(i, w["across"])),
            self.k_block,
            w["kt"],
            seen,
        )
        if self.form.pairs:
            left = self.at(self.ds_rows, self.mul(i, self._half_across()))
            k, stride, deep = self.k_pairs, w["d_line"], self.granules(seen, 2)
        target = self.at(self.dq, self.mul(i, w["et"]))

        def columns(j: str) -> None:
            offset = self.mul(j, ITEM)
            wide = self.at_most(w["wide"], self.sub(w["d"], j))
            self.tile(
                "by_keys", left, self.at(k, offset), stride, deep, self.at(target, offset), w["et"],
                count, wide, 1,
            )  # fmt: skip

        some = self.compare("sgt", seen, 0)
        self.branch(some, lambda: self.repeat(0, w["d"], w["wide"], columns))
