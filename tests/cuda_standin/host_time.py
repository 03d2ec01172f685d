"""The host's time of calls on `cuda`, in microseconds: on the stand-in for CUDA, whose launches take none.

    GFLOW_CUDA_PYTHON=/path/to/python scripts/cuda_standin.sh --host-time

All calls are timed in turns, on one thread; of each, the fastest and the median of the rounds are shown. Those of two
versions are comparable if the runs are interleaved.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import gflow as flow

sys.path.insert(0, str(Path(__file__).parents[1]))
from cuda_standin import standin

_ROUNDS, _CALLS = 60, 60


class Relu(flow.nn.Graph):
    """One kernel."""

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Train(flow.nn.Graph):
    """A training step with as many linear layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
        self.model.to("cuda")
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-3))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def calls() -> dict[str, Callable[[], object]]:
    """What is timed."""
    xs = [torch.zeros(64, 64, device="cuda") for _ in range(2)]
    graph, moving, keeping, train = Relu(), Relu(), Relu(), Train(60)
    kept: list[torch.Tensor] = []

    def other_input() -> None:
        xs.reverse()
        moving(xs[0])

    def other_result() -> None:
        kept[:] = [keeping(x)]

    x = xs[0]
    return {
        "eager": lambda: torch.relu(x),
        "a kernel": lambda: graph(x),
        "a kernel, its input moves": other_input,
        "a kernel, its result moves": other_result,
        "training, 486 tensors": lambda: train(x),
    }


def main() -> None:
    """Time all, and print a line for each."""
    torch.set_num_threads(1)
    standin.do_nothing()
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        timed = calls()
        for _ in range(_ROUNDS):
            for name, call in timed.items():
                for _ in range(5):  # the first two compile and capture
                    call()
                start = time.perf_counter()
                for _ in range(_CALLS):
                    call()
                seconds = (time.perf_counter() - start) / _CALLS
                found.setdefault(name, []).append(1e6 * seconds)
    for name, each in found.items():
        print(f"{name:28} {min(each):8.2f} µs at least {statistics.median(each):8.2f} µs median")


if __name__ == "__main__":
    main()
