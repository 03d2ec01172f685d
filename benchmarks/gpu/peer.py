"""A process that takes steps of a model by one peer: `python -m benchmarks.gpu.peer OPTIONS`; see `children`.

A process for each, so that memory is that peer's own, and what crashes takes nothing with it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch

from benchmarks.gpu.children import answer
from benchmarks.gpu.setting import Setting, setting_of
from benchmarks.gpu.workloads import WIDE, Step, make_step

#: steps whose losses are compared, the first included
LOSSES = 4


class Peer:
    """`prepare`: the first call, losses, what is compared, peak memory. `sample`: milliseconds of a step. `profile`:
    microseconds of its kernels."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.setting = setting_of(options)
        self.step: Step
        self.repeat = 1

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "prepare":
            return self.prepare(request["save"])
        if request["do"] == "profile":
            return {"kernels": kernel_times(self.setting, self.step)}
        return {"ms": self.setting.milliseconds(self.step.run, self.repeat)}

    def prepare(self, save: str) -> dict[str, Any]:
        """Take the first steps. save: the file for what is compared after the first one."""
        if self.options["peer"] != "exact":
            return self.begin(self.options["peer"], save)
        try:
            return self.begin("exact", save)
        except torch.OutOfMemoryError:
            pass  # outside of the handler nothing holds on to the tensors of the step
        gc.collect()
        torch.cuda.empty_cache()
        return self.begin("float32", save)

    def begin(self, peer: str, save: str) -> dict[str, Any]:
        options = self.options
        self.step = make_step(self.setting, options["model"], options["mode"], peer)
        self.setting.sync()
        begin = time.perf_counter()
        losses = [self.step.run()]
        self.setting.sync()
        seconds = time.perf_counter() - begin
        torch.save([t.detach().cpu() for t in self.step.compared()], save)
        for _ in range(LOSSES - 1):
            losses.append(self.step.run())
        found = {"losses": [float(loss) for loss in losses], "first_call_s": seconds}
        if peer not in WIDE:
            found |= peak_memory(self.setting, self.step)
            self.repeat = self.setting.repeats(self.step.run)
        return {**found, "ran": self.step.ran()}


def peak_memory(setting: Setting, step: Step) -> dict[str, float]:
    """MiB at the peak of two steps: what PyTorch's allocator has reserved, and what of it was in use. Nothing off
    the GPU. What the first calls needed besides (races, compilers' trials) is given back before."""
    if setting.where.type != "cuda":
        return {}
    gc.collect()
    setting.sync()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step.run()
    setting.sync()
    return {
        "peak_reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        "peak_allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
    }


#: steps that are profiled, and kernels that are listed, those that take longest first
_PROFILED, _LISTED = 3, 150


def kernel_times(setting: Setting, step: Step) -> dict[str, Any]:
    """Launches in a step and microseconds in all, by kernel, as PyTorch's profiler has them."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(_PROFILED):
            step.run()
        setting.sync()
    found = {
        e.key[:120]: [round(e.count / _PROFILED, 2), round(e.device_time_total / _PROFILED, 1)]
        for e in profile.key_averages()
        if e.device_time_total
    }
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:_LISTED])


if __name__ == "__main__":
    answer(Peer(json.loads(sys.argv[1])).handle)
