"""Kernels from MLIR text to machine code, by upstream passes and LLVM's JIT.

Kernel functions are cached by their text for the life of the process: graphs, signatures and
layers that need the same code share it. The machine code of a program is kept on disk, too
(`runtime/stored/cache.py`), and is loaded without LLVM.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gflow.dialects.program import KERNEL_LOWERING, processor

from ..stored import cache as disk
from .objects import LoadedObject, ObjectError, load_object, supported

if TYPE_CHECKING:
    from gflow.dialects.mlir import ExecutionEngine, ir

_log = logging.getLogger("gflow")

#: (instruction sets, kernel) → address
_addresses: dict[tuple[str, str], int] = {}
_engines: list[ExecutionEngine] = []

#: features that every level has, beside those of its own
_BASE_FEATURES = '#llvm.target_features<["+sse4.2", "+popcnt"]>'
_loaded: list[LoadedObject] = []
#: (instruction sets, kernel) → the disk cache's name for the object file that has it
_stored_in: dict[tuple[str, str], str] = {}
#: an entry that begins with it is a list of the names of other entries, which together have all kernels of a program
_LIST = b"gflow objects\n"
_lock = threading.Lock()
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


def compile_kernels(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> dict[str, int]:
    """Addresses of kernel functions.

    Args:
        kernels: function name to the text of an `llvm.func` of that name; a name determines its
            text (it ends in a hash of it), so a name already compiled isn't compiled again.
        declarations: what they call: function name to its `llvm.func` text.
    """
    isa = processor.limit()
    with _lock:
        missing = {name: text for name, text in kernels.items() if (isa, name) not in _addresses}
        if missing:
            _compile(missing, declarations, isa)
        if missing and len(missing) < len(kernels):  # another process asks for all of them at once
            _store_list(kernels, declarations, isa)
        return {name: _addresses[isa, name] for name in kernels}


def adopt_object(data: bytes, kernels: Iterable[str]) -> None:
    """Use stored machine code for kernels that are not compiled yet.

    Raises:
        ObjectError: the code is damaged, is for another machine, or lacks one of the kernels.
    """
    isa = processor.limit()
    with _lock:
        missing = [name for name in kernels if (isa, name) not in _addresses]
        if not missing:
            return
        loaded = load_object(data, symbol_address)
        for name in missing:
            if name not in loaded.symbols:
                raise ObjectError(f"the object file lacks the kernel {name}")
        _addresses.update({(isa, name): loaded.symbols[name] for name in missing})
        _loaded.append(loaded)


def object_file(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> bytes | None:
    """The machine code of kernels as an object file; None on machines that cannot load such files."""
    if not supported():
        return None
    isa = processor.limit()
    name = _cache_key(kernels, declarations, isa)
    data = None if name is None else disk.read("objects", name)
    if data is not None and not data.startswith(_LIST):
        return data
    with _lock:
        engine = _engine(kernels, declarations, isa, dump=True)
        engine.raw_lookup("gflow_addresses")
        return _object_of(engine)


def _compile(kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str) -> None:
    """Add the addresses of new kernels, from the disk cache or compiled."""
    name = _cache_key(kernels, declarations, isa)
    if name is not None and _load(name, kernels, isa):
        return
    engine = _engine(kernels, declarations, isa, dump=supported())
    table = (ctypes.c_int64 * len(kernels))()
    pointer = ctypes.c_void_p(ctypes.addressof(table))
    # raw_lookup gives the packed interface: a function of one array of pointers to the arguments
    found = engine.raw_lookup("gflow_addresses")
    if not found:
        raise RuntimeError(
            f"LLVM could not link the kernels {', '.join(kernels)}: a function that they call is missing (LLVM names "
            "it on the standard error output)"
        )
    fill = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found)
    fill((ctypes.c_void_p * 1)(ctypes.addressof(pointer)))
    addresses = dict(zip(kernels, table))
    try:
        # an engine keeps some MiB beside the code, so it is dropped once the code is loaded without it
        code = _object_of(engine) if supported() else None
        loaded = None if code is None else load_object(code, symbol_address)
    except (OSError, ObjectError) as error:  # no room for it
        uncached = "" if name is None else ", and their machine code is not cached"
        _log.warning("%d kernels keep LLVM's engine in memory%s: %s", len(kernels), uncached, error)
        code = loaded = None
    if loaded is None:
        _engines.append(engine)
    else:
        _loaded.append(loaded)
        addresses = {kernel: loaded.symbols[kernel] for kernel in kernels}
    _addresses.update({(isa, kernel): at for kernel, at in addresses.items()})
    if name is not None and code is not None:
        disk.write("objects", name, code)
        _stored_in.update({(isa, kernel): name for kernel in kernels})


def release_contexts() -> None:
    """Free the context that kernels were parsed in; the next kernel makes a new one."""
    with _lock:
        _context.release()


def _load(name: str, kernels: Iterable[str], isa: str) -> bool:
    """Add the addresses of kernels from an entry of the disk cache; False if they are not all there."""
    data = disk.read("objects", name)
    if data is None:
        return False
    parts = [name]
    if data.startswith(_LIST):
        parts = data[len(_LIST) :].decode().split()
    codes = [data if part == name else disk.read("objects", part) for part in parts]
    places: dict[str, tuple[str, int]] = {}
    loaded = []
    try:
        for part, code in zip(parts, codes, strict=True):
            if code is None:
                return False
            loaded.append(load_object(code, symbol_address))
            places.update({k: (part, at) for k, at in loaded[-1].symbols.items()})
        found = {kernel: places[kernel] for kernel in kernels}
    except (ObjectError, KeyError) as error:
        disk.discard("objects", name, str(error))
        return False
    _addresses.update({(isa, kernel): at for kernel, (_, at) in found.items()})
    _stored_in.update({(isa, kernel): part for kernel, (part, _) in found.items()})
    _loaded.extend(loaded)
    return True


def _store_list(kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str) -> None:
    """Write the list of the entries that have these kernels, some of which were compiled before the others: those of
    races, and of other programs of this process."""
    name = _cache_key(kernels, declarations, isa)
    parts = {_stored_in.get((isa, kernel)) for kernel in kernels}
    if name is not None and None not in parts:
        disk.write("objects", name, _LIST + "\n".join(sorted(filter(None, parts))).encode())


def _cache_key(kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str) -> str | None:
    """The cache's name for the machine code of these kernels; None if there is no cache."""
    if disk.directory() is None or not supported():
        return None
    return disk.key(isa, *declarations.values(), *kernels.values())


def _object_of(engine: ExecutionEngine) -> bytes:
    """The object file that an engine has compiled. It goes through memory: LLVM ends the process where a file
    cannot be written, as on a full disk."""
    with os.fdopen(os.memfd_create("kernels.o"), "r+b") as file:
        engine.dump_to_object_file(f"/proc/self/fd/{file.fileno()}")
        return file.read()


def _engine(
    kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str, dump: bool
) -> ExecutionEngine:
    """Compile kernels. isa: a level of instruction sets, or "" for this processor's. dump: keep the object file."""
    # only here: machine code that is at hand is loaded without LLVM
    from gflow.dialects.mlir import ExecutionEngine, PassManager, ir

    with _context():
        text = "\n".join(
            [
                "module {",
                *declarations.values(),
                *kernels.values(),
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
        # naming the libraries in `shared_libs` would cost half a second: LLVM lists their symbols
        engine = ExecutionEngine(module, opt_level=1, shared_libs=[], enable_object_dump=dump)
    for name in declarations:
        address = _torch_symbol(name)
        if address is not None:
            engine.raw_register_runtime(name, ctypes.c_void_p(address))
    return engine


class _Contexts:
    """The context that kernels are parsed in. A first call compiles some times: races of products, of attentions, the
    program."""

    def __init__(self) -> None:
        self._context: ir.Context | None = None
        self._uses = 0

    def __call__(self) -> ir.Context:
        # only here: machine code that is at hand is loaded without LLVM
        from gflow.dialects.mlir import ir

        if self._context is None or self._uses == _MOST_USES:
            # dialects are loaded as kernels name them: all of them take as long as a small kernel
            self._context, self._uses = ir.Context(load_on_create_dialects=()), 0
            # kernels are lowered on one thread anyway, and a process that is forked would wait for its parent's threads
            self._context.enable_multithreading(False)
        self._uses += 1
        return self._context

    def release(self) -> None:
        """Let go of the context."""
        self._context = None


_context = _Contexts()


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
        op.attributes["target_cpu"] = ir.StringAttr.get(isa)
        # the engine's own are this processor's
        op.attributes["target_features"] = ir.Attribute.parse(_BASE_FEATURES)
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
