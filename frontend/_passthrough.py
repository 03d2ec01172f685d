"""Import `gflow.x.y` as `torch.x.y` where gflow has no such module of its own."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parent


class _AliasLoader(importlib.abc.Loader):
    """Gives the target module itself, untouched."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.spec: importlib.machinery.ModuleSpec | None = None
        self.loader: object = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.target)
        self.spec, self.loader = module.__spec__, getattr(module, "__loader__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just put our spec on the shared module.
        module.__spec__ = self.spec
        module.__loader__ = self.loader  # type: ignore[assignment]


class _AliasFinder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str, target: str, own: Sequence[str]) -> None:
        self.package, self.target, self.own = package, target, frozenset(own)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        prefix = self.package + "."
        if not fullname.startswith(prefix):
            return None
        rest = fullname.removeprefix(prefix).split(".")
        if rest[0] in self.own or _has_file(rest):
            return None
        name = ".".join([self.target, *rest])
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            return None
        loader = _AliasLoader(name)
        return importlib.machinery.ModuleSpec(fullname, loader)


def _has_file(parts: Sequence[str]) -> bool:
    place = _ROOT.joinpath(*parts)
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def install(package: str, target: str, own: Sequence[str]) -> None:
    """Put the finder first in line, once."""
    if not any(isinstance(f, _AliasFinder) and f.package == package for f in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder(package, target, own))
