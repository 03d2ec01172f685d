"""Executables: the arena, the table of steps, calls into PyTorch.

Needs PyTorch and the dialect, nothing of the frontend or the compiler.
"""

from __future__ import annotations

from .cpu.executable import Executable
from .loading import load_program

__all__ = ["Executable", "load_program"]
