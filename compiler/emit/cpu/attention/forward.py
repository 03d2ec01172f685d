"""Attention's forward: blocks of keys, and a softmax that goes along.

    for rows of a head, handed out                      (each thread packs its rows of q)
        for blocks of keys                              (and the block of k)
            for strips of rows, a tile high             (scores, in the first cache)
                s = q kᵀ scale + bias
                m' = max(m, s)   p = exp(s - m')   l' = l exp(m - m') + Σ p
                y = y exp(m - m') + p v                 (v is read where it lies)
        y = y / l,  the logarithm of the sum m + log(l)

A row that sees no key is 0, and so is its logarithm; a NaN among a row's scores is one in the row. Keys that no row of
a strip sees are left out, unless a number of v is not finite: 0 times that is NaN.
"""

from __future__ import annotations

import math
from functools import cache

from gflow.compiler.kernel.blocks import ITEM

from .kernel import COMMON, Attention, Form

WORDS = (
    *COMMON,
    *("y", "yb", "yh", "yt", "pack_rows", "pack_keys", "scores", "values", "wide"),
    *("row_panels", "key_panels", "per_row"),
)
_ADDRESSES = ("q", "k", "v", "sums", "bias", "rng", "scratch", "y")
_FUNCTIONS = ("pack_rows", "pack_keys", "scores", "values")


@cache
def function(name: str, form: Form) -> str:
    """The function `name` of such attentions."""
    return _Forward(form).function(name)


class _Forward(Attention):
    def __init__(self, form: Form) -> None:
        super().__init__(form, WORDS, _ADDRESSES, _FUNCTIONS)
        w = self.w
        self.parts = self.granules(w["tq"], w["rows"])
        self.heads = self.mul(w["batch"], w["heads"])
        self.tasks(self.mul(self.heads, self.parts), self._task)

    def _task(self, t: str) -> None:
        w = self.w
        behind, at = self.split(t, self.heads)
        # the last rows first: where masks are causal, these see the most
        part = self.sub(self.sub(self.parts, 1), behind)
        b, h = self.split(at, w["heads"])
        shared = self.binary("divui", h, w["group"])
        self.row0 = self.mul(part, w["rows"])
        self.count = self.at_most(w["rows"], self.sub(w["tq"], self.row0))
        self.q = self.line_of("q", b, h, self.row0)
        self.y = self.line_of("y", b, h, self.row0)
        self.k, self.v = (self.line_of(x, b, shared, 0) for x in ("k", "v"))
        self.out = self.line_of("sums", b, h, self.row0, "s")
        self.bias = self.line_of("bias", b, h, self.row0, "b") if self.form.bias else self.null
        if self.form.dropout:
            head = self.add(self.mul(b, w["heads"]), h)
            self.element = self.mul(self.add(self.mul(head, w["tq"]), self.row0), w["tk"])
        self.panels = self.mine
        self.keys = self.at(self.panels, w["row_panels"])
        self.strip = self.at(self.keys, w["key_panels"])
        self.greatest = self.at(self.strip, self.mul(w["mr"], w["across"]))
        self.totals = self.at(self.greatest, w["per_row"])
        if self.form.packed:
            self.pack("pack_rows", "mr", self.q, w["qt"], self.panels, self.count, w["d"])
        last = w["tk"]
        if self.form.causal:
            some = self.zeros_times(self.v, w["vt"], w["tk"], w["dv"], self.m.c(0.0))
            self.whole = self.is_nan(some)
            seen = self.at_most(last, self.add(self.row0, self.count))
            last = self.choose(self.whole, last, seen)
        self.last = last
        self.repeat(0, last, w["keys"], self._block)
        self.repeat(0, self.count, 1, self._end)

    def _block(self, key: str) -> None:
        w = self.w
        self.key = key
        self.there = self.at_most(w["keys"], self.sub(self.last, key))
        self.block = self.at(self.k, self.mul(key, w["kt"]))
        self.weighed = self.at(self.v, self.mul(key, w["vt"]))
        self.begins = self.compare("eq", key, 0)
        self.more = self.choose(self.begins, 0, 1)
        if self.form.packed:
            self.pack("pack_keys", "nr", self.block, w["kt"], self.keys, self.there, w["d"])
        self.repeat(0, self.count, w["mr"], self._strip)

    def _sees(self, row: str) -> str:
        """How many keys of the block a row of the task sees."""
        if not self.form.causal:
            return self.there
        seen = self.sub(self.add(self.row0, row, 1), self.key)
        return self.at_least(self.at_most(seen, self.there), 0)

    def _strip(self, i: str) -> None:
        w = self.w
        rows = self.at_most(w["mr"], self.sub(self.count, i))
        seen = self._sees(self.sub(self.add(i, rows), 1))
        if self.form.causal:
            seen = self.choose(self.whole, self.there, seen)

        def made() -> None:
            self._scores(i, rows, seen)
            self.repeat(0, rows, 1, lambda r: self._row(self.add(i, r), r, seen))
            self._values(i, rows, seen)

        self.branch(self.compare("sgt", seen, 0), made)

    def _scores(self, i: str, rows: str, seen: str) -> None:
        w = self.w
        far = self.mul(w["nr"], ITEM) if self.form.packed else w["kt"]
        if self.form.packed:
            p = self.binary("divui", i, w["mr"])
            a = self.at(self.panels, self.mul(p, self.panel(w["d"], "mr")))
        else:
            a = self.at(self.q, self.mul(i, w["qt"]))

        def columns(j: str) -> None:
            if self.form.packed:
                p = self.binary("divui", j, w["nr"])
                b = self.at(self.keys, self.mul(p, self.panel(w["d"], "nr")))
            else:
                b = self.at(self.block, self.mul(j, w["kt"]))
            c = self.at(self.strip, self.mul(j, ITEM))
            wide = self.at_most(w["nr"], self.sub(seen, j))
            self.tile("scores", a, b, far, w["d"], c, w["across"], rows, wide, 0, w["qt"])

        self.repeat(0, seen, w["nr"], columns)

    def _row(self, row: str, r: str, width: str) -> None:
        """The softmax of one row of a strip so far. width: keys of the block that some row of the strip sees."""
        w, m = self.w, self.m
        seen = self._sees(row)
        line = self.at(self.strip, self.mul(r, w["across"]))
        bias = self.null
        if self.form.bias:
            offset = self.add(self.mul(row, w["bt"]), self.mul(self.key, w["bj"]))
            bias = self.at(self.bias, offset)

        def score(j: str, most: list[str]) -> list[str]:
            at = self.at(line, self.mul(j, ITEM))
            x, _ = self.scored(self.load(at), j, bias, seen)
            self.store(x, at)
            return [m.at_least(most[0], x)]

        none = self.one.c(float("-inf"))
        (most,) = self.vectors(width, [m.c(float("-inf"))], score)
        block = self(f"vector.reduction <maxnumf>, {most} : vector<16xf32> into f32")
        at, total_at = (self.at(x, self.mul(row, ITEM)) for x in (self.greatest, self.totals))
        old = self.where(self.begins, none, self.number(at))
        new = self.one.at_least(block, old)
        low = self.where(self.one.cmp("oeq", new, none), self.one.c(0.0), new)
        shift = self.wide(low)
        position = ""
        if self.form.dropout:
            position = self.add(self.element, self.mul(row, w["tk"]), self.key)

        def weigh(j: str, sums: list[str]) -> list[str]:
            at = self.at(line, self.mul(j, ITEM))
            x = self.exp(m.sub(self.load(at), shift))
            kept = self.dropped(x, self.add(position, j)) if position else x
            self.store(kept, at)
            return [m.add(sums[0], x)]

        (sums,) = self.vectors(width, [m.c(0.0)], weigh)
        factor = self.exponential(self.one.sub(old, low))
        before = self.where(self.begins, self.one.c(0.0), self.number(total_at))
        self.put(self.one.fma(before, factor, self.total(sums)), total_at)
        self.put(new, at)
        same = self.one.cmp("oeq", factor, self.one.c(1.0))
        stays = self(f"arith.ori {same}, {self.begins} : i1")
        changes = self(f"arith.xori {stays}, {self.const(True, 'i1')} : i1")
        self.branch(changes, lambda: self._times(row, factor))

    def _times(self, row: str, factor: str) -> None:
        """Multiply a row of the result by a number."""
        y, by = self.at(self.y, self.mul(row, self.w["yt"])), self.wide(factor)

        def one(j: str, _: list[str]) -> list[str]:
            at, inside = self.at(y, self.mul(j, ITEM)), self.first(self.sub(self.w["dv"], j))
            self.store(self.m.mul(self.load(at, inside), by), at, inside)
            return []

        self.vectors(self.w["dv"], [], one)

    def _values(self, i: str, rows: str, seen: str) -> None:
        w = self.w
        y = self.at(self.y, self.mul(i, w["yt"]))

        def columns(j: str) -> None:
            offset = self.mul(j, ITEM)
            wide = self.at_most(w["wide"], self.sub(w["dv"], j))
            self.tile(
                "values", self.strip, self.at(self.weighed, offset), w["vt"], seen, self.at(y, offset), w["yt"], rows,
                wide, self.more,
            )  # fmt: skip

        self.repeat(0, w["dv"], w["wide"], columns)

    def _end(self, row: str) -> None:
        one = self.one
        most = self.number(self.at(self.greatest, self.mul(row, ITEM)))
        total = self.number(self.at(self.totals, self.mul(row, ITEM)))
        empty = one.cmp("oeq", total, one.c(0.0))
        nothing = one.c(math.nan if self.form.formula else 0.0)
        self._times(row, self.where(empty, nothing, one.div(one.c(1.0), total)))
        hidden = one.cmp("oeq", most, one.c(float("-inf")))
        low = self.where(hidden, one.c(0.0), most)
        found = self.where(empty, nothing, one.add(low, self.logarithm(total)))
        self.put(found, self.at(self.out, self.mul(row, self.w["st"])))
