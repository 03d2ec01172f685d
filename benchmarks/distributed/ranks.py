"""The process of one rank of a way: it answers requests, a line of JSON each, until there is none.

{"do": "steps", "count": n}          by clock, seconds of each of n steps, which all ranks begin together
{"do": "peak"}                       bytes of this process's own memory, the most since the last such request,
                                     less what it held before the model was made
{"do": "links", "sizes": [bytes]}    by clock, seconds of Gloo's collectives, by kind and size
{"do": "rates"}                      rates of computations, by a profile of the program
{"do": "program"}                    bytes that the rank sends in a step, and the arena
{"do": "predict", "factors": …, "network": …}   the simulated step
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.distributed.clocks import CLOCKS, timed
from benchmarks.distributed.links import measured
from benchmarks.distributed.ways import ALONE, WAYS, Size, Step, import_libraries, make_step
from examples import peak_memory


def serve(rank: int, ranks: int, store: str, name: str, size: Size) -> None:
    """Answer requests of standard input, one after the other."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else writes to standard output is no answer
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    step, before = None, 0
    if name != "links":
        who, how = {**WAYS, **ALONE}[name]
        import_libraries(who)
        peak_memory.release_unused()
        before = peak_memory.resident()
        peak_memory.reset_peak()
        step = make_step(who, how, size, rank, ranks)
        for _ in range(2):
            step.run()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(request, step, before)), file=answers, flush=True)
    os._exit(0)  # the others may have ended


def _answer(request: dict[str, Any], step: Step | None, before: int) -> Any:
    what = request["do"]
    if what == "links":
        return measured(request["sizes"])
    assert step is not None
    if what == "steps":
        turns = [timed(step.run) for _ in range(request["count"])]
        return {clock: [turn[clock] for turn in turns] for clock in CLOCKS}
    if what == "peak":
        held = peak_memory.peak() - before
        peak_memory.release_unused()
        peak_memory.reset_peak()
        return held
    # only here: eager's processes do not load it
    from benchmarks.distributed import prediction

    if what == "rates":
        dist.barrier()
        return prediction.rates(step)
    if what == "program":
        return prediction.facts(step.graph)
    return prediction.predicted(step.graph, request["factors"], request["network"])
