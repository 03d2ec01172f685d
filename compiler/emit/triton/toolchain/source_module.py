"""Python text as a module that Triton can read back."""

from __future__ import annotations

import linecache
from types import ModuleType


def load_text(name: str, text: str) -> ModuleType:
    """Execute `text` as a module whose source lines Python can find, which `triton.jit` needs."""
    path = f"<{name}.py>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = ModuleType(name)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)
    return module
