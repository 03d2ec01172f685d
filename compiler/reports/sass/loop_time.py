"""The time of a loop iteration in machine code: the demand on each pipe, and a simulation of the blocks that share a
multiprocessor.

    tensor 512, issue 596, special 544, memory 164  →  cycles 730

The sum of each pipe is a lower bound. The simulation adds waits: each quarter issues one instruction per cycle; warps
issue in order, after the stall counts and barriers in the code; products of a warp group go to a queue; a barrier waits
for all warps of a block.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gflow.compiler.targets import Device
from gflow.compiler.targets.pipes import Pipes, clock
from gflow.dialects.records import record

from .instructions import Instruction, is_product
from .work import QUARTERED, Work, work_of

#: iterations of the fastest block before the timed ones, which fill the pipeline, and timed iterations of a block
_BEFORE, _TIMED = 8, 8
#: cycles after issue until an instruction has read its operands
_READ = 10
_LAST = re.compile(r"(0x[0-9a-f]+)\s*$")


@record
class LoopTime:
    """Cycles of a multiprocessor for one iteration of one block.

    pipes: the busy cycles of each pipe; "issue" is the number of instructions divided by the quarters. cycles: of the
    simulation, with `blocks` resident blocks. instructions: those of one warp.
    """

    pipes: dict[str, float]
    cycles: float
    instructions: int
    blocks: int

    @property
    def tensor(self) -> float:
        """Busy cycles of the tensor cores per iteration."""
        return self.pipes.get("tensor", 0.0)

    @property
    def bound(self) -> str:
        """The name of the busiest pipe."""
        return max(self.pipes, key=lambda name: self.pipes[name])


def loop_time(
    body: Sequence[Instruction],
    warps: int,
    blocks: int,
    device: Device,
    pipes: Pipes,
    bulk: int = 0,
) -> LoopTime:
    """The modelled time of an iteration, in cycles.

    Args:
        body: the instructions of an iteration (`Code.body`).
        warps: warps per block.
        blocks: resident blocks of the multiprocessor.
        bulk: bytes that a block loads by bulk copies in an iteration; the instructions do not hold this number.
    """
    products = any(is_product(i) for i in body)
    everyone = pipes.cache if products else device.bandwidth / clock(device, pipes)
    rate = everyone / device.multiprocessors  # bytes a cycle
    works = [work_of(i, pipes) for i in body]
    sums: dict[str, float] = {"issue": len(body) * warps / pipes.quarters}
    for work in works:
        if work.pipe:
            shares = pipes.quarters if work.pipe in QUARTERED else 1
            cycles = work.bytes / rate if work.pipe == "memory" else work.cycles / shares
            sums[work.pipe] = sums.get(work.pipe, 0.0) + cycles * warps
    if bulk:
        sums["memory"] = sums.get("memory", 0.0) + bulk / rate
    machine = _Machine(pipes, rate, "cache" if products else "memory", list(body), works)
    found = max(machine.run(warps, blocks), *sums.values())
    return LoopTime(sums, found, len(body), blocks)


@dataclass
class _Warp:
    """A warp in the simulation.

    number: its position in the block. at: the index of its next instruction. free: the times at which the six barriers
    are released. products, copies: the completion times of groups in flight."""

    block: int
    number: int
    ready: float
    at: int = 0
    turn: int = 0
    free: list[float] = field(default_factory=lambda: [0.0] * 6)
    products: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    copied: float = 0.0


@dataclass
class _Machine:
    """A multiprocessor that runs a loop. rate: bytes per cycle from memory. source: the latency key of loads."""

    pipes: Pipes
    rate: float
    source: str
    body: list[Instruction]
    works: list[Work]

    def run(self, warps: int, blocks: int) -> float:
        """Cycles per iteration and block, while all blocks run. Older blocks issue first, so they are not equally fast.

        Time ends after as many instructions as `_TIMED` iterations of all blocks have; no block stops before.
        """
        quarters = self.pipes.quarters
        self.issue = [0.0] * quarters
        self.busy = {(pipe, q): 0.0 for pipe in QUARTERED for q in range(quarters)}
        self.busy |= {("shared", 0): 0.0, ("memory", 0): 0.0}
        self.waiting: dict[int, list[_Warp]] = {}
        apart = len(self.body) * warps / quarters  # blocks begin one after the other
        queue = [
            (b * apart, b * warps + w, _Warp(b, w, b * apart))
            for b in range(blocks)
            for w in range(warps)
        ]
        heapq.heapify(queue)
        filling, begin, left = True, 0.0, _TIMED * len(self.body) * warps * blocks
        while True:
            now, order, warp = heapq.heappop(queue)
            at = self._earliest(warp)
            if at > now:
                heapq.heappush(queue, (at, order, warp))
                continue
            for freed in self._issue(warp, now, warps):
                filling = filling and freed.turn < _BEFORE
                heapq.heappush(queue, (freed.ready, freed.block * warps + freed.number, freed))
            if filling:
                begin = now
                continue
            left -= 1
            if not left:
                return (now - begin) / (_TIMED * blocks)

    def _key(self, warp: _Warp) -> tuple[str, int]:
        pipe = self.works[warp.at].pipe
        return pipe, warp.number % self.pipes.quarters if pipe in QUARTERED else 0

    def _earliest(self, warp: _Warp) -> float:
        """The first cycle at which a warp's next instruction can issue."""
        i, work = self.body[warp.at], self.works[warp.at]
        at = max(warp.ready, self.issue[warp.number % self.pipes.quarters])
        for n in i.waits:
            at = max(at, warp.free[n])
        if work.pipe and work.pipe != "memory" and not _queued(i):
            at = max(at, self.busy[self._key(warp)])
        if i.kind in ("DEPBAR", "WARPGROUP") and "LE" in i.modifiers:
            groups = warp.products if "gsb" in i.operands else warp.copies
            left = int(found[1], 16) if (found := _LAST.search(i.operands)) else 0
            if len(groups) > left:
                at = max(at, groups[len(groups) - left - 1])
        return at

    def _issue(self, warp: _Warp, now: float, warps: int) -> list[_Warp]:
        """Issue the next instruction of a warp. Returns the warps that can continue."""
        i, work = self.body[warp.at], self.works[warp.at]
        self.issue[warp.number % self.pipes.quarters] = now + 1
        done = now + self.pipes.latencies.get(work.late, 0)
        if work.pipe == "memory":
            key = ("memory", 0)
            self.busy[key] = max(self.busy[key], now) + work.bytes / self.rate
            done = self.busy[key] + self.pipes.latencies[self.source]
            if i.kind == "LDGSTS":
                warp.copied = done
        elif work.pipe:
            key = self._key(warp)
            self.busy[key] = max(self.busy[key], now) + work.cycles
            done = self.busy[key] + self.pipes.latencies.get(work.late, 0)
        if i.kind == "LDGDEPBAR":
            warp.copies.append(warp.copied)
        if _queued(i) and "gsb0" in i.operands:
            warp.products.append(done + self.pipes.latencies["fence"])
        if i.result is not None:
            warp.free[i.result] = done
        if i.read is not None:
            warp.free[i.read] = now + _READ
        warp.ready = now + i.stall
        warp.at += 1
        if warp.at == len(self.body):
            warp.at, warp.turn = 0, warp.turn + 1
        if i.kind != "BAR" or "ARV" in i.modifiers:
            return [warp]
        arrived = self.waiting.setdefault(warp.block, [])
        arrived.append(warp)
        if len(arrived) < warps:
            return []
        del self.waiting[warp.block]
        for one in arrived:
            one.ready = now + self.pipes.latencies["barrier"]
        return arrived


def _queued(i: Instruction) -> bool:
    """Whether a product is asynchronous: the warp continues while it runs."""
    return i.kind.endswith("GMMA")
