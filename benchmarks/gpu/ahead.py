"""Compiles here what rows of the check need on a GPU, into the disk cache; nothing is run.

    python -m benchmarks gpu --call gpt2 --compile cuda:90

A device's short time is then not spent on Triton. Machine code of a kernel has the version of Triton in its name, so
it has to be compiled by the version that the device's machine has; Python's version does not matter, PyTorch's does
as far as it changes what is traced.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.calls import Part
from benchmarks.gpu.graphs import for_setting, graph_of
from benchmarks.gpu.rows import bandwidth, contractions
from benchmarks.gpu.rows.own_kernels import kept_code
from benchmarks.gpu.rows.work import Work
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.workloads import Inference, batch_of, models
from benchmarks.harness.measure import note
from benchmarks.workloads.cuda_steps import trace_of

#: makes a graph and its inputs
Make = Callable[[], tuple[Any, Sequence[torch.Tensor]]]


def compile_rows(target: str, parts: Iterable[Part], only: Sequence[str]) -> int:
    """Compile each configuration that a race over the rows' launches would try. Exit status 1 if a row cannot be
    compiled."""
    if kept_code() is None:
        print("error: GFLOW_CACHE is 0, so nothing would be kept", file=sys.stderr)
        return 2
    setting = Setting(torch.device("cpu"), False, target=target)
    status = 0
    done: set[str] = set()
    for part in parts:
        for name, make in _graphs(setting, part.section):
            label = f"{part.section} {name}"
            given = not part.only or name.startswith(part.only)
            if not given or label in done or (only and not any(o in label for o in only)):
                continue
            done.add(label)
            begin = time.perf_counter()
            try:
                count = compile_graph(*make(), target)
            except Exception as error:  # a row that cannot be compiled is told, and the next one is
                note(f"  {label}: {type(error).__name__}: {error}")
                status = 1
            else:
                note(
                    f"  {label}: {count} kernels with their configurations, {time.perf_counter() - begin:.1f} s"
                )
    return status


def compile_graph(graph: Any, inputs: Sequence[torch.Tensor], target: str) -> int:
    """Compile what races over a graph's launches, and over its groups of kernels, need; how many there are."""
    from gflow.compiler.driver.unfused import groups_of, split_program
    from gflow.compiler.emit.triton.toolchain.autotune import contenders
    from gflow.compiler.emit.triton.toolchain.compile import compile_kernels, key_of
    from gflow.compiler.targets import parse_target
    from gflow.execution.executor import program_of

    options = replace(graph.config.resolved(), target=target)
    program = program_of(trace_of(graph, inputs), options)
    split = (split_program(group, options) for group in groups_of(program))
    jobs = {key_of(k.name, c): (k, c) for each in (program, *split) for k, c in contenders(each)}
    found = compile_kernels(
        jobs.values(), parse_target(target).arch, store=kept_code(),
        failed=lambda kernel, config, why: None,  # a race leaves those out
    )  # fmt: skip
    return len(found)


def _graphs(setting: Setting, section: str) -> Iterator[tuple[str, Make]]:
    """What rows of a section run, by name. Rows of numerics are small, and compile on the device."""
    if section == "contractions":
        for name, work in contractions.works(setting):
            yield name, partial(_of_work, setting, work)
    elif section == "bandwidth":
        for kernel in bandwidth.KERNELS:
            yield kernel.name, partial(_of_work, setting, partial(_kernel, setting, kernel))
    elif section == "steps":
        for name in models(setting):
            yield f"{name} training", partial(_of_model, setting, name, training=True)
            yield f"{name} inference", partial(_of_model, setting, name, training=False)


def _kernel(setting: Setting, kernel: bandwidth.Kernel) -> Work:
    return bandwidth.work_of(setting, kernel)[0]


def _of_work(setting: Setting, make: Callable[[], Work]) -> tuple[Any, Sequence[torch.Tensor]]:
    work = make()
    return graph_of(setting, work.function), work.inputs


def _of_model(setting: Setting, name: str, *, training: bool) -> tuple[Any, Sequence[torch.Tensor]]:
    model = models(setting)[name]
    with torch.device("meta"):
        module = model.make()
    module = module.to(model.dtype).to_empty(device="cpu").train(training)
    if any(p.dim() == 4 for p in module.parameters()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = batch_of(setting, model, module)
    graph = model.graph(module) if training else Inference(model, module)
    return for_setting(setting, graph), batch if training else batch[:-1]
