"""Passes, pipelines, code generators and `gflow-opt`: IR in, IR or a program out."""

from __future__ import annotations

from .driver.compile import CompileOptions, compile_module, resolve

__all__ = ["CompileOptions", "compile_module", "resolve"]
