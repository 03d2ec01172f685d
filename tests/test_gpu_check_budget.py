"""The GPU check's order, its budget, and what it does with peers that are slow, hang or crash."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import report, steps
from benchmarks.gpu.calls import CALLS, HELD, STARTS, Part
from benchmarks.gpu.children import Child, ChildFailure, Late
from benchmarks.gpu.record import Record, Row
from benchmarks.gpu.setting import Setting

GPU = Setting(torch.device("cuda"), False, rounds=3)
#: the module; the package has a function of this name
run_module = sys.modules["benchmarks.gpu.main"]


@dataclass
class Clock:
    """Time that passes when somebody sleeps."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stub:
    """A peer that sleeps: `first` seconds before its first answer, `each` before others. crash: the number of
    the request that it ends at."""

    clock: Clock
    log: list[str]
    name: str
    first: float = 10.0
    each: float = 0.01
    crash: int = -1
    asked: int = 0
    ended: bool = False

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert not self.ended
        number, self.asked = self.asked, self.asked + 1
        self.log.append(f"{self.name} {request.get('do', '')}".strip())
        sleep = self.each if number else self.first
        self.clock.now += min(sleep, seconds)
        if sleep > seconds:
            self.end()
            raise Late("not done in time")
        if number == self.crash:
            self.end()
            raise ChildFailure("ended by signal 11")
        if request.get("do") == "prepare":
            torch.save([torch.ones(3)], request["save"])
            kind = "float64" if self.name == "exact" else self.name
            return {"losses": [2.0, 1.0], "first_call_s": self.first, "ran": {"kind": kind}}
        if request.get("do") == "profile":
            return {"kernels": {"add": [1.0, 2.5]}}
        return {"ms": 1.0, "ok": True}

    def end(self) -> None:
        self.ended = True


@dataclass
class Bench:
    """A model's peers as stubs, and the rows that are put."""

    clock: Clock = field(default_factory=Clock)
    log: list[str] = field(default_factory=list)
    stubs: dict[str, Stub] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def run(self, deadline: float, **options: dict[str, Any]) -> Row:
        def start(peer: str) -> Stub:
            self.stubs[peer] = Stub(
                self.clock, self.log, peer, **options.get(peer.replace("-", "_"), {})
            )
            return self.stubs[peer]

        put: Callable[[Row], None] = lambda row: self.rows.append(json.loads(json.dumps(row)))  # noqa: E731
        steps.measure(GPU, "gpt2 training", deadline, put, start, self.clock)
        assert all(stub.ended for stub in self.stubs.values())
        return self.rows[-1]


def test_peers_come_in_waves_and_are_timed_in_turns() -> None:
    bench = Bench()
    row = bench.run(1000.0)
    waves = [sorted(n for n in bench.log if n == f"{p} prepare") for p in ("gflow", "max-autotune")]
    assert all(waves)
    position = {line: n for n, line in reversed(list(enumerate(bench.log)))}
    assert position["eager prepare"] < position["gflow prepare"] < position["max-autotune prepare"]
    assert position["max-autotune prepare"] < position["own kernels prepare"]
    assert "exact sample" not in position  # its memory is given back before others are timed
    peers = ("eager", "gflow", "compile", "max-autotune", "own kernels")
    assert bench.log[-10:-5] == [f"{p} sample" for p in peers]
    assert bench.log[-5:] == [f"{p} profile" for p in peers]
    assert row["kernels_us"] == {p: {"add": [1.0, 2.5]} for p in peers}
    assert [set(r["ms"]) for r in bench.rows] == [
        {"eager"}, {"eager", "gflow"}, {"eager", "gflow", "compile", "max-autotune"},
        {"eager", "gflow", "compile", "max-autotune", "own kernels"},
        {"eager", "gflow", "compile", "max-autotune", "own kernels"},
    ]  # fmt: skip
    assert [r["ok"] for r in bench.rows] == [None, True, True, True, True]
    assert row["ratio_to_max_autotune"] == 1.0
    assert row["exact"] == "float64"


def test_a_slow_peer_costs_its_own_numbers_only() -> None:
    row = Bench().run(300.0, max_autotune={"first": 1000.0})
    assert row["ok"] is True
    assert set(row["ms"]) == {"eager", "gflow", "compile"}
    assert row["failed"]["max-autotune"] == "not done in time"
    assert row["failed"]["own kernels"] == "not begun: out of time"
    # another mode does not take its place
    assert row["ratio_to_max_autotune"] is None
    assert row["ratio_to_compile"] == 1.0


@pytest.mark.parametrize("crash", [0, 2])
def test_a_peer_that_crashes_is_told(crash: int) -> None:
    row = Bench().run(1000.0, compile={"crash": crash})
    assert row["ok"] is True
    assert "signal 11" in row["failed"]["compile"]
    assert {"eager", "gflow", "max-autotune", "own kernels"} <= set(row["ms"])
    row = Bench().run(1000.0, gflow={"crash": 0})
    assert row["ok"] is False
    assert "signal 11" in row["error"]
    assert "max-autotune" in row["ms"]


def test_without_exact_results_eager_is_the_measure() -> None:
    row = Bench().run(1000.0, exact={"crash": 0})
    assert (row["ok"], row["exact"]) == (True, "eager")
    row = Bench().run(1000.0, exact={"crash": 0}, eager={"crash": 0})
    assert row["ok"] is None
    assert "gflow" in row["ms"]


def test_wrong_gradients_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.load
    monkeypatch.setattr(
        steps.torch,
        "load",
        lambda path: [t * (1.2 if path.stem == "gflow" else 1.0) for t in load(path)],
    )
    assert Bench().run(1000.0)["ok"] is False


@dataclass
class StubRows:
    """Rows that take as long as their stub says."""

    clock: Clock
    took: Mapping[str, float]
    files: Callable[[], Any]
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def ask(self, section: str, name: str, seconds: float) -> Row:
        self.seen.append((name, self.files()))
        sleep = self.took.get(name, 1.0)
        self.clock.now += min(sleep, seconds)
        if sleep > seconds:
            raise Late("not done in time")
        if sleep < 0:
            raise ChildFailure("ended by signal 6")
        return {"ok": True, "error_gflow": 0.0, "error_eager": 0.0}

    def end(self) -> None:
        pass


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    names = {"numerics": ["a", "b", "c", "d"], "models": ["e", "f"]}
    monkeypatch.setattr(run_module, "names_of", lambda setting, section: names[section])

    def run(parts: list[Part], deadline: float, **took: float) -> tuple[StubRows, dict[str, Any]]:
        clock, paths = Clock(), [tmp_path / "here" / "x.json", tmp_path / "there" / "x.json"]
        record = Record(
            {"device": {"name": "-"}, "machine": {"date": "", "versions": {}}}, paths, report.text
        )

        def files() -> Any:
            texts = {p.read_text() for p in paths if p.exists()}
            assert len(texts) <= 1
            return (
                {r["name"] for s in json.loads(texts.pop())["sections"].values() for r in s}
                if texts
                else set()
            )

        stub = StubRows(clock, took, files)
        run_module.parts_run(run_module.Run(record, deadline, stub, (), clock), GPU, parts)
        assert all(p.with_suffix(".txt").read_text() for p in paths)
        return stub, json.loads(paths[0].read_text())

    return run


def test_each_row_is_on_disk_before_the_next_begins(rows: Any) -> None:
    stub, found = rows([Part("numerics"), Part("models")], 100.0)
    assert [name for name, _ in stub.seen] == ["a", "b", "c", "d", "e", "f"]
    for n, (_, written) in enumerate(stub.seen):
        assert written == set("abcdef"[:n])
    assert found["left_out"] == []


def test_a_slow_part_takes_its_share_and_no_more(rows: Any) -> None:
    stub, found = rows([Part("numerics", (), 0.5), Part("models")], 60.0, b=1000.0)
    assert [name for name, _ in stub.seen] == ["a", "b", "e", "f"]
    by_name = {r["name"]: r for s in found["sections"].values() for r in s}
    assert by_name["b"]["ok"] is None
    assert by_name["a"]["ok"]
    assert by_name["e"]["ok"]
    assert found["left_out"] == ["numerics b", "numerics c", "numerics d"]
    # a row that hangs while there is time is an error, and the next one runs
    stub, found = rows([Part("numerics")], 1000.0, b=1000.0)
    assert [r["ok"] for r in found["sections"]["numerics"]] == [True, False, True, True]


def test_a_row_that_crashes_is_an_error_of_its_own(rows: Any) -> None:
    _, found = rows([Part("numerics"), Part("models", ("e",))], 100.0, c=-1.0)
    assert [r["ok"] for r in found["sections"]["numerics"]] == [True, True, False, True]
    assert [r["name"] for r in found["sections"]["models"]] == ["e"]


def test_later_parts_take_up_what_was_left(rows: Any) -> None:
    _, found = rows([Part("numerics", (), 0.1), Part("models"), Part("numerics")], 20.0)
    assert [r["name"] for r in found["sections"]["numerics"]] == ["a", "b", "c", "d"]
    assert found["left_out"] == []


def test_calls_are_prepared() -> None:
    assert {"products", "gpt2", "resnet"} < set(CALLS)
    for name in ("products", "gpt2", "resnet"):
        assert CALLS[name].minutes < 9.5
    assert [p.section for p in CALLS["products"].parts] == [
        "contractions",
        "contractions",
        "sanitizer",
    ]
    assert CALLS["gpt2"].parts[0] == Part("steps", ("gpt2 training",))
    assert [p.section for p in CALLS["resnet"].parts][:2] == ["steps", "numerics"]


@dataclass
class SlowRows(StubRows):
    """Rows of twelve seconds each, which are listed."""

    def ask(self, section: str, name: str, seconds: float) -> Row:
        self.seen.append((section, name.split()[0]))
        self.clock.now += min(12.0, seconds)
        if seconds < 12.0:
            raise Late("not done in time")
        return {"ok": True}


def test_the_calls_of_a_short_loan_fit_with_the_most_wanted_rows_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2's peers and all rows as stubs: max-autotune never ends, products are slow. Both calls end in their time,
    and what is late has cost its own numbers only."""
    assert sum(CALLS[c].minutes for c in ("device", "device-rest")) + STARTS <= HELD
    clock = Clock()
    log: list[str] = []
    done: list[tuple[str, Any]] = []
    slow = {"exact": 40.0, "eager": 25.0, "gflow": 90.0, "compile": 70.0, "max-autotune": 1e6}
    measure = steps.measure

    def measured(
        setting: Setting, name: str, deadline: float, put: Any, *, waves: Any, **_: Any
    ) -> None:
        start = lambda peer: Stub(clock, log, peer, slow.get(peer, 60.0), 1.0)  # noqa: E731
        measure(setting, name, deadline, put, start, clock, waves)

    monkeypatch.setattr(steps, "measure", measured)
    for call in ("device", "device-rest"):
        begin = clock()
        record = Record(
            {"device": {"name": "-"}, "machine": {"date": "", "versions": {}}},
            [tmp_path / f"{call}.json"], report.text,
        )  # fmt: skip
        rows = SlowRows(clock, {}, list, done)
        deadline = begin + 60 * CALLS[call].minutes
        run = run_module.Run(record, deadline, rows, (), clock)
        run_module.parts_run(run, GPU, CALLS[call].parts)
        assert clock() <= deadline
    assert clock() <= 60 * (HELD - STARTS)
    row, *others = json.loads((tmp_path / "device.json").read_text())["sections"]["steps"]
    assert row["name"] == "gpt2 training"
    assert {other["name"].split("_")[0] for other in others} <= {"resnet50", "bert training"}
    assert {"eager", "gflow"} <= set(row["ms"])
    assert row["failed"]["max-autotune"] == "not done in time"
    assert (
        len(row["samples_ms"]["compile"]) == GPU.rounds
    )  # max-autotune has not taken the time for that
    rows_of = list(dict.fromkeys(done))
    assert rows_of[:2] == [("contractions", "matmul"), ("contractions", "attention")]
    sections = list(dict.fromkeys(section for section, _ in done))
    assert sections[:3] == ["contractions", "bandwidth", "numerics"]


# processes

STUB = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "crash":
        print("what went wrong", file=sys.stderr, flush=True)
        os.abort()
    time.sleep(request.get("sleep", 0))
    print(json.dumps({"failure": "no"} if request["do"] == "fail" else {"did": request["do"]}), flush=True)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child([sys.executable, "-c", STUB])
    yield made
    made.end()


def test_a_child_answers(child: Child) -> None:
    assert child.ask({"do": "x"}, 60.0) == {"did": "x"}
    with pytest.raises(ChildFailure, match=r"^no$"):
        child.ask({"do": "fail"}, 60.0)
    assert child.ask({"do": "y"}, 60.0) == {"did": "y"}


def test_a_child_that_crashes(child: Child) -> None:
    with pytest.raises(ChildFailure, match=r"ended by signal 6: what went wrong"):
        child.ask({"do": "crash"}, 60.0)
    child.end()


def test_a_child_that_hangs_is_ended(child: Child) -> None:
    begin = time.monotonic()
    with pytest.raises(Late):
        child.ask({"do": "x", "sleep": 1000}, 0.5)
    assert time.monotonic() - begin < 500
    assert child._process.poll() is not None
