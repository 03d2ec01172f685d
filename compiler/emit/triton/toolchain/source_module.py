"""Python text as a module that Triton can read back."""

from __future__ import annotations

import linecache
from types import ModuleType


def load_text(name: str, text: str) -> ModuleType:
    """Run `text` as a module; its lines can be found, as `triton.jit` needs."""
    path = f"<{name}.py>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = ModuleType(name)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)
    return module
