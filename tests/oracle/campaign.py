"""Many seeds in child processes.

A child grows and judges one seed after the other and says what came of it on a pipe. The parent starts
another where one dies or takes too long, and puts that down to the seed that it was at. How long a seed takes
is counted in processor time of the child, its threads and its children, so that a campaign may run beside other
work; wall time has a limit of its own for a child that only waits. Every result is a line of `results.jsonl`; a
run that is started again goes on where the last one ended. A find is also a file: the program as JSON, and a
script that shows it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import multiprocessing as mp
import os
import re
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .program import Program, source, to_json

#: seconds of processor time that a seed may take; of wall time, for one that waits for ever; seeds of one child
LIMIT, WALL, BATCH = 180, 3600, 100
#: units of the times in /proc per second
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Result:
    """What came of one seed. seconds: of processor time. signature: what finds of one cause have in common."""

    seed: int
    status: str
    detail: str = ""
    where: str = ""
    mode: str = ""
    calls: int = 0
    seconds: float = 0.0
    signature: str = ""


FINDS = ("mismatch", "crash", "missed", "died", "hang")


def signature(status: str, detail: str, program: Program | None) -> str:
    """Kind, exception or not, and the calls of a (minimized) program."""
    what = re.sub(r"[\d.'\"\[\]()-]+", "", detail.split(":")[0])[:40]
    if status != "mismatch":
        what = re.sub(r"[\d'\"\[\](),-]+", "", detail)[:90]
    if status in ("crash", "died") or program is None:
        return f"{status} {what}"
    return f"{status} {' '.join(sorted({c.target for c in program.calls}))}" + (
        f" {what}" if status == "missed" else ""
    )


def _same_kind(program: Program, status: str, detail: str) -> bool:
    from .judge import judge

    found = judge(program)
    if found.status != status:
        return False
    return status != "crash" or found.detail[:30] == detail[:30]


#: the result of one seed in this process, and where it is a find what shows it, as text; given a seed and seconds
#: to minimize a find in
Judge = Callable[[int, float], "tuple[Result, str | None]"]


def judged(seed: int, shrink: float) -> tuple[Result, str | None]:
    """A random program; JSON of it where it is a find."""
    from .judge import judge
    from .minimize import minimize
    from .run import program_of

    start = time.process_time()
    program = program_of(seed)
    verdict = judge(program)
    base = Result(
        seed,
        verdict.status,
        verdict.detail,
        verdict.where,
        program.settings.mode,
        len(program.calls),
    )
    if verdict.status not in FINDS:
        return replace(base, seconds=round(time.process_time() - start, 3)), None
    if shrink:
        program = minimize(program, lambda p: _same_kind(p, verdict.status, verdict.detail), shrink)
        verdict = judge(program)
    name = signature(verdict.status, verdict.detail, program)
    seconds = round(time.process_time() - start, 3)
    return replace(base, detail=verdict.detail, signature=name, seconds=seconds), to_json(program)


def _child(pipe: Connection, seeds: list[int], shrink: float, judge: Judge) -> None:
    import torch

    torch.set_num_threads(2)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for seed in seeds:
        pipe.send(("at", seed))
        try:
            result, found = judge(seed, shrink)
        except Exception as error:  # the oracle itself: a find too, of ours
            result, found = Result(seed, "oracle", f"{type(error).__name__}: {error}"[:400]), None
        pipe.send(("done", result, found))
        if seed % 20 == 0:
            gc.collect()
    pipe.send(("end", None))


def processor_time(pid: int) -> float:
    """Seconds that a process has computed, with its threads and with its children, those that ended included. What
    has ended meanwhile counts as 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime
    return own + sum(map(processor_time, children))


@dataclass
class _Worker:
    """A child. at: the seed that it is at, or -1; since: when it began with that (wall time, its processor time)."""

    process: Any
    pipe: Connection
    left: list[int]
    at: int = -1
    since: tuple[float, float] = (0.0, 0.0)

    def clocks(self) -> tuple[float, float]:
        return time.monotonic(), processor_time(self.process.pid)

    def is_late(self, limit: float, wall: float) -> bool:
        if self.at < 0:
            return False
        now = self.clocks()
        return now[0] - self.since[0] > wall or now[1] - self.since[1] > limit


def _start(context: Any, seeds: list[int], shrink: float, judge: Judge) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, seeds, shrink, judge), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, list(seeds))


def campaign(
    seeds: Iterable[int],
    jobs: int,
    shrink: float = 20,
    limit: float = LIMIT,
    minutes: float = 1e9,
    judge: Judge = judged,
    wall: float = WALL,
) -> Iterator[tuple[Result, str | None]]:
    """(result, what shows it where it is a find) of each seed, as they come.

    shrink: seconds of processor time to minimize a find in; limit: that a seed may take besides; wall: seconds of
    wall time that it may take in all.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "gflow", "oracle.judge", "oracle.growth"])
    todo, end = iter(seeds), time.monotonic() + 60 * minutes
    workers: list[_Worker] = []

    def more(left: list[int]) -> None:
        batch = left or [s for _, s in zip(range(BATCH), todo)]
        if batch:
            workers.append(_start(context, batch, shrink, judge))

    for _ in range(jobs):
        more([])
    while workers:
        if time.monotonic() > end:
            for w in workers:
                w.process.kill()
            return
        wait([w.pipe for w in workers], timeout=1)
        for w in list(workers):
            alive = (
                w.process.is_alive()
            )  # before what it said is read: all of what an ended one said is
            ended, results = _drain(w)
            yield from results
            late = alive and not ended and w.is_late(limit + 2 * shrink, wall)
            if not ended and alive and not late:
                continue
            workers.remove(w)
            if late:
                w.process.kill()
            w.process.join()
            if not ended:
                code = w.process.exitcode
                status = "hang" if late else "died"
                if w.at >= 0:
                    yield Result(w.at, status, f"exit {code}", signature=f"{status} {code}"), None
                    w.left = [s for s in w.left if s != w.at]
                if w.left:
                    more(w.left)
                    continue
            more([])


def _drain(w: _Worker) -> tuple[bool, list[tuple[Result, str | None]]]:
    results: list[tuple[Result, str | None]] = []
    try:
        while w.pipe.poll():
            message = w.pipe.recv()
            if message[0] == "at":
                w.at, w.since = message[1], w.clocks()
            elif message[0] == "done":
                results.append((message[1], message[2]))
                w.left = [s for s in w.left if s != message[1].seed]
                w.at = -1
            else:
                return True, results
    except (EOFError, OSError):
        pass
    return False, results


class Record:
    """A folder with `results.jsonl` and the finds.

    kind: how the name of a find's file ends. name: what a seed stands for.
    """

    def __init__(self, folder: Path, kind: str = "json", name: str = "programs") -> None:
        self.folder, self.file, self.kind = folder, folder / "results.jsonl", kind
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self.results: list[Result] = []
        if self.file.exists():
            text = self.file.read_text()
            if text and not text.endswith("\n"):
                with self.file.open("a") as out:
                    out.write("\n")
            for line in text.splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a line cut off by a kill
                    self.results.append(Result(**json.loads(line)))
        self.done = {r.seed for r in self.results}

    def add(self, result: Result, program: str | None) -> None:
        if program is not None:
            (self.folder / f"{result.seed}.{self.kind}").write_text(program)
        self.results.append(result)
        with self.file.open("a") as out:
            out.write(json.dumps(vars(result)) + "\n")

    def summary(self) -> str:
        """Counts by status, refusals by reason, finds by signature."""
        results = self.results
        count = collections.Counter(r.status for r in results)
        lines = [f"{len(results)} {self.name}, {sum(r.calls for r in results)} calls: " + ", ".join(
            f"{n} {s}" for s, n in count.most_common())]  # fmt: skip
        lines.append("by entry point: " + ", ".join(
            f"{n} {m}" for m, n in collections.Counter(r.mode for r in results if r.mode).most_common()))  # fmt: skip
        refused = collections.Counter(_reason(r.detail) for r in results if r.status == "refused")
        if refused:
            share = sum(refused.values()) / len(results)
            lines += [
                f"refused: {share:.1%}",
                *(f"  {n} × {reason}" for reason, n in refused.most_common(25)),
            ]
        finds: dict[str, list[Result]] = collections.defaultdict(list)
        for r in results:
            if r.status in (*FINDS, "oracle"):
                finds[r.signature or f"{r.status} {r.detail[:80]}"].append(r)
        for name, found in sorted(finds.items(), key=lambda kv: -len(kv[1])):
            seeds = " ".join(str(r.seed) for r in found[:6])
            lines.append(f"{len(found)} × {name}\n      seeds {seeds}: {found[0].detail[:220]}")
        return "\n".join(lines)

    def table(self) -> dict[str, Any]:
        """The counts, and what was found and refused, for `benchmarks/results`."""
        count = collections.Counter
        finds: dict[str, list[int]] = collections.defaultdict(list)
        for r in self.results:
            if r.status in (*FINDS, "oracle"):
                finds[r.signature or f"{r.status} {r.detail[:80]}"].append(r.seed)
        seeds = [r.seed for r in self.results]
        refused = count(_reason(r.detail) for r in self.results if r.status == "refused")
        return {
            "programs": len(seeds),
            "calls": sum(r.calls for r in self.results),
            "seeds": [min(seeds, default=0), max(seeds, default=0)],
            "by status": dict(count(r.status for r in self.results).most_common()),
            "by entry point": dict(count(r.mode for r in self.results if r.mode).most_common()),
            "finds": dict(finds),
            "refused": dict(refused.most_common()),
        }


def _reason(detail: str) -> str:
    text = re.sub(r"\S*(<program[^>]*>|/\S+\.py):?\d*:?", "", detail)
    return re.sub(r"'[^']*'|\d+", "…", text)[:140]


def parser_of(doc: str, out: str, what: str) -> argparse.ArgumentParser:
    """The options that the fuzzers' command lines have in common. what: a seed stands for, in the plural."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--count", type=int, default=1000, help=what)
    add("--seed", type=int, default=0, help="the first seed")
    add("--jobs", type=int, default=1)
    add("--minutes", type=float, default=1e9)
    add("--out", type=Path, default=Path(out))
    add(
        "--shrink",
        type=float,
        default=20,
        help="seconds of processor time to minimize a find; 0: don't",
    )
    add("--summary", action="store_true", help="only print what --out holds")
    add("--table", type=Path, help="write the counts and the finds here, as JSON")
    return parser


def run(options: argparse.Namespace, record: Record, judge: Judge) -> int:
    """Judge the seeds that `options` asks for and that `record` lacks, and tell. Returns the exit status."""
    if not options.summary:
        wanted = range(options.seed, options.seed + options.count)
        seeds = [s for s in wanted if s not in record.done]
        start, told = time.monotonic(), 0.0
        found = campaign(seeds, options.jobs, options.shrink, minutes=options.minutes, judge=judge)
        for done, (result, shown) in enumerate(found, 1):
            record.add(result, shown)
            if result.status in FINDS or time.monotonic() - told > 60:
                told = time.monotonic()
                rate = done / (told - start)
                print(f"[{done}/{len(seeds)}, {rate:.2f}/s] {result.seed} {result.status} {result.signature} "
                      f"{result.detail[:160]}", flush=True)  # fmt: skip
    print(record.summary())
    if options.table:
        options.table.write_text(json.dumps(record.table(), indent=1) + "\n")
    return 3 if any(r.status in FINDS for r in record.results) else 0


def script(program: Program) -> str:
    """A stand-alone script of a program: what it is, and its verdict."""
    doc = source(program).replace('"""', "'''")
    settings = str(program.settings)
    return (
        f'"""A find. Run it from a checkout: PYTHONPATH=.:tests python FILE\n\n{doc}\n{settings}\n"""\n\n'
        "from oracle.judge import judge\nfrom oracle.program import from_json\n\n"
        f"print(judge(from_json(r'''{to_json(program)}''')))\n"
    )
