"""From a trace of ATen calls to a module in the `gflow` dialect.

Each ATen overload has a rule (`registry.py`, files by family), else PyTorch's own decomposition is
lowered (`decompose.py`), else the call becomes `gflow.aten` (`escape.py`).
"""

from __future__ import annotations

from .driver import Escaped, escaped, lower

__all__ = ["Escaped", "escaped", "lower"]
