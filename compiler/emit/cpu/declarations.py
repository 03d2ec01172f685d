"""Declarations of external functions that kernels call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .language import vmath

_RUNTIME_FUNCTIONS = {
    "omp_get_thread_num": "  llvm.func @omp_get_thread_num() -> i32",
    "omp_get_num_threads": "  llvm.func @omp_get_num_threads() -> i32",
    "GOMP_barrier": "  llvm.func @GOMP_barrier()",
}


def declarations(externals: Iterable[str], declared: Mapping[str, str]) -> dict[str, str]:
    """The MLIR declarations or definitions of external functions, by name. declared: those that exist already."""
    names = set(externals)
    runtime = sorted(names & set(_RUNTIME_FUNCTIONS))
    libm = [name for name in names if name not in _RUNTIME_FUNCTIONS]
    found = {name: _RUNTIME_FUNCTIONS[name] for name in runtime} | dict(declared)
    texts = vmath.declarations(libm)
    return found | {text[text.index("@") + 1 : text.index("(")]: text for text in texts}
