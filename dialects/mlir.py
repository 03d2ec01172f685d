"""The one import of the MLIR Python bindings.

LLVM's own wheels are not on the package index; `torch-mlir` carries the complete bindings.
Moving to another distribution of them is a change of this file only.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs._mlirDialectsIRDL import load_dialects as load_irdl
from torch_mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir
from torch_mlir.dialects import func
from torch_mlir.dialects._ods_common import _cext
from torch_mlir.execution_engine import ExecutionEngine as _BoundEngine
from torch_mlir.passmanager import PassManager

# Where the bindings look for a dialect's op classes: `gflow.dialects.gflow` (see there).
_cext.globals.append_dialect_search_prefix(__package__)


def _cast(kind: Any) -> Callable[[Any], Any]:
    """Locations become their class. A location as an attribute's value stays a plain attribute: the bindings' own
    cast takes it for a location, too, and raises a TypeError wherever the attribute is read."""
    return lambda found: kind(found) if isinstance(found, ir.Location) else found


for _kind in (ir.UnknownLoc, ir.NameLoc, ir.FileLineColLoc, ir.FusedLoc, ir.CallSiteLoc):
    _cext.register_type_caster(_kind.static_typeid, replace=True)(_cast(_kind))


class _Pointer(ctypes.Structure):
    """MlirModule and MlirExecutionEngine of the C interface."""

    _fields_ = [("pointer", ctypes.c_void_p)]


class _Text(ctypes.Structure):
    """MlirStringRef of the C interface."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


def _text(text: str) -> _Text:
    data = text.encode()
    return _Text(data, len(data))


#: functions of `mlir-c/ExecutionEngine.h`: result and parameters
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    # module, level of optimization, number of libraries, their paths, keep the object file, position-independent code
    "Create": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool),
    "Destroy": (None, _Pointer),
    "RegisterSymbol": (None, _Pointer, _Text, ctypes.c_void_p),
    "LookupPacked": (ctypes.c_void_p, _Pointer, _Text),
    "DumpToObjectFile": (None, _Pointer, _Text),
}  # fmt: skip
#: what the bindings' class hands to `Create` in releases where it takes the arguments above
_PARAMETERS = ("module:", "opt_level:", "shared_libs:", "enable_object_dump:", "enable_pic:")


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@cache
def _engine_functions() -> dict[str, Any] | None:
    """The functions of `_FUNCTIONS`; None if they may take other arguments in this release of the bindings."""
    signature = (_BoundEngine.__init__.__doc__ or "").partition("\n")[0]
    takes = [word for word in signature.replace("(", " ").split() if word.endswith(":")]
    if takes != list(_PARAMETERS):
        return None
    (path,) = Path(_cext.__file__).parent.glob("libTorchMLIRAggregateCAPI.*")
    library = ctypes.CDLL(str(path))
    return {
        name: ctypes.CFUNCTYPE(*types)((f"mlirExecutionEngine{name}", library))
        for name, types in _FUNCTIONS.items()
    }


class ExecutionEngine:
    """LLVM's JIT for one module. Like the bindings' class of this name, but ctypes lets other Python threads run while
    LLVM compiles, and the bindings' class does not."""

    def __init__(
        self, functions: dict[str, Any], module: ir.Module, opt_level: int, dump: bool
    ) -> None:
        """
        Args: functions: see `_engine_functions`. The others: see `execution_engine`.

        Raises:
            RuntimeError: the module cannot be translated; LLVM says why on the standard error output.
        """
        capsule = module._CAPIPtr
        at = _capsule_pointer(capsule, _capsule_name(capsule))
        self._functions = functions
        self._engine = functions["Create"](_Pointer(at), opt_level, 0, None, dump, False)
        if not self._engine.pointer:
            raise RuntimeError(
                "LLVM could not create an engine for the kernels (it says why on the standard error output)"
            )
        # not at exit: a thread may be running its code
        weakref.finalize(self, functions["Destroy"], self._engine).atexit = False

    def raw_register_runtime(self, name: str, callback: ctypes.c_void_p) -> None:
        """Set the address of a function that the module calls."""
        self._functions["RegisterSymbol"](self._engine, _text(name), callback)

    def raw_lookup(self, name: str) -> int | None:
        """Compile the module, and return the address of a function's wrapper, which takes an array of pointers to the
        arguments; None if there is none, or a function that the module calls is not found."""
        found: int | None = self._functions["LookupPacked"](self._engine, _text(name))
        return found

    def dump_to_object_file(self, path: str) -> None:
        """Write the object file, after the first `raw_lookup`."""
        self._functions["DumpToObjectFile"](self._engine, _text(path))


def execution_engine(module: ir.Module, opt_level: int, dump: bool = False) -> ExecutionEngine:
    """LLVM's JIT for a module.

    Args:
        module: of ops that translate to LLVM IR.
        opt_level: of LLVM, 0 to 3.
        dump: keep the object file, for `dump_to_object_file`.

    Raises:
        RuntimeError: the module cannot be translated.
    """
    functions = _engine_functions()
    if functions is None:
        bound: Any = _BoundEngine(
            module, opt_level=opt_level, shared_libs=[], enable_object_dump=dump
        )
        engine: ExecutionEngine = bound
        return engine
    return ExecutionEngine(functions, module, opt_level, dump)


def stablehlo() -> Any:
    """The bindings of the StableHLO dialect, its serializer and its reference interpreter."""
    # start-up: few programs are written for engines
    from torch_mlir._mlir_libs import _stablehlo

    return _stablehlo


__all__ = [
    "ExecutionEngine", "PassManager", "execution_engine", "func", "ir", "load_irdl", "stablehlo",
    "translate_module_to_llvmir",
]  # fmt: skip
