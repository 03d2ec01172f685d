"""The GPU check's command line: parts one after the other, each row on disk as soon as it is there."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.gpu import ahead, carried, report, sanitizer, steps
from benchmarks.gpu.calls import CALLS, NAMES, TOOLS, Part, parts_of
from benchmarks.gpu.children import Answering, ChildFailure, Late, error_of, python_child
from benchmarks.gpu.record import Record, Row
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.setting import Setting
from benchmarks.harness import machine
from benchmarks.harness.measure import ROOT, note

#: seconds at the end that no row may take: to write what was found, and to end
_ENDING = 5.0
#: seconds that a tool of the sanitizer needs to say anything
_LEAST_SANITIZER = 30.0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu",
        description="gflow on a GPU: numerics, bandwidth, products, whole steps beside torch.compile.",
        epilog="calls: " + "; ".join(f"{name}: {call.what}" for name, call in CALLS.items()),
    )
    add = parser.add_argument
    add("--call", default="all", choices=tuple(CALLS), help="a prepared order and its budget")
    add("--sections", default="", help=f"of {', '.join(NAMES)}, separated by commas")
    add(
        "--only",
        action="append",
        default=[],
        help="rows whose names have this part; given several times, any of them",
    )
    add(
        "--minutes",
        type=float,
        help="what is not done by then is ended, and listed (default: the call's)",
    )
    add("--spent", type=float, default=0.0, help="seconds of it that are gone already")
    add("--rounds", type=int, default=15, help="samples of each peer, taken in turn")
    add("--small", action="store_true", help="tiny sizes on the GPU")
    add("--in-process", action="store_true", help="rows in this process: for tools that look at it")
    add("--stand-in", action="store_true", help="without a GPU: tiny sizes on Triton's interpreter")
    add("--compile", metavar="TARGET", help="run nothing: compile what the rows need, for cuda:90")
    add(
        "--keep",
        type=Path,
        help="the folder that gets what was compiled and chosen here, for the next run",
    )
    add(
        "--json",
        type=Path,
        action="append",
        default=[],
        help="a file for everything; given several times, each (default: benchmarks/results/gpu_….json)",
    )
    args = parser.parse_args(argv)
    args.sections = tuple(filter(None, args.sections.split(",")))
    for name in args.sections:
        if name not in NAMES:
            parser.error(f"no section {name!r}; there are {', '.join(NAMES)}")
    if not args.stand_in and not args.compile and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; --stand-in runs this check at tiny sizes without one")
    return args


def main(argv: list[str]) -> int:
    """Exit status 1 if a result was wrong or a row failed; missed bars of speed are not errors."""
    begin = time.monotonic()
    args = parse(argv)
    parts = parts_of(args.call, args.sections)
    if args.compile:
        return ahead.compile_rows(args.compile, parts, args.only)
    if args.stand_in:
        os.environ["GFLOW_CUDA_DEVICE"] = "interpreter"
    where = torch.device("cpu" if args.stand_in else "cuda")
    setting = Setting(where, args.stand_in or args.small, args.rounds)
    minutes = CALLS[args.call].minutes if args.minutes is None else args.minutes
    found: dict[str, Any] = {
        "machine": machine.describe(),
        "device": _device(where),
        "call": args.call,
        "budget_s": 60 * minutes,
        "carried": carried.count(),
        "seconds": {},
    }
    record = Record(found, args.json or [_default_path(found)], report.text)
    rows: InProcess | InChildren = (InProcess if args.in_process else InChildren)(setting)
    run = Run(record, begin - args.spent + 60 * minutes - _ENDING, rows, tuple(args.only))
    if args.keep:
        run.keep = lambda: carried.pack(args.keep)
    try:
        parts_run(run, setting, parts)
    finally:
        rows.end()
    record.write()
    print(report.text(found))
    return int(any(row["ok"] is False for row in record.rows()))


class Rows(Protocol):
    """What makes rows of `sections`."""

    def ask(self, section: str, name: str, seconds: float) -> Row:
        """A row. Raises `ChildFailure` where there is none, `Late` where there is none in time."""
        ...

    def end(self) -> None:
        """Give back what it holds of the device."""
        ...


@dataclass
class Run:
    """deadline: by `clock`. only: parts of names; all rows without. keep: called after each part."""

    record: Record
    deadline: float
    rows: Rows
    only: Sequence[str] = ()
    clock: Callable[[], float] = time.monotonic
    keep: Callable[[], object] = lambda: None

    def left(self) -> float:
        return self.deadline - self.clock()


def parts_run(run: Run, setting: Setting, parts: Iterable[Part]) -> None:
    """Run parts in order, each until its share of the time that is left is gone."""
    done: set[str] = set()
    for part in parts:
        begin = run.clock()
        deadline = begin + part.share * max(0.0, run.left())
        note(f"== {part.section} {' '.join(part.only)}, {deadline - begin:.0f} s")
        for name in names_of(setting, part.section):
            label = f"{part.section} {name}"
            given = not part.only or name.startswith(part.only)
            if not given or label in done or not _wanted(run, label):
                continue
            if run.clock() >= deadline:
                run.record.skip(label)
                continue
            if row_run(run, setting, part, name, deadline):
                done.add(label)
            else:
                run.record.skip(label)
        seconds = run.record.found.setdefault("seconds", {})
        seconds[part.section] = round(seconds.get(part.section, 0.0) + run.clock() - begin, 1)
        late = dict.fromkeys(run.record.left_out)
        run.record.left_out[:] = [label for label in late if label not in done]
        run.record.write()
        run.rows.end()
        run.keep()


def _wanted(run: Run, label: str) -> bool:
    return not run.only or any(part in label for part in run.only)


def names_of(setting: Setting, section: str) -> list[str]:
    """A section's rows."""
    if section == "steps":
        return list(steps.names(setting))
    if section == "sanitizer":
        return list(TOOLS)
    return [name for name, _ in SECTIONS[section].rows(setting)]


def row_run(run: Run, setting: Setting, part: Part, name: str, deadline: float) -> bool:
    """Make one row, and have it written; whether it was done in time."""
    section = part.section

    def put(row: Row) -> None:
        run.record.put(section, row)
        note(f"  {name}: {'ok' if row['ok'] else row.get('error', '-')}")

    if section == "steps":
        try:
            steps.measure(setting, name, deadline, put, clock=run.clock, waves=part.waves)
        except Exception as error:  # the next row may do
            put({"name": name, "ok": False, "error": error_of(error)})
        return True
    left = deadline - run.clock()
    if section == "sanitizer":
        # the second tool needs its time, too
        seconds = left if name == TOOLS[-1] else left / 2
        if not setting.stand_in and seconds < _LEAST_SANITIZER:
            return False
        put({"name": name, **sanitizer.run(setting, name, seconds)})
        return True
    most = SECTIONS[section].seconds
    try:
        put({"name": name, **run.rows.ask(section, name, min(most, left))})
    except Late:
        if left < most:
            put({"name": name, "ok": None, "error": "not done when time was up"})
            return False
        put({"name": name, "ok": False, "error": f"no answer within {most:.0f} s"})
    except ChildFailure as error:
        put({"name": name, "ok": False, "error": str(error)})
    return True


class InProcess:
    """Rows made in this process; they take the time that they take."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def ask(self, section: str, name: str, seconds: float) -> Row:
        """Raises `ChildFailure` for an error of the row."""
        try:
            return dict(SECTIONS[section].rows(self.setting))[name]()
        except Exception as error:
            raise ChildFailure(error_of(error)) from error

    def end(self) -> None:
        if self.setting.where.type == "cuda":
            torch.cuda.empty_cache()


class InChildren:
    """Rows made by a process that goes on from row to row, until one ends it."""

    def __init__(
        self,
        setting: Setting,
        start: Callable[[str, Mapping[str, Any]], Answering] = python_child,
    ) -> None:
        self.setting, self.start = setting, start
        self._child: Answering | None = None
        self._section = ""

    def ask(self, section: str, name: str, seconds: float) -> Row:
        """Raises `ChildFailure` where the process gives no row; the next one gets a new process."""
        if self._child is None or self._section != section:
            self.end()
            options = {"section": section, **self.setting.plain()}
            self._child, self._section = self.start("benchmarks.gpu.worker", options), section
        try:
            return self._child.ask({"row": name}, seconds)
        except ChildFailure:
            self.end()  # after an error of the device nothing else would run there
            raise

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _device(where: torch.device) -> dict[str, Any]:
    if where.type != "cuda":
        return {"name": "Triton's interpreter"}
    properties = torch.cuda.get_device_properties(where)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def _default_path(found: dict[str, Any]) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in found["device"]["name"].lower())
    date = found["machine"]["date"][:10]
    return ROOT / "benchmarks" / "results" / f"gpu_{name}_{found['call']}_{date}.json"
