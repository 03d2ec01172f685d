"""Compilation of Triton kernels to machine code in parallel, with a cache on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import metadata
from typing import Any

from gflow.compiler.ir.errors import CompileError
from gflow.compiler.targets import target_of_arch
from gflow.dialects.program import DeviceCode, TritonKernel

from .process_pool import PATIENCE, Answer, shared_pool

#: a kernel, and the number of one of its configurations
Job = tuple[TritonKernel, int]
#: reads and writes compiled kernels by kind and name
Store = tuple[Callable[[str, str], bytes | None], Callable[[str, str, bytes], None]]
#: the version of the cache's format
_VERSION = 2
_KIND = "device_code"
#: the most kernels that an error lists
_SHOWN = 3


class KernelError(CompileError):
    """A kernel does not compile."""


def key_of(kernel: str, config: int) -> str:
    """The key of a kernel with a configuration in `Program.device_code`."""
    return f"{kernel}/{config}"


def compile_kernels(
    jobs: Iterable[Job],
    arch: int | str,
    *,
    store: Store | None = None,
    tell: Callable[[str, str], None] = lambda name, detail: None,
    labels: Mapping[str, str] | None = None,
    failed: Callable[[TritonKernel, int, str], None] | None = None,
    patience: float = PATIENCE,
) -> dict[str, DeviceCode]:
    """The machine code of kernels with configurations, by `key_of`.

    Args:
        jobs: the kernels and the numbers of configurations.
        arch: as in the table of devices: 90 for compute capability 9.0, "gfx942".
        store: reads and writes bytes by kind and name; None: nothing is kept.
        tell: called with "triton" and the progress.
        labels: the op that each kernel comes from, for errors.
        failed: called with a kernel that does not compile, its configuration and the reason, instead of an error.
        patience: the most seconds that one kernel may take.

    Raises:
        KernelError: a kernel does not compile.
    """
    found: dict[str, DeviceCode] = {}
    todo: list[tuple[Job, str]] = []
    for job in jobs:
        name = _digest(*job, arch) if store else ""
        code = _stored(store, name) if store else None
        if code is None:
            todo.append((job, name))
        else:
            found[key_of(job[0].name, job[1])] = code
    problems: list[str] = []
    finished = 0

    def done(n: int, answer: Answer) -> None:
        (kernel, config), name = todo[n]
        nonlocal finished
        finished += 1
        tell("triton", f"{finished}/{len(todo)} {kernel.name}")
        if "error" in answer:
            message = _message(kernel, config, arch, answer, (labels or {}).get(kernel.name, ""))
            if failed is None:
                problems.append(message)
            else:
                failed(kernel, config, message)
            return
        answer["instructions"] = tuple(answer["instructions"])
        code = found[key_of(kernel.name, config)] = DeviceCode(**answer)
        if store:
            store[1](_KIND, name, json.dumps(asdict(code)).encode())

    if todo and not triton_version():
        raise KernelError(
            "kernels for GPUs are compiled by Triton, which is not installed: install gflow-compiler[gpu]"
        )
    if todo:
        requests = [_request(*job, arch) for job, _ in todo]
        shared_pool().run(requests, done, patience)
    if problems:
        more = [f"{len(problems) - _SHOWN} more kernels do not compile"] * (len(problems) > _SHOWN)
        raise KernelError("\n\n".join([*problems[:_SHOWN], *more]))
    return found


def assemblies(jobs: Sequence[Job], arch: int | str, patience: float = PATIENCE) -> list[str]:
    """The assembly of kernels (PTX for NVIDIA's GPUs).

    Raises:
        KernelError: a kernel does not compile.
    """
    found = [""] * len(jobs)

    def done(n: int, answer: Answer) -> None:
        if "error" in answer:
            raise KernelError(_message(*jobs[n], arch, answer, ""))
        found[n] = str(answer["assembly"])

    shared_pool().run([{**_request(*job, arch), "assembly": True} for job in jobs], done, patience)
    return found


def _request(kernel: TritonKernel, config: int, arch: int | str) -> dict[str, Any]:
    chosen, device = kernel.configs[config], target_of_arch(arch).device
    return {
        "name": kernel.name,
        "source": kernel.source,
        "parameters": kernel.parameters,
        "constants": {**kernel.constants, **chosen.constants},
        "multiples": kernel.multiples,
        "num_warps": chosen.num_warps,
        "num_stages": chosen.num_stages,
        "target": [device.kind, arch, device.warp],
    }


def _digest(kernel: TritonKernel, config: int, arch: int | str) -> str:
    """A key of everything that a kernel's machine code depends on."""
    request = {**_request(kernel, config, arch), "source": without_comments(kernel.source)}
    parts = [_VERSION, triton_version(), request]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def without_comments(source: str) -> str:
    """The source of a kernel without the IR that it comes from: equal kernels of other programs have other comments."""
    return "\n".join(line for line in source.splitlines() if not line.startswith("#"))


def _stored(store: Store, name: str) -> DeviceCode | None:
    data = store[0](_KIND, name)
    if data is None:
        return None
    try:
        values = json.loads(data)
        values["instructions"] = tuple(values["instructions"])
        return DeviceCode(**values)
    except (ValueError, TypeError, KeyError):
        return None


@cache
def triton_version() -> str:
    """The version of the installed Triton; "" if there is none."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


def _message(kernel: TritonKernel, config: int, arch: int | str, answer: Answer, label: str) -> str:
    chosen = kernel.configs[config]
    lines = [
        f"the Triton kernel {kernel.name} does not compile for {target_of_arch(arch)}, "
        f"with {chosen.constants}, {chosen.num_warps} warps, {chosen.num_stages} stages"
    ]
    if label:
        lines.append(f"  it is of {label}")
    at, texts = answer.get("line", 0), kernel.source.split("\n")
    if 0 < at <= len(texts):
        lines.append(f"  line {at}: {texts[at - 1].strip()}")
    return "\n".join([*lines, *(f"  {line}" for line in answer["error"].split("\n"))])
