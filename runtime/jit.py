"""Kernels from MLIR text to machine code, by upstream passes and LLVM's JIT.

Kernel functions are cached by their text for the life of the process: graphs, signatures and
layers that need the same code share it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gflow.dialects.mlir import ExecutionEngine, PassManager, ir
from gflow.dialects.program import KERNEL_LOWERING

_addresses: dict[str, int] = {}
_engines: list[ExecutionEngine] = []
_lock = threading.Lock()


@cache
def _torch_library() -> ctypes.CDLL:
    """PyTorch's CPU library.

    Looking a symbol up in it also searches what it is linked to, so the OpenMP functions are
    those of PyTorch's own runtime. A process may hold several (scikit-learn ships one, too), and
    two thread pools that spin against each other are a hundred times slower than one.

    Raises:
        RuntimeError: it isn't there.
    """
    import torch

    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libtorch_cpu.*")):
        return ctypes.CDLL(str(path))
    raise RuntimeError(
        f"PyTorch's CPU library was not found in {folder}; is PyTorch installed from a wheel?"
    )


@cache
def symbol_address(name: str) -> int | None:
    """The address of a C function that kernels call.

    None where PyTorch's library does not lead to it (libm's functions, which LLVM finds itself).
    """
    try:
        return ctypes.cast(getattr(_torch_library(), name), ctypes.c_void_p).value
    except AttributeError:
        return None


def compile_kernels(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> dict[str, int]:
    """Addresses of kernel functions.

    Args:
        kernels: function name to the text of an `llvm.func` of that name; a name determines its
            text (it ends in a hash of it), so a name already compiled isn't compiled again.
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
        for op in module.body.operations:
            # the engine adds a wrapper to every function, and LLVM would copy small kernels into theirs
            op.operation.attributes["no_inline"] = ir.UnitAttr.get()
        manager = PassManager.parse(KERNEL_LOWERING)
        manager.enable_verifier(False)
        manager.run(module.operation)
        # vectors and unrolling are in the text, so more than level 1 only takes longer;
        # naming the libraries in `shared_libs` would cost half a second: LLVM lists their symbols
        engine = ExecutionEngine(module, opt_level=1, shared_libs=[], enable_object_dump=False)
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
    """A function that writes the address of each kernel into an array.

    Looking up one symbol is cheaper than looking up many.
    """
    lines = ["  llvm.func @gflow_addresses(%out: !llvm.ptr) {"]
    for i, name in enumerate(names):
        lines.append(f"    %f{i} = llvm.mlir.addressof @{name} : !llvm.ptr")
        lines.append(f"    %p{i} = llvm.getelementptr %out[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
        lines.append(f"    llvm.store %f{i}, %p{i} : !llvm.ptr, !llvm.ptr")
    return "\n".join([*lines, "    llvm.return", "  }"])
