"""Kernels from MLIR text to an engine of LLVM, by upstream passes."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gflow.dialects.program import KERNEL_LOWERING
from gflow.dialects.program.processor import AMX_LINE, BF16_LINE, NO_BF16_LINE, amx, bf16, without

if TYPE_CHECKING:
    from gflow.dialects.mlir import ExecutionEngine, ir

#: the function of an engine that writes the addresses of its kernels into an array
ADDRESSES = "gflow_addresses"
#: features of functions by what a level has beside x86-64's; the first two are those of every level
_FEATURES = {
    "": '#llvm.target_features<["+sse4.2", "+popcnt"]>',
    "bf16": '#llvm.target_features<["+sse4.2", "+popcnt", "+avx512bf16"]>',
    "amx": '#llvm.target_features<["+sse4.2", "+popcnt", "+amx-tile", "+amx-bf16"]>',
}
#: uses of a context before it is replaced: a context keeps every constant and name that was parsed in it
_MOST_USES = 16


@cache
def _torch_library() -> ctypes.CDLL:
    """PyTorch's CPU library.

    Looking a symbol up in it also searches what it is linked to, so the OpenMP functions are
    those of PyTorch's own runtime. A process may hold several (scikit-learn ships one, too), and
    two thread pools that spin against each other are a hundred times slower than one.

    Raises:
        RuntimeError: PyTorch's library is not found.
    """
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libtorch_cpu.*")):
        return ctypes.CDLL(str(path))
    raise RuntimeError(
        f"PyTorch's CPU library was not found in {folder}; is PyTorch installed from a wheel?"
    )


@cache
def _torch_symbol(name: str) -> int | None:
    """The address of a C function in PyTorch's library or in the libraries that it is linked to; None if not found."""
    try:
        return ctypes.cast(getattr(_torch_library(), name), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def symbol_address(name: str) -> int | None:
    """The address of a C function that kernels call: PyTorch's, or libm's, which LLVM finds itself."""
    found = _torch_symbol(name)
    if found is None:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
            found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return found


#: more than any object file has
_ROOM = 1 << 24


def object_of(engine: ExecutionEngine) -> bytes:
    """The object file that an engine has compiled. It goes through memory: LLVM ends the process where a file
    cannot be written, as on a full disk.

    Raises:
        OSError: the process may not write a file of this size (`ulimit -f`), not even in memory.
    """
    import resource  # Linux only, as files in memory are

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < _ROOM:
        raise OSError(
            errno.EFBIG, f"machine code is not written: files may have {most} bytes (ulimit -f)"
        )
    with os.fdopen(os.memfd_create("kernels.o"), "r+b") as file:
        engine.dump_to_object_file(f"/proc/self/fd/{file.fileno()}")
        return file.read()


def engine_of(
    kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str, dump: bool
) -> ExecutionEngine:
    """Compile kernels. isa: a level of instruction sets, or "" for this processor's. dump: keep the object file."""
    # only here: machine code that is at hand is loaded without LLVM
    from gflow.dialects.mlir import PassManager, execution_engine, ir

    with _contexts.one():
        text = "\n".join(
            [
                "module {",
                *declarations.values(),
                *map(partial(_usable, isa=isa), kernels.values()),
                *_helpers(kernels.values()),
                _address_table(list(kernels)),
                "}",
            ]
        )
        module = ir.Module.parse(text)
        module.operation.walk(partial(_mark, isa=isa), ir.WalkOrder.PRE_ORDER)
        manager = PassManager.parse(KERNEL_LOWERING)
        manager.enable_verifier(False)
        manager.run(module.operation)
        # vectors and unrolling are in the text, so more than level 1 only takes longer;
        # an engine that is given libraries would take half a second: LLVM lists their symbols
        engine = execution_engine(module, opt_level=1, dump=dump)
    for name in declarations:
        address = _torch_symbol(name)
        if address is not None:
            engine.raw_register_runtime(name, ctypes.c_void_p(address))
    return engine


class _Contexts:
    """Contexts that kernels are parsed in, each by one thread at a time. A first call compiles some times: races of
    products, of attentions, the program."""

    def __init__(self) -> None:
        self._idle: list[tuple[ir.Context, int]] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A section in an idle context, or a new one."""
        # only here: machine code that is at hand is loaded without LLVM
        from gflow.dialects.mlir import ir

        try:
            context, uses = self._idle.pop()
        except IndexError:
            # dialects are loaded as kernels name them: all of them take as long as a small kernel
            context, uses = ir.Context(load_on_create_dialects=()), 0
            # kernels are lowered on one thread anyway, and a process that is forked would wait for its parent's threads
            context.enable_multithreading(False)
        with context:
            yield
        if uses + 1 < _MOST_USES:
            self._idle.append((context, uses + 1))

    def release(self) -> None:
        """Let go of the contexts that are idle."""
        self._idle.clear()


_contexts = _Contexts()
release_contexts = _contexts.release


def _usable(kernel: str, isa: str) -> str:
    """A kernel's text with the instruction sets of a level; see `AMX_LINE`."""
    for mark, usable in ((AMX_LINE, amx), (BF16_LINE, bf16)):
        if mark in kernel and not usable(isa):
            lines = kernel.split("\n")
            condition = f"arith.constant true {mark}"
            kernel = "\n".join(
                line.replace("true", "false") if condition in line else line
                for line in lines
                if mark not in line or condition in line
            )
    return without(kernel, NO_BF16_LINE) if bf16(isa) else kernel


def _mark(op: ir.Operation, isa: str) -> ir.WalkResult:
    """Add to a function's op what LLVM is to know of it. (Walking gives ops as they are; going over a block would
    import the Python classes of LLVM's dialect, which take as long as a kernel to compile.)"""
    # only here: machine code that is at hand is loaded without LLVM
    from gflow.dialects.mlir import ir

    if op.name != "llvm.func":
        return ir.WalkResult.ADVANCE
    # the engine adds a wrapper to every function, and LLVM would copy small kernels into theirs
    op.attributes["no_inline"] = ir.UnitAttr.get()
    if isa:
        cpu, _, more = isa.partition("+")
        op.attributes["target_cpu"] = ir.StringAttr.get(cpu)
        # the engine's own are this processor's
        op.attributes["target_features"] = ir.Attribute.parse(_FEATURES[more])
    return ir.WalkResult.SKIP


#: A double as the nearest half, which x86 has no instruction for. Kernels have none of these conversions; LLVM makes
#: one where a double gives the sign of a half (`copysign`), and calls it by this name of its run-time library. The
#: float32 on the way has its last bit set where it is not exact, so that the second rounding sees no tie.
_TRUNCDFHF2 = """  llvm.func @__truncdfhf2(%x: f64) -> f16 {
    %one = arith.constant 1 : i32
    %near = arith.truncf %x : f64 to f32
    %back = arith.extf %near : f32 to f64
    %a = math.absf %x : f64
    %b = math.absf %back : f64
    %differs = arith.cmpf one, %a, %b : f64
    %above = arith.cmpf ogt, %b, %a : f64
    %bits = arith.bitcast %near : f32 to i32
    %down = arith.subi %bits, %one : i32
    %below = arith.select %above, %down, %bits : i32
    %odd = arith.ori %below, %one : i32
    %chosen = arith.select %differs, %odd, %bits : i32
    %single = arith.bitcast %chosen : i32 to f32
    %half = arith.truncf %single : f32 to f16
    llvm.return %half : f16
  }"""


def _helpers(kernels: Iterable[str]) -> list[str]:
    """Functions that LLVM may call by itself in kernels with these texts."""
    needed = any("f64" in text and "f16" in text for text in kernels)
    return [_TRUNCDFHF2] if needed else []


def _address_table(names: list[str]) -> str:
    """A function that writes the address of each kernel into an array.

    Looking up one symbol is cheaper than looking up many.
    """
    lines = ["  llvm.func @gflow_addresses(%out: !llvm.ptr) {"]
    for i, name in enumerate(names):
        lines.append(f"    %f{i} = llvm.mlir.addressof @{name} : !llvm.ptr")
        lines.append(f"    %p{i} = llvm.getelementptr %out[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
        lines.append(f"    llvm.store %f{i}, %p{i} : !llvm.ptr, !llvm.ptr")
    return "\n".join([*lines, "    llvm.return", "  }"])
