"""Where the GPU check runs, and its clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

#: a sample lasts about this long, so that a launch's own time does not show
_SAMPLE_MS = 2.0


@dataclass(frozen=True)
class Setting:
    """where: the device that tensors lie on. small: tiny sizes. rounds: samples of each peer.

    target: of compilation only, where there is no device: inputs have no contents then.
    """

    where: torch.device
    small: bool
    rounds: int = 15
    target: str = ""

    @property
    def stand_in(self) -> bool:
        """Triton's interpreter works in a GPU's place."""
        return self.where.type != "cuda" and not self.target

    def plain(self) -> dict[str, Any]:
        """As data, for another process."""
        return {"where": str(self.where), "small": self.small, "rounds": self.rounds}

    def size(self, real: int, tiny: int) -> int:
        """A size of the work, or a tiny one."""
        return tiny if self.small else real

    def generator(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.where).manual_seed(seed)

    def normal(
        self, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0
    ) -> torch.Tensor:
        """A tensor of random numbers, or of none where nothing is computed."""
        if self.target:
            return torch.empty(shape, dtype=dtype)
        random = self.generator(seed + sum(shape))
        return torch.randn(shape, generator=random, device=self.where).to(dtype)

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

    def repeats(self, run: Callable[[], Any]) -> int:
        """How many runs in a row make a sample; they have warmed up after this."""
        for _ in range(1 if self.stand_in else 3):
            run()
        self.sync()
        once = self.milliseconds(run)
        return 1 if self.stand_in else max(1, min(100, round(_SAMPLE_MS / max(once, 1e-6))))

    def interleaved(
        self, peers: Mapping[str, Callable[[], Any]], rounds: int = 0
    ) -> dict[str, list[float]]:
        """Milliseconds of each peer, sampled in turns; all have run before the first sample."""
        repeats = {name: self.repeats(run) for name, run in peers.items()}
        samples: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(2 if self.stand_in else rounds or self.rounds):
            for name, run in peers.items():
                samples[name].append(self.milliseconds(run, repeats[name]))
        return samples


def setting_of(plain: Mapping[str, Any]) -> Setting:
    """The setting of another process, from its `plain()`."""
    return Setting(torch.device(plain["where"]), plain["small"], plain["rounds"])


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in samples.items() if values}


def best_ratio(samples: Mapping[str, list[float]], name: str, peers: list[str]) -> float | None:
    """The fastest peer's median over that of `name`: above 1, `name` is faster. None without peers."""
    found = medians(samples)
    others = [found[p] for p in peers if p in found]
    return min(others) / found[name] if others and name in found else None
