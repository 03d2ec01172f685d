"""Properties of the machine that compiles."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path


@cache
def host_blas() -> bool:
    """Whether the PyTorch of this process carries a BLAS with Fortran names and 32-bit integers."""
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return False
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "sgemm_") and hasattr(library, "dgemm_"):
            return True
    return False
