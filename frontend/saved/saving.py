"""`gflow.save` and `gflow.load`: checkpoints and compiled graphs, without pickle.

Imports the runtime only: a saved graph is loaded without what traced it.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from gflow.runtime.stored import checkpoint
from gflow.runtime.stored.checkpoint import CheckpointError
from gflow.runtime.stored.trust import as_key

if TYPE_CHECKING:
    from gflow.runtime.stored.loaded_graph import LoadedGraph

Place = str | os.PathLike[str]


def save(
    obj: Any,
    path: Place,
    *,
    target: str | None = None,
    key: bytes | Place | None = None,
    format: str | None = None,
    frozen: bool | None = None,
) -> None:
    """Save a state dict, or a graph with its programs and weights (docs/checkpoints.md, docs/deployment.md).

    Files are replaced atomically: a process that is killed leaves the old file or the new one.

    Args:
        obj: nested dicts, lists and tuples of tensors and plain data, such as a `state_dict()`; or a graph that was
            called, which is saved as a directory that `gflow.load` and `gflow-run` run without the model's code.
        path: the file or directory. A state dict is written to a file if the path has a suffix (`"model.pt"`) or a file
            exists there, and otherwise to a directory with one file in it, as in OneFlow.
        target: for a graph, the device to save for; by default the one that it was compiled for.
        key: for a graph, the key that signs it: at least 16 bytes, or the path of a file with them that nobody else may
            read. `gflow.load(..., key=...)` refuses graphs that are not signed with it.
        frozen: for a graph without an optimizer, whether its parameters become constants (docs/freezing.md): what
            follows from them alone is saved computed, and what the programs do not read is left out; by default as
            `config.freeze()` says.
        format: for a graph, "stablehlo" or "onnx": save its step as a file for other engines (docs/engines.md).

    Raises:
        TypeError: `obj` holds other objects, which only pickle could save (`torch.save`).
        GraphError: the graph was not called yet, so it has no program to save; or it trains, and `frozen` is True.
        ArtifactError: `path` exists and is not a saved graph.
        NotImplementedError: there is no code generator for `target`.
        ValueError: `target` is unknown, or the key is too short.
        OSError: the file cannot be written (`SaveError`, which says what `path` holds now), or the key cannot be read.
    """
    if hasattr(path, "write"):
        raise TypeError("gflow.save() takes a path: a file is replaced as a whole, or not at all")
    place = Path(path)
    graphs = sys.modules.get("gflow.graph")
    if graphs is not None and isinstance(obj, graphs.Graph):
        if format is not None:
            if target is not None or key is not None or frozen is not None:
                raise TypeError(
                    "target, key and frozen are for gflow's own format; leave format out"
                )
            # start-up: loading does not need the writers of engines' files
            from .engine_files import export_for_engines

            export_for_engines(obj, place, format)
            return
        # start-up: loading does not need the writer of artifacts
        from .export import export

        export(obj, place, target, _key(key), frozen)
        return
    if frozen is not None:
        raise TypeError(f"frozen is for graphs that were traced here; got {type(obj).__name__}")
    if format is not None:
        raise TypeError(f"format is for graphs that were traced here; got {type(obj).__name__}")
    if type(obj).__name__ == "LoadedGraph" and target is None:
        obj.save(place, _key(key))
        return
    if key is not None:
        raise TypeError(f"key is for graphs; {type(obj).__name__} holds no code to sign")
    if target is not None:
        raise TypeError(f"target is for graphs; {type(obj).__name__} has none")
    if isinstance(obj, torch.nn.Module):
        raise TypeError(
            f"gflow.save() takes a state dict, got the module {type(obj).__name__}; save its "
            "state_dict(), or a graph that runs it"
        )
    checkpoint.save(obj, place)


def load(
    path: Place | IO[bytes],
    map_location: Any = None,
    *,
    weights_only: bool = True,
    native: bool = True,
    key: bytes | Place | None = None,
) -> Any:
    """Load what `save` wrote: a state dict, or a graph that can be called.

    Files of `torch.save` are read as by `torch.load(..., weights_only=True)`, other safetensors files as a dict of
    tensors. State files cannot run code.

    A saved graph contains machine code, which runs in this process when the graph is loaded and called. Load graphs
    only from sources whose programs you would run. `key` refuses graphs that are not signed with it. `native=False`
    runs none of the stored code and compiles the graph's IR instead, which can only compute.

    Args:
        path: the file or directory.
        map_location: the device for the tensors; a function or dict is accepted for files of `torch.save` only.
        native: whether to run the machine code and kernels of a saved graph. Otherwise its IR is compiled, which needs
            gflow's compiler and takes longer.
        key: the key that a graph must be signed with, in the forms that `save` accepts.

    Raises:
        CheckpointError: the file is damaged, or of another kind.
        ArtifactError: the saved graph is damaged, refers to files outside of its directory, has a later version, or is
            not signed with the key.
        FileNotFoundError: there is nothing at `path`.
    """
    if not weights_only:
        raise ValueError(
            "gflow.load() never unpickles arbitrary objects; if you trust the file, use "
            "torch.load(path, weights_only=False)"
        )
    if not isinstance(path, (str, os.PathLike)):
        if key is not None:
            raise CheckpointError("only directories of graphs are signed; a key was given")
        return _from_bytes(path.read(), "the file", map_location)
    place = Path(path)
    if (inner := place / checkpoint.IN_DIRECTORY).is_file():
        place = inner
    if place.is_dir():
        return load_saved(place, native, key)
    if key is not None:
        raise CheckpointError(
            f"{path} holds a state dict: only directories of graphs are signed, so it is refused"
        )
    return _from_bytes(place.read_bytes(), str(place), map_location)


def load_saved(place: Path, native: bool = True, key: bytes | Place | None = None) -> LoadedGraph:
    """The graph in a directory, for `load`."""
    # start-up: checkpoints need no artifacts
    from gflow.runtime.stored.artifact import load_graph

    from .regenerate import regenerate

    return load_graph(place, key=_key(key), native=native, regenerate=regenerate)


def _key(key: bytes | Place | None) -> bytes | None:
    return None if key is None else as_key(key)


def _from_bytes(data: bytes, what: str, map_location: Any) -> Any:
    if checkpoint.is_checkpoint(data):
        return _moved(checkpoint.load(data, what), map_location)
    if data[8:9] != b"{" and data[:1] in (b"P", b"\x80"):  # a zip file, or a plain pickle file
        return _from_torch(data, what, map_location)
    # start-up: few checkpoints are of this format
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    try:
        tensors = load_tensors(data)
    except (
        SafetensorError,
        KeyError,
        ValueError,
        RuntimeError,
    ):  # KeyError: a dtype that safetensors does not know
        raise CheckpointError(
            f"{what} is not a checkpoint of gflow, PyTorch or safetensors, or it is damaged"
        ) from None
    return _moved(tensors, map_location)


def _from_torch(data: bytes, what: str, map_location: Any) -> Any:
    try:
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{what} was written by torch.save() and holds pickled objects, not only tensors; if you "
            "trust it, use torch.load(path, weights_only=False)"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        # damaged, or PyTorch cannot move its tensors to `map_location`: it raises the same type for both
        raise CheckpointError(f"{what} cannot be read: {str(error).splitlines()[0]}") from None


def _moved(value: Any, map_location: Any) -> Any:
    """The nested value with all tensors on a device."""
    if map_location is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(map_location)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _moved(item, map_location)
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, map_location) for item in value)
    return value
