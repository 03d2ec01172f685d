"""Where and how long the GPU check runs, and its clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

#: a sample lasts about this long, so that a launch's own time does not show
_SAMPLE_MS = 2.0


@dataclass
class Setting:
    """where: the device that tensors lie on. stand_in: Triton's interpreter works in a GPU's place, at tiny
    sizes. deadline: by `time.monotonic`, after which nothing new begins."""

    where: torch.device
    stand_in: bool
    deadline: float
    rounds: int = 15
    only: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)

    def size(self, real: int, tiny: int) -> int:
        """A size of the work, or a tiny one where the interpreter works."""
        return tiny if self.stand_in else real

    def wants(self, name: str) -> bool:
        """Whether to run a row: it was not deselected, and there is time. What time ran out for is noted."""
        if self.only and not any(part in name for part in self.only):
            return False
        if time.monotonic() < self.deadline:
            return True
        self.left_out.append(name)
        return False

    def generator(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.where).manual_seed(seed)

    def sync(self) -> None:
        if self.where.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable[[], Any], repeat: int = 1) -> float:
        """Of one of `repeat` runs in a row, by the device's clock."""
        if self.where.type != "cuda":
            begin = time.perf_counter()
            for _ in range(repeat):
                run()
            return 1e3 * (time.perf_counter() - begin) / repeat
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeat):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / repeat

    def interleaved(
        self, peers: Mapping[str, Callable[[], Any]], rounds: int = 0
    ) -> dict[str, list[float]]:
        """Milliseconds of each peer, sampled in turns; all have run before the first sample."""
        repeats = {}
        for name, run in peers.items():
            for _ in range(1 if self.stand_in else 3):
                run()
            self.sync()
            once = self.milliseconds(run)
            repeats[name] = 1 if self.stand_in else max(1, min(100, round(_SAMPLE_MS / once)))
        samples: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(2 if self.stand_in else rounds or self.rounds):
            for name, run in peers.items():
                samples[name].append(self.milliseconds(run, repeats[name]))
        return samples

    @contextmanager
    def peak_memory(self) -> Iterator[Callable[[], float | None]]:
        """MiB at the peak of what is allocated while the block runs, all of it; None off the GPU."""
        found: list[float | None] = [None]
        on_gpu = self.where.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        yield lambda: found[0]
        if on_gpu:
            torch.cuda.synchronize()
            found[0] = torch.cuda.max_memory_allocated() / 2**20


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in samples.items()}


def best_ratio(samples: Mapping[str, list[float]], name: str, peers: list[str]) -> float | None:
    """The fastest peer's median over that of `name`: above 1, `name` is faster. None without peers."""
    found = medians(samples)
    others = [found[p] for p in peers if p in found]
    return min(others) / found[name] if others and name in found else None


def error_of(error: BaseException) -> str:
    """An error as one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
