"""Saved graphs: a directory with programs, kernels and weights.

    manifest.json        versions, signatures, which tensor is which argument, checksums of all files
    model.mlir           the planned module; model.1.mlir, … of further signatures
    programs/0.json      the table of steps that the module came to
    kernels/NAME.mlir    each kernel's text; kernels/cpu.o their machine code. Of a graph for CUDA
                         NAME.py and NAME.0.cubin
    weights.safetensors  parameters, buffers, optimizer state, constants

Neither the model's code nor gflow's tracing and compiler are needed to load one. Its kernels are
code: load artifacts from those that you would run code from. Checksums tell damage, not intent; a
signature (`key`) tells that nobody without the key has changed anything.
"""

from __future__ import annotations

import logging
from pathlib import Path

from . import checkpoint, trust
from .bundle import ArtifactError, read_bundle
from .loaded_graph import LoadedGraph, Regenerate
from .program_files import WEIGHTS

_log = logging.getLogger("gflow")


def load_graph(
    path: Path,
    *,
    key: bytes | None = None,
    native: bool = True,
    regenerate: Regenerate | None = None,
) -> LoadedGraph:
    """Load what `gflow.save(graph, path)` wrote. Its machine code and kernels are run, so load only files of authors
    whose programs you would run; a key verifies the author.

    Args:
        key: what it must be signed with.
        native: run the machine code that is stored.
        regenerate: compiles programs from their IR where the stored code is not run: not `native`, or
            interpreted, where that would be Python.

    Raises:
        ArtifactError: it is damaged, from a later version, for another device, or not signed with
            the key.
    """
    bundle = read_bundle(path, key)
    foreign = "" if key is not None or not native else _foreign(path)
    try:
        weights = checkpoint.load(bundle.files.pop(WEIGHTS), str(path / WEIGHTS))
        graph = LoadedGraph(bundle, weights, native, regenerate)
    except ArtifactError:
        raise
    except (
        ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, RecursionError,
        AssertionError,
    ) as error:  # fmt: skip
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArtifactError(f"{path} cannot be loaded: {reason}") from None
    if foreign:
        _log.warning(
            "%s, and code from there runs in this process; sign artifacts (key=) or load them with "
            "native=False", foreign,
        )  # fmt: skip
    return graph


def _foreign(path: Path) -> str:
    """The other users who may write to the files that are run, as text; "" if there are none."""
    inside = (p for p in path.rglob("*") if not p.is_symlink())
    return next(filter(None, map(trust.is_foreign, (path, *inside))), "")
