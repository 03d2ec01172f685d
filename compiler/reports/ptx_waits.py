"""Checks that a kernel's PTX waits for its asynchronous copies before it reads the copied data.

    cp.async … ; cp.async.commit_group          a group; `cp.async.wait_group N` waits for all but the last N,
                                                and `bar.sync` shows other threads' groups
    mbarrier.arrive.expect_tx ; cp.async.bulk…  a phase; `mbarrier.try_wait` waits for the oldest
    wgmma, ldmatrix, ld.shared                  a read

Method: basic blocks are visited in control-flow order, each innermost loop three times. An iteration reads as many
groups (phases) as it starts, oldest first, beginning with those before the loop. At its last read, the k-th iteration
must have waited for k times that number. At its first read, it must have waited for one more than the iteration before.
A `fence.proxy.async` must stand between copies by threads (`cp.async`) and a `wgmma`, which reads through another
proxy.

Limits: the check does not track which bytes an instruction reads. It finds a wait in the wrong iteration. It finds a
wait for the wrong one of two operands in one iteration only if the number of waits differs. It does not check whether a
copy overwrites data that is still to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gflow.dialects.records import record

#: visits of a loop's body: later iterations start with the groups that earlier ones left
_ITERATIONS = 3

_LABEL = re.compile(r"^\s*(\$\w+):")
_ENDS = re.compile(r"^\s*(?:ret|exit|trap)\b")
_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")

#: patterns of lines by their effect; the first match counts
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
    """The effect of a PTX line. number: its line number. count: groups that may still be in flight after it."""

    number: int
    kind: str
    text: str
    count: int = 0


@dataclass
class _Block:
    """A basic block. jump: the label that it branches to. falls: whether control may continue at the next block."""

    label: str = ""
    lines: list[_Line] = field(default_factory=list)
    jump: str = ""
    falls: bool = True


@dataclass
class _Stream:
    """Counts of groups or phases: started, waited for by this thread, waited for by all threads. used: already read."""

    made: int = 0
    waited: int = 0
    shown: int = 0
    used: int = 0


def unawaited(ptx: str) -> list[str]:
    """The reads of shared memory in a kernel's PTX whose copies may not have completed, each as its line and number."""
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
    """The basic blocks of the text. A block begins at a label or after a branch."""
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
    """The successors of a block."""
    to = [m for m, b in enumerate(blocks) if b.label and b.label == blocks[n].jump]
    return [*to, n + 1] if blocks[n].falls and n + 1 < len(blocks) else to


def _order(after: Sequence[Sequence[int]]) -> list[int]:
    """The blocks in reverse postorder."""
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
    """The blocks of each innermost loop, by its header."""
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
    """The state of the walk, and the early reads found so far."""

    def __init__(self) -> None:
        self.groups, self.phases = _Stream(), _Stream()
        self.unfenced = False
        self.found: list[str] = []

    def straight(self, lines: Sequence[_Line]) -> None:
        """Visit lines outside of loops: a read needs at least one group that was waited for."""
        for line in lines:
            self.step(line)
            for s in (self.groups, self.phases):
                if line.kind in _READS and s.made > s.used and s.shown <= s.used:
                    self.say(line)
        self.settle()

    def loop(self, body: Sequence[_Line]) -> None:
        """Visit a loop's body `_ITERATIONS` times."""
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
        """Drop the groups that have been waited for completely: they are not read again."""
        for s in (self.groups, self.phases):
            if s.waited == s.made:
                s.used = s.shown = s.made

    def say(self, line: _Line, what: str = "reads copies that were not awaited") -> None:
        self.found.append(f"line {line.number}: {what}: {line.text}")
