"""Two clocks: time that passes, and the processor time of all threads of a process (Gloo's, too).

On a machine whose cores do other work, a step takes longer by the first one, and hardly by the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

CLOCKS = {"time": time.perf_counter, "processor": time.process_time}


def timed(run: Callable[[], object]) -> dict[str, float]:
    """By clock, seconds of something that all ranks begin together."""
    dist.barrier()
    before = {name: clock() for name, clock in CLOCKS.items()}
    run()
    return {name: clock() - before[name] for name, clock in CLOCKS.items()}
