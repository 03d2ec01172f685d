"""Kernels from MLIR text to machine code, by upstream passes and LLVM's JIT.

Kernel functions are cached by their text for the life of the process: graphs, signatures and layers that
need the same code share it.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import threading
from collections.abc import Mapping
from functools import cache

from gflow.dialects.mlir import ExecutionEngine, PassManager, ir

#: upstream passes from `scf`/`arith`/`vector`/`math` to LLVM
LOWERING = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,"
    "convert-to-llvm,reconcile-unrealized-casts)"
)

_addresses: dict[str, int] = {}
_engines: list[ExecutionEngine] = []
_lock = threading.Lock()


@cache
def libraries() -> tuple[str, ...]:
    """The libraries that kernels call into: PyTorch's own OpenMP runtime (so threads are shared) and its BLAS."""
    import torch

    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    gomp = _loaded_library("libgomp") or _loaded_library("libomp") or _loaded_library("libiomp5")
    cpu = glob.glob(os.path.join(folder, "libtorch_cpu.*"))
    return tuple(path for path in (gomp, *cpu) if path)


def _loaded_library(name: str) -> str | None:
    """The path of a library that this process has loaded, by the start of its file name."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip().rpartition(" ")[2]
                if os.path.basename(path).startswith(name):
                    return path
    except OSError:
        return None
    return None


@cache
def symbol_address(name: str) -> int | None:
    """The address of a C function of these libraries; None where they don't define it (libm's, which LLVM finds itself)."""
    for path in libraries():
        try:
            return ctypes.cast(getattr(ctypes.CDLL(path), name), ctypes.c_void_p).value
        except (AttributeError, OSError):
            continue
    return None


def key_of(text: str) -> str:
    """The name under which a kernel's code is cached."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def compile_kernels(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> dict[str, int]:
    """Addresses of kernel functions.

    Args:
        kernels: function name to the text of an `llvm.func` of that name; a name determines its text
            (it ends in a hash of it), so a name already compiled isn't compiled again.
        declarations: what they call: function name to its `llvm.func` text.
    """
    with _lock:
        missing = {name: text for name, text in kernels.items() if name not in _addresses}
        if missing:
            _compile(missing, declarations)
        return {name: _addresses[name] for name in kernels}


def _compile(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> None:
    context = ir.Context()
    with context:
        text = "\n".join(
            [
                "module {",
                *declarations.values(),
                *kernels.values(),
                _address_table(list(kernels)),
                "}",
            ]
        )
        module = ir.Module.parse(text)
        manager = PassManager.parse(LOWERING)
        manager.enable_verifier(False)
        manager.run(module.operation)
        # naming the libraries in `shared_libs` would cost half a second: LLVM lists their symbols
        engine = ExecutionEngine(module, opt_level=2, shared_libs=[], enable_object_dump=False)
    for name in declarations:
        address = symbol_address(name)
        if address is not None:
            engine.raw_register_runtime(name, ctypes.c_void_p(address))
    table = (ctypes.c_int64 * len(kernels))()
    pointer = ctypes.c_void_p(ctypes.addressof(table))
    # raw_lookup gives the packed interface: a function of one array of pointers to the arguments
    fill = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup("gflow_addresses"))
    fill((ctypes.c_void_p * 1)(ctypes.addressof(pointer)))
    _engines.append(engine)
    _addresses.update(zip(kernels, table))


def _address_table(names: list[str]) -> str:
    """A function that writes the address of each kernel into an array; looking up one symbol is cheaper than many."""
    lines = ["  llvm.func @gflow_addresses(%out: !llvm.ptr) {"]
    for i, name in enumerate(names):
        lines.append(f"    %f{i} = llvm.mlir.addressof @{name} : !llvm.ptr")
        lines.append(f"    %p{i} = llvm.getelementptr %out[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
        lines.append(f"    llvm.store %f{i}, %p{i} : !llvm.ptr, !llvm.ptr")
    return "\n".join([*lines, "    llvm.return", "  }"])
