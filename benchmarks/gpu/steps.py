"""Training steps and inference of whole models, beside eager and torch.compile: one model at a time.

Each peer is a process of its own (`peer`). They prepare (compile, race, take the first steps) in waves: what
measures on the GPU has it alone, what mostly compiles goes side by side. "exact" is eager in float64, which is not
timed; "own kernels" is gflow without libraries in its races. After each wave all peers that are ready are
timed in turns while nobody compiles, and the row is written, so that a slow or broken peer costs its own numbers only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.calls import WAVES, Waves
from benchmarks.gpu.children import Answering, ChildFailure, python_child
from benchmarks.gpu.record import Row
from benchmarks.gpu.rows import exactness
from benchmarks.gpu.setting import Setting, best_ratio, medians
from benchmarks.gpu.workloads import MODES, models

WAVES_STAND_IN = (("exact", "eager"), ("gflow",))
#: seconds that a sample may take
_SAMPLE_S = 60.0
#: seconds before the deadline at which peers that are not ready are ended, so that the others are still timed
_TIMED_S = 15.0
#: seconds without which no peer is profiled
_LEAST_PROFILE_S = 5.0
#: how far losses of a few steps may be from eager's, relative, where rounding has grown
_LOSS = 2e-2

Start = Callable[[str], Answering]


@dataclass
class Peers:
    """The processes of a model, and what they have said."""

    start: Start
    clock: Callable[[], float]
    folder: Path
    running: dict[str, Answering] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)

    def prepare(self, wave: Sequence[str], deadline: float) -> None:
        """Have a wave's peers prepared, side by side."""
        for peer in wave:
            self.running[peer] = self.start(peer)

        def one(peer: str) -> None:
            left = deadline - self.clock()
            request = {"do": "prepare", "save": str(self.file(peer))}
            try:
                self.said[peer] = self.running[peer].ask(request, max(0.0, left))
            except ChildFailure as error:
                self.drop(peer, str(error))

        with ThreadPoolExecutor(len(wave)) as pool:
            list(pool.map(one, wave))
        if "exact" in wave and "exact" in self.running:
            self.running.pop("exact").end()  # its memory is for the others

    def file(self, peer: str) -> Path:
        """Where a peer's results lie."""
        return self.folder / f"{peer.replace(' ', '_')}.pt"

    def drop(self, peer: str, why: str) -> None:
        """Give up a peer."""
        self.failed[peer] = why
        self.running.pop(peer).end()

    def time(self, rounds: int, deadline: float) -> None:
        """Take samples of all that are ready, in turns; fewer rounds where time runs out. They replace those of
        before, which fewer peers took."""
        found: dict[str, list[float]] = {peer: [] for peer in self.running}
        for number in range(rounds):
            if number and self.clock() >= deadline:
                break
            for peer in list(self.running):
                try:
                    answer = self.running[peer].ask({"do": "sample"}, _SAMPLE_S)
                except ChildFailure as error:
                    self.drop(peer, f"while it was timed: {error}")
                else:
                    found[peer].append(answer["ms"])
        self.times |= {peer: values for peer, values in found.items() if values}

    def profile(self, deadline: float) -> None:
        """Have the kernels of each peer timed that is ready and has not been, as far as there is time."""
        for peer in [p for p in self.running if p not in self.kernels]:
            left = deadline - self.clock()
            if left < _LEAST_PROFILE_S:
                return
            try:
                self.kernels[peer] = self.running[peer].ask({"do": "profile"}, left)["kernels"]
            except ChildFailure as error:
                self.drop(peer, f"while it was profiled: {error}")

    def end(self) -> None:
        for peer in list(self.running):
            self.running.pop(peer).end()


def names(setting: Setting) -> Iterator[str]:
    """The rows that there are."""
    yield from (f"{model} {mode}" for model in models(setting) for mode in MODES)


def measure(
    setting: Setting,
    name: str,
    deadline: float,
    put: Callable[[Row], None],
    start: Start | None = None,
    clock: Callable[[], float] = time.monotonic,
    waves: Waves = WAVES,
) -> None:
    """One row, given to `put` after each wave.

    Args:
        name: a model's and a mode's.
        deadline: by `clock`; a peer that is not done then is ended.
        start: begins the process of a peer.
    """
    model, mode = name.split(" ")

    def process(peer: str) -> Answering:
        options = {"model": model, "mode": mode, "peer": peer, **setting.plain()}
        return python_child("benchmarks.gpu.peer", options)

    if setting.stand_in:
        waves = WAVES_STAND_IN
    rounds = 2 if setting.stand_in else setting.rounds
    with tempfile.TemporaryDirectory(prefix="gflow-steps-") as folder:
        peers = Peers(start or process, clock, Path(folder))
        try:
            for number, wave in enumerate(waves):
                ready = deadline - _TIMED_S
                if number and clock() >= ready:
                    peers.failed |= dict.fromkeys(wave, "not begun: out of time")
                else:
                    peers.prepare(wave, ready)
                    peers.time(rounds, deadline)
                put({"name": name, **row_of(peers)})
            if setting.where.type == "cuda":
                peers.profile(deadline)
                put({"name": name, **row_of(peers)})
        finally:
            peers.end()


def row_of(peers: Peers) -> Row:
    """What is known so far. `ok`: gflow's errors are as eager's; None where it was not done in time."""
    said, found = peers.said, medians(peers.times)
    checked: dict[str, Any] = (
        check(peers)
        if "gflow" in said
        else {"ok": None, "error": peers.failed.get("gflow", "not yet")}
    )
    if "gflow" in peers.failed and not peers.failed["gflow"].startswith("not "):
        checked["ok"] = False
    each = {key: {p: s[key] for p, s in said.items() if key in s} for key in _EACH}
    compiled = [p for p in peers.times if p in ("compile", "max-autotune")]

    def ratio(others: list[str]) -> float | None:
        return best_ratio(peers.times, "gflow", others)

    return {
        **checked,
        "ms": found,
        "ratio_to_eager": ratio(["eager"]),
        "ratio_to_compile": ratio(compiled),
        "ratio_to_max_autotune": ratio(["max-autotune"]),
        **each,
        "failed": dict(peers.failed),
        "samples_ms": peers.times,
        **({"kernels_us": peers.kernels} if peers.kernels else {}),
    }


#: what peers say of themselves that goes into the row
_EACH = ("first_call_s", "peak_reserved_mib", "peak_allocated_mib", "losses", "ran")
#: relative L2 distance from float64 that nothing may have: an eager that is wrong is no measure
_MOST = 0.1
#: relative L2 distance to eager, where there is nothing exact, by bytes of an element
_TO_EAGER = {2: 5e-2, 4: 1e-3}


def check(peers: Peers) -> dict[str, Any]:
    """gflow's results beside eager's: the gradients of the first step (as the optimizer's first moments have them),
    or the output, by their relative L2 distance from float64's; and the losses of the steps.

    Without eager there is nothing to compare with, and `ok` is None.
    """
    if "eager" not in peers.said:
        return {"ok": None, "error": f"no eager to compare with: {peers.failed.get('eager', '')}"}
    values = {p: torch.load(peers.file(p)) for p in peers.said}
    mine, eager = peers.said["gflow"]["losses"], peers.said["eager"]["losses"]
    losses = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(mine, eager, strict=True))
    close = losses <= _LOSS  # false for NaN
    unit = max((torch.finfo(t.dtype).eps for t in values["eager"]), default=0.0)
    if "exact" in values:
        exact = values.pop("exact")
        errors = {p: exactness.relative_l2(found, exact) for p, found in values.items()}
        bar = max(min(exactness.TIMES * errors["eager"], _MOST), exactness.UNITS * unit)
        kind = peers.said["exact"]["ran"]["kind"]
    else:
        errors = {p: exactness.relative_l2(found, values["eager"]) for p, found in values.items()}
        bar = _TO_EAGER[max(t.element_size() for t in values["eager"])]
        kind = "eager"
    ok = close and errors["gflow"] <= bar
    why = "" if ok else f"off by {errors['gflow']:.1e} ({bar:.1e} may be), losses by {losses:.1e}"
    return {
        "ok": ok,
        "exact": kind,
        "errors": errors,
        "losses_to_eager": losses,
        **({"error": why} if why else {}),
    }
