"""Whether a kernel's PTX waits for its asynchronous copies before it reads what they bring.

    cp.async … ; cp.async.commit_group          a group; `cp.async.wait_group N` waits for all but the last N,
                                                and `bar.sync` shows other threads' groups
    mbarrier.arrive.expect_tx ; cp.async.bulk…  a phase; `mbarrier.try_wait` waits for the oldest
    wgmma, ldmatrix, ld.shared                  a read

Blocks are walked in the order in which control reaches them, each innermost loop three times. An iteration reads as
many groups (phases) as it makes, in the order in which they were made, those before the loop first: at its last read
the k-th iteration must have waited for k times as many, and at its first read for one more than the iteration before.
Between copies by threads (`cp.async`) and a `wgmma`, which reads by another proxy, there must be a
`fence.proxy.async`.

Which bytes an instruction reads is not followed: a wait that stands in the wrong iteration is found, one for the wrong
operand of two in one iteration only where the number of waits differs. Whether a copy overwrites what is still read is
not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gflow.dialects.records import record

#: iterations that a loop is walked for: the last ones see what the ones before them left
_ITERATIONS = 3

_LABEL = re.compile(r"^\s*(\$\w+):")
_ENDS = re.compile(r"^\s*(?:ret|exit|trap)\b")
_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")

#: what a line does, the first that fits
_KINDS = tuple(
    (kind, re.compile(text))
    for kind, text in (
        ("phase", r"\bmbarrier\.arrive\.expect_tx\b"),
        ("phase waited", r"\bmbarrier\.(?:try|test)_wait\b"),
        ("group", r"\bcp\.async\.commit_group\b"),
        ("group waited", r"\bcp\.async\.wait_group\s+(\d+)"),
        ("all waited", r"\bcp\.async\.wait_all\b"),
        ("bulk copy", r"\bcp\.async\.bulk\.\S*shared::\w+\.global"),
        ("copy", r"\bcp\.async\.c[ag]\.shared"),
        ("shown", r"\bbar(?:rier)?\.(?:cta\.)?sync\b"),
        ("fence", r"\bfence\.proxy\.async\b"),
        ("product", r"\bwgmma\.mma_async\b"),
        ("read", r"\b(?:ldmatrix|ld\.shared)\b"),
    )
)
_READS = ("product", "read")


@record
class _Line:
    """What a line of PTX does. number: its own. count: of groups that may still be on their way."""

    number: int
    kind: str
    text: str
    count: int = 0


@dataclass
class _Block:
    """Lines that run one after the other. jump: the label behind them; falls: whether what stands next may follow."""

    label: str = ""
    lines: list[_Line] = field(default_factory=list)
    jump: str = ""
    falls: bool = True


@dataclass
class _Stream:
    """Groups, or phases: how many were made, waited for by the thread, and by all threads. used: read before."""

    made: int = 0
    waited: int = 0
    shown: int = 0
    used: int = 0


def unawaited(ptx: str) -> list[str]:
    """Reads of shared memory in a kernel's PTX whose copies may not have arrived, each as a line with its number."""
    blocks = _blocks(ptx.split("\n"))
    after = [_targets(blocks, n) for n in range(len(blocks))]
    order = _order(after)
    loops = _loops(after, order)
    walk, done = _Walk(), set[int]()
    for n in order:
        if n in done:
            continue
        if n in loops:
            done |= loops[n]
            walk.loop([line for m in order if m in loops[n] for line in blocks[m].lines])
        else:
            walk.straight(blocks[n].lines)
    return list(dict.fromkeys(walk.found))


def _blocks(rows: Sequence[str]) -> list[_Block]:
    """The text's blocks, each begun by a label or by what stands behind a jump."""
    found = [_Block()]
    for number, row in enumerate(rows, 1):
        text = row.partition("//")[0]
        label, jump = _LABEL.match(text), _JUMP.search(text)
        if label is not None:
            found.append(_Block(label[1]))
        found[-1].lines += _line(number, text)
        ends = _ENDS.match(text) is not None
        if jump is not None or ends:
            found[-1].jump = jump[1] if jump is not None else ""
            found[-1].falls = jump is not None and "@" in text
            found.append(_Block())
    return found


def _targets(blocks: Sequence[_Block], n: int) -> list[int]:
    """The blocks that may run after one."""
    to = [m for m, b in enumerate(blocks) if b.label and b.label == blocks[n].jump]
    return [*to, n + 1] if blocks[n].falls and n + 1 < len(blocks) else to


def _order(after: Sequence[Sequence[int]]) -> list[int]:
    """Blocks in reverse postorder: each before those that only it leads to."""
    found: list[int] = []
    seen, stack = {0}, [(0, iter(after[0]))]
    while stack:
        n, rest = stack[-1]
        following = next((m for m in rest if m not in seen), None)
        if following is None:
            found.append(n)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return found[::-1]


def _loops(after: Sequence[Sequence[int]], order: Sequence[int]) -> dict[int, set[int]]:
    """The blocks of each innermost loop, by the one that it begins with."""
    at = {n: i for i, n in enumerate(order)}
    before: dict[int, list[int]] = {}
    for n in order:
        for m in after[n]:
            before.setdefault(m, []).append(n)
    found: dict[int, set[int]] = {}
    for n in order:
        for head in (m for m in after[n] if at[m] <= at[n]):
            body, todo = found.setdefault(head, {head}), [n]
            while todo:
                m = todo.pop()
                if m not in body:
                    body.add(m)
                    todo += before[m]
    return {h: body for h, body in found.items() if not any(o in body for o in found if o != h)}


def _line(number: int, text: str) -> Iterator[_Line]:
    for kind, pattern in _KINDS:
        found = pattern.search(text)
        if found is not None:
            yield _Line(number, kind, text.strip(), int(found[1]) if found.groups() else 0)
            return


class _Walk:
    """The state at a line, and the reads that were too early."""

    def __init__(self) -> None:
        self.groups, self.phases = _Stream(), _Stream()
        self.unfenced = False
        self.found: list[str] = []

    def straight(self, lines: Sequence[_Line]) -> None:
        """Lines outside of loops: copies that nobody has waited for must not be all there are."""
        for line in lines:
            self.step(line)
            for s in (self.groups, self.phases):
                if line.kind in _READS and s.made > s.used and s.shown <= s.used:
                    self.say(line)
        self.settle()

    def loop(self, body: Sequence[_Line]) -> None:
        """A loop's body, some times over."""
        groups = sum(line.kind == "group" for line in body)
        phases = sum(line.kind == "phase" for line in body)
        reads = [n for n, line in enumerate(body) if line.kind in _READS]
        base = self.groups.used, self.phases.used
        for k in range(_ITERATIONS):
            for n, line in enumerate(body):
                self.step(line)
                for s, each, used in zip((self.groups, self.phases), (groups, phases), base):
                    if not each or n not in (reads[:1] + reads[-1:]):
                        continue
                    needed = used + (k + 1) * each if n == reads[-1] else used + k * each + 1
                    if s.shown < needed:
                        self.say(line)
        self.settle()

    def step(self, line: _Line) -> None:
        g, p = self.groups, self.phases
        match line.kind:
            case "phase":
                p.made += 1
            case "phase waited":
                p.waited = p.shown = min(p.made, p.waited + 1)
            case "group":
                g.made += 1
            case "group waited":
                g.waited = max(g.waited, g.made - line.count)
            case "all waited":
                g.waited = g.made
            case "shown":
                g.shown = g.waited
            case "copy":
                self.unfenced = True
            case "fence":
                self.unfenced = False
            case "product" if self.unfenced:
                self.say(line, "a wgmma reads copies by threads without fence.proxy.async")

    def settle(self) -> None:
        """What was waited for to the last is not read again."""
        for s in (self.groups, self.phases):
            if s.waited == s.made:
                s.used = s.shown = s.made

    def say(self, line: _Line, what: str = "reads copies that were not awaited") -> None:
        self.found.append(f"line {line.number}: {what}: {line.text}")
