"""The one import of the MLIR Python bindings.

LLVM's own wheels are not on the package index; `torch-mlir` carries the complete bindings.
Moving to another distribution of them is a change of this file only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs._mlirDialectsIRDL import load_dialects as load_irdl
from torch_mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir
from torch_mlir.dialects import func
from torch_mlir.dialects._ods_common import _cext
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager

# Where the bindings look for a dialect's op classes: `gflow.dialects.gflow` (see there).
_cext.globals.append_dialect_search_prefix(__package__)


def _cast(kind: Any) -> Callable[[Any], Any]:
    """Locations become their class. A location as an attribute's value stays a plain attribute: the bindings' own
    cast takes it for a location, too, and raises a TypeError wherever the attribute is read."""
    return lambda found: kind(found) if isinstance(found, ir.Location) else found


for _kind in (ir.UnknownLoc, ir.NameLoc, ir.FileLineColLoc, ir.FusedLoc, ir.CallSiteLoc):
    _cext.register_type_caster(_kind.static_typeid, replace=True)(_cast(_kind))


def stablehlo() -> Any:
    """The bindings of the StableHLO dialect, its serializer and its reference interpreter."""
    # start-up: few programs are written for engines
    from torch_mlir._mlir_libs import _stablehlo

    return _stablehlo


__all__ = [
    "ExecutionEngine", "PassManager", "func", "ir", "load_irdl", "stablehlo",
    "translate_module_to_llvmir",
]  # fmt: skip
