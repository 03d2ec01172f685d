"""Runs on a GPU what tests run on Triton's interpreter: a plugin of pytest, `-p gpu_mirror`.

The interpreter's device keeps its tensors on the CPU. With this plugin it copies the memory of each launch to the GPU,
launches the compiled kernel there, and copies the memory back. Around each copy lie bytes that the kernel must leave as
they are. So every test of kernels is a test of machine code on the hardware, too.

GPU_MIRROR=compile: no GPU is needed; kernels are compiled for compute capability 9.0 into the cache, and interpreted.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
from gflow.dialects.program import DeviceCode, TritonKernel
from gflow.runtime.cuda import interpreter
from gflow.runtime.cuda.device import Launch
from gflow.runtime.cuda.interpreter import InterpreterDevice
from gflow.runtime.device import DeviceError, Span
from gflow.runtime.stored import cache

#: bytes around a copy, and what is in them
_GUARD, _PATTERN = 512, 0x5B
#: addresses keep their remainder by this
_ALIGNMENT = 512
_ARCH = 90
_interpreted = InterpreterDevice._run


def code_of(kernel: TritonKernel, config: int) -> DeviceCode:
    """The machine code of a kernel, compiled now or taken from the cache."""
    store = (cache.read, cache.write) if cache.directory() is not None else None
    (found,) = compile_kernels([(kernel, config)], _ARCH, store=store).values()
    return found


def regions(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """The memory of spans, with those that overlap as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted((s.begin, s.begin + s.size) for s in spans if s.size):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


class _Copy:
    """A region of the CPU's memory on the device. first: the address of its copy."""

    def __init__(self, begin: int, end: int, where: torch.device) -> None:
        self.begin, self.size, self.where = begin, end - begin, where
        self.memory = torch.full(
            (self.size + 2 * _GUARD + _ALIGNMENT,), _PATTERN, dtype=torch.uint8, device=where
        )
        least = self.memory.data_ptr() + _GUARD
        self.first = least + (begin - least) % _ALIGNMENT
        self.offset = self.first - self.memory.data_ptr()
        self.memory[self.offset : self.offset + self.size].copy_(self._host())

    def _host(self) -> torch.Tensor:
        return torch.frombuffer(
            (ctypes.c_uint8 * self.size).from_address(self.begin), dtype=torch.uint8
        )

    def back(self) -> None:
        """Copy the region back. Raises `DeviceError` where bytes around it were written."""
        memory = self.memory.cpu()
        self._host().copy_(memory[self.offset : self.offset + self.size])
        around = torch.cat([memory[: self.offset], memory[self.offset + self.size :]])
        if not bool((around == _PATTERN).all()):
            raise DeviceError(f"memory around {self.size} bytes was written")


def run(device: InterpreterDevice, launch: Launch) -> None:
    """Launch a kernel on the GPU, with copies of the CPU's memory."""
    from gflow.runtime.cuda.gpu import gpu

    kernel, step = launch.kernel, launch.step
    on = gpu(torch.device("cuda"))
    code = code_of(kernel, step.config)
    whole = regions(device.spans)
    copies: dict[int, _Copy] = {}
    words = launch.words.copy()
    for n, (name, kind) in enumerate(kernel.parameters.items()):
        if not kind.startswith("*"):
            continue
        address = int(words[n])
        found = [(b, e) for b, e in whole if b <= address < e]
        if not found:
            if not address or any(address in (s.begin, s.begin + s.size) for s in device.spans):
                continue  # an empty tensor, or the end of one: nothing is read there
            raise DeviceError(
                f"{kernel.name}: {name} is at {address:#x}, which belongs to no tensor"
            )
        ((begin, end),) = found
        if begin not in copies:
            copies[begin] = _Copy(begin, end, on.where)
        words[n] = address - begin + copies[begin].first
    scratch = torch.empty(
        max(1, code.scratch * math.prod(step.grid)), dtype=torch.uint8, device=on.where
    )
    words[-2] = scratch.data_ptr() if code.scratch else 0
    pointers = (ctypes.c_void_p * len(words))(
        *(words.ctypes.data + 8 * n for n in range(len(words)))
    )
    here = replace(
        launch, words=words, function=on.load(kernel, step.config, code), parameters=ctypes.addressof(pointers)
    )  # fmt: skip
    try:
        with on.current():
            on.placed([Span("arena", 0, c.first, c.size) for c in copies.values()])
            on.launch(here)
            on.synchronize()
        for copy in copies.values():
            copy.back()
    except DeviceError as error:
        raise DeviceError(f"{kernel.name} ({kernel.configs[step.config]}): {error}") from error


def run_if_compiled(device: InterpreterDevice, launch: Launch) -> None:
    """Compile a kernel into the cache, then interpret it."""
    code_of(launch.kernel, launch.step.config)
    _interpreted(device, launch)


def install() -> None:
    """Let the interpreter's device launch on the GPU."""
    chosen: Any = run_if_compiled if os.environ.get("GPU_MIRROR") == "compile" else run
    torch.backends.cudnn.allow_tf32 = False  # the interpreter's products are exact
    interpreter.InterpreterDevice._run = chosen  # type: ignore[method-assign]


install()
