"""The forward of attention over blocks of keys, with a running softmax (FlashAttention).

    for a task of rows that share keys                  (which a thread takes when it is free; q is gathered and packed)
        for blocks of keys                              (packed, unless there are few rows)
            for strips of rows, one tile high           (scores stay in the first-level cache)
                s = q kᵀ scale + bias
                m' = max(m, s)   p = exp(s - m')   l' = l exp(m - m') + Σ p
                y = y exp(m - m') + p v                 (v is read in place; in bfloat16, p is rounded, and v in pairs)
        y = y / l,  log-sum-exp = m + log(l)

With grouped-query attention, row r is position r / group and head r mod group, so each key and value is read once for
all heads that share it. A row without keys gives 0, and a log-sum-exp of 0. A NaN among a row's scores makes the row
NaN. Keys that a mask hides from all rows of a strip are skipped, unless an element of v is not finite, since 0 times it
is NaN.
"""

from __future__ import annotations

import math
from functools import cache

from gflow.compiler.kernel.blocks import ITEM

from .kernel import COMMON, Attention, Form

WORDS = (
    *COMMON,
    *("y", "yb", "yh", "yt", "pack_rows", "pack_keys", "pair_rows", "scores", "values", "wide"),
    *("row_panels", "key_panels", "per_row", "high", "q_line", "y_line"),
)
_ADDRESSES = ("q", "k", "v", "sums", "bias", "rng", "scratch", "y")
_FUNCTIONS = ("pack_rows", "pack_keys", "pair_rows", "scores", "values")


@cache
def function(name: str, form: Form) -> str:
    """The text of the function `name` that computes the forward."""
    return _Forward(form).function(name)


class _Forward(Attention):
    def __init__(self, form: Form) -> None:
        super().__init__(form, WORDS, _ADDRESSES, _FUNCTIONS)
        w = self.w
        self.total_rows = self.mul(w["tq"], w["group"])
        self.shared_heads = self.binary("divui", w["heads"], w["group"])
        self.parts = self.granules(self.total_rows, w["rows"])
        self.pairs = self.mul(w["batch"], self.shared_heads)
        self.tasks(self.mul(self.pairs, self.parts), self._task)

    def _task(self, t: str) -> None:
        w = self.w
        behind, at = self.split(t, self.pairs)
        # the last rows first: under a causal mask they attend to the most keys
        part = self.sub(self.sub(self.parts, 1), behind)
        self.batch, shared = self.split(at, self.shared_heads)
        self.first_head = self.mul(shared, w["group"])
        self.row0 = self.mul(part, w["rows"])
        self.count = self.at_most(w["rows"], self.sub(self.total_rows, self.row0))
        self.k, self.v = (self.line_of(x, self.batch, shared, 0) for x in ("k", "v"))
        self.panels = self.mine
        self.keys = self.at(self.panels, w["row_panels"])
        self.strip = self.at(self.keys, w["key_panels"])
        self.greatest = self.at(self.strip, self.mul(w["mr"], w["across"]))
        self.totals = self.at(self.greatest, w["per_row"])
        self.q = self.at(self.totals, w["per_row"])
        self.y = self.at(self.q, self.mul(w["rows"], w["q_line"]))
        self.v_pairs = self.at(self.y, self.mul(w["rows"], w["y_line"]))
        self.repeat(0, self.count, 1, self._gather)
        if self.form.panels:
            self.pack("pack_rows", "mr", self.q, w["q_line"], self.panels, self.count, w["terms"])
        last = w["tk"]
        if self.form.causal:
            some = self.zeros_times(self.v, w["vt"], w["tk"], w["dv"], self.m.c(0.0))
            self.whole = self.is_nan(some)
            greatest, _ = self._position(self.sub(self.count, 1))
            seen = self.at_most(last, self.add(greatest, 1))
            last = self.choose(self.whole, last, seen)
        self.last = last
        self.repeat(0, last, w["keys"], self._block)
        self.repeat(0, self.count, 1, self._end)

    def _position(self, row: str) -> tuple[str, str]:
        """The position and the head of a row of the task."""
        position, head = self.split(self.add(self.row0, row), self.w["group"])
        return position, self.add(self.first_head, head)

    def _gather(self, row: str) -> None:
        """Copy a row of q, as words, padded with zeros to whole vectors."""
        position, head = self._position(row)
        source = self.line_of("q", self.batch, head, position)
        target = self.at(self.q, self.mul(row, self.w["q_line"]))

        def one(j: str, _: list[str]) -> list[str]:
            offset, inside = self.mul(j, ITEM), self.first(self.sub(self.w["terms"], j))
            self.store(self.load(self.at(source, offset), inside), self.at(target, offset))
            return []

        self.vectors(self.w["terms"], [], one)

    def _block(self, key: str) -> None:
        w = self.w
        self.key = key
        self.there = self.at_most(w["keys"], self.sub(self.last, key))
        self.block = self.at(self.k, self.mul(key, w["kt"]))
        self.weighed = self.at(self.v, self.mul(key, w["vt"]))
        self.begins = self.compare("eq", key, 0)
        self.more = self.choose(self.begins, 0, 1)
        if self.form.packed:
            self.pack("pack_keys", "nr", self.block, w["kt"], self.keys, self.there, w["terms"])
        if self.form.pairs:
            self.pair(self.weighed, w["vt"], self.v_pairs, w["y_line"], self.there, w["dv"])
        self.repeat(0, self.count, w["mr"], self._strip)

    def _sees(self, row: str) -> str:
        """The number of keys of the block that a row of the task attends to."""
        if not self.form.causal:
            return self.there
        position, _ = self._position(row)
        seen = self.sub(self.add(position, 1), self.key)
        return self.at_least(self.at_most(seen, self.there), 0)

    def _strip(self, i: str) -> None:
        w = self.w
        rows = self.at_most(w["mr"], self.sub(self.count, i))
        seen = self._sees(self.sub(self.add(i, rows), 1))
        if self.form.causal:
            seen = self.choose(self.whole, self.there, seen)

        def made() -> None:
            self._scores(i, rows, seen)
            # two passes: rows of one pass overlap, as a row's greatest score takes long to find
            self.repeat(0, rows, 1, lambda r: self._greatest(self.add(i, r), r, seen))
            self.repeat(0, rows, 1, lambda r: self._weigh(self.add(i, r), r, seen))
            self._values(i, rows, seen)

        self.branch(self.compare("sgt", seen, 0), made)

    def _scores(self, i: str, rows: str, seen: str) -> None:
        w = self.w
        far = self.mul(w["nr"], ITEM) if self.form.packed else w["kt"]
        if self.form.panels:
            p = self.binary("divui", i, w["mr"])
            a = self.at(self.panels, self.mul(p, self.panel(w["terms"], "mr")))
        else:
            a = self.at(self.q, self.mul(i, w["q_line"]))

        def columns(j: str) -> None:
            if self.form.packed:
                p = self.binary("divui", j, w["nr"])
                b = self.at(self.keys, self.mul(p, self.panel(w["terms"], "nr")))
            else:
                b = self.at(self.block, self.mul(j, w["kt"]))
            c = self.at(self.strip, self.mul(j, ITEM))
            wide = self.at_most(w["nr"], self.sub(seen, j))
            self.tile("scores", a, b, far, w["terms"], c, w["across"], rows, wide, 0, w["q_line"])

        self.repeat(0, seen, w["nr"], columns)

    def _greatest(self, row: str, r: str, width: str) -> None:
        """Write the scores of one row of a strip, its greatest score so far, and what was summed before by that.

        width: the keys of the block that some row of the strip attends to.
        """
        m = self.m
        seen = self._sees(row)
        line_at = self.at(self.strip, self.mul(r, self.w["across"]))
        bias = self.null
        if self.form.bias:
            position, head = self._position(row)
            found = self.line_of("bias", self.batch, head, position, "b")
            bias = self.at(found, self.mul(self.key, self.w["bj"]))

        def score(j: str, most: list[str]) -> list[str]:
            at = self.at(line_at, self.mul(j, ITEM))
            x, _ = self.scored(self.load(at), j, bias, seen)
            self.store(x, at)
            return [m.at_least(most[0], x)]

        (most,) = self.vectors(width, [m.c(float("-inf"))], score)
        block = self.greatest_lane(most)  # a NaN among the scores is never the largest
        at, total_at = (self.at(x, self.mul(row, ITEM)) for x in (self.greatest, self.totals))

        def first() -> None:
            self.put(block, at)
            self.put(self.one.c(0.0), total_at)

        def further() -> None:
            old = self.number(at)
            new = self.one.at_least(block, old)
            self.put(new, at)
            changes = self.one.cmp("une", new, old)  # the least factor is that of no change

            def rescaled() -> None:
                factor = self.exp(self.one.sub(old, self._shift(new)), self.one)
                self.put(self.one.mul(self.number(total_at), factor), total_at)
                self._times(row, factor)

            self.branch(changes, rescaled)

        self.branch(self.begins, first, further)

    def _shift(self, greatest: str) -> str:
        """What is subtracted from scores: the greatest one, or 0 where there is none."""
        none = self.one.cmp("oeq", greatest, self.one.c(float("-inf")))
        return self.where(none, self.one.c(0.0), greatest)

    def _weigh(self, row: str, r: str, width: str) -> None:
        """Write the weights of one row of a strip over its scores, and add them up."""
        m, w = self.m, self.w
        line_at = self.at(self.strip, self.mul(r, w["across"]))
        at, total_at = (self.at(x, self.mul(row, ITEM)) for x in (self.greatest, self.totals))
        shift = self.wide(self._shift(self.number(at)))
        element = ""
        if self.form.dropout:
            position, head = self._position(row)
            line = self.add(
                self.mul(self.add(self.mul(self.batch, w["heads"]), head), w["tq"]), position
            )
            element = self.add(self.mul(line, w["tk"]), self.key)

        def weigh(j: str, sums: list[str]) -> list[str]:
            x = self.exp(m.sub(self.load(self.at(line_at, self.mul(j, ITEM))), shift))
            kept = self.dropped(x, self.add(element, j)) if element else x
            self.put_elements(kept, line_at, j)  # a bfloat16 value is where a score was read before
            return [m.add(sums[0], x)]

        (sums,) = self.vectors(width, [m.c(0.0)], weigh)
        self.put(self.one.add(self.number(total_at), self.total(sums)), total_at)

    def _times(self, row: str, factor: str) -> None:
        """Multiply a row of the result by a number."""
        y, by = self.at(self.y, self.mul(row, self.w["y_line"])), self.wide(factor)

        def one(j: str, _: list[str]) -> list[str]:
            at = self.at(y, self.mul(j, ITEM))
            self.store(self.m.mul(self.load(at), by), at)
            return []

        self.vectors(self.w["dv"], [], one)

    def _values(self, i: str, rows: str, seen: str) -> None:
        w = self.w
        v, stride, deep = self.weighed, w["vt"], seen
        if self.form.pairs:
            v, stride, deep = self.v_pairs, w["y_line"], self.granules(seen, 2)

        def some(r: str) -> None:
            weights = self.at(self.strip, self.mul(r, w["across"]))
            y = self.at(self.y, self.mul(self.add(i, r), w["y_line"]))
            high = self.at_most(w["high"], self.sub(rows, r))

            def columns(j: str) -> None:
                offset = self.mul(j, ITEM)
                wide = self.at_most(w["wide"], self.sub(w["dv"], j))
                self.tile(
                    "values", weights, self.at(v, offset), stride, deep, self.at(y, offset), w["y_line"],
                    high, wide, self.more,
                )  # fmt: skip

            self.repeat(0, w["dv"], w["wide"], columns)

        self.repeat(0, rows, w["high"], some)

    def _end(self, row: str) -> None:
        one = self.one
        most = self.number(self.at(self.greatest, self.mul(row, ITEM)))
        total = self.number(self.at(self.totals, self.mul(row, ITEM)))
        empty = one.cmp("oeq", total, one.c(0.0))
        nothing = one.c(math.nan if self.form.formula else 0.0)
        by = self.wide(self.where(empty, nothing, one.div(one.c(1.0), total)))
        position, head = self._position(row)
        source = self.at(self.y, self.mul(row, self.w["y_line"]))
        target = self.line_of("y", self.batch, head, position)

        def part(j: str, _: list[str]) -> list[str]:
            x = self.m.mul(self.load(self.at(source, self.mul(j, ITEM))), by)
            self.put_elements(x, target, j, self.first(self.sub(self.w["dv"], j)))
            return []

        self.vectors(self.w["dv"], [], part)
        hidden = one.cmp("oeq", most, one.c(float("-inf")))
        low = self.where(hidden, one.c(0.0), most)
        found = self.where(empty, nothing, one.add(low, self.logarithm(total)))
        self.put(found, self.line_of("sums", self.batch, head, position, "s"))
