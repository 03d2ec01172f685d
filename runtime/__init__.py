"""Executables, the arena, launchers. Needs PyTorch and the dialect, nothing of the frontend or the compiler."""

from __future__ import annotations

from .executable import Executable

__all__ = ["Executable"]
