"""State dicts of many ranks as a directory, by `torch.distributed.checkpoint`: each rank writes what it has, and any
number of ranks reads it.

    PATH/latest       the name of the checkpoint that counts
    PATH/3/           a checkpoint: PyTorch's files, among them a tensor of bytes that holds the tree as JSON

A checkpoint is written beside the one before it, and counts once `latest` names it, which is one rename. Killed at any
moment, the old one or the new one is whole. What `checkpoint.py` says of trees holds here: nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..distributed.pieces import parts_held
from .atomic import new_file
from .checkpoint import CheckpointError, decode, encode

FORMAT, VERSION = "gflow-sharded-checkpoint", 1
_LATEST, _MANIFEST = "latest", "gflow.manifest"


def save_sharded(tree: Any, path: Path) -> None:
    """Write a checkpoint; all ranks call it together, with their own parts of the same tree.

    Raises:
        TypeError: something in the tree is neither a tensor nor plain data.
        OSError: it cannot be written.
    """
    # start-up: only who saves so loads it
    import torch.distributed.checkpoint as dcp

    state: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    known: dict[Any, str] = {}
    held = parts_held()

    def add(tensor: torch.Tensor, where: str) -> str:
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if tensor.numel() and key in known:
            return known[key]
        name = known[key] = where or "tensor"
        shapes[name] = list(tensor.shape)
        part = _part(tensor, held)
        if part is not None:
            state[name] = part
        return name

    manifest = {"format": FORMAT, "version": VERSION, "tree": encode(tree, "", add)}
    manifest["shapes"] = shapes
    if _rank() == 0:
        text = json.dumps(manifest).encode()
        state[_MANIFEST] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    number = _next(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one process, and of deprecations inside of PyTorch
        dcp.save(state, checkpoint_id=str(path / str(number)), no_dist=not _together())
    if _rank() == 0:
        with new_file(path / _LATEST) as temporary:
            temporary.write_text(str(number))
        for other in path.iterdir():
            if other.is_dir() and other.name.isdigit() and int(other.name) < number:
                shutil.rmtree(other, ignore_errors=True)
    if _together():
        dist.barrier()


def load_sharded(path: Path) -> Any:
    """What `save_sharded` wrote, with whole tensors; ranks of a group call it together.

    Raises:
        CheckpointError: there is no whole checkpoint, or one from a later version.
    """
    # start-up: only who loads so needs it
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        number = (path / _LATEST).read_text()
        reader = dcp.FileSystemReader(str(path / number))
        listed = reader.read_metadata().state_dict_metadata
    except (OSError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} holds no whole sharded checkpoint: {error}") from None
    state: dict[str, Any] = {}
    for name, entry in listed.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{path} is not gflow's: {name!r} is no tensor")
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    if _MANIFEST not in state:
        raise CheckpointError(f"{path} is not gflow's: it has no {_MANIFEST}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader, no_dist=not _together())
    manifest = json.loads(bytes(state.pop(_MANIFEST).numpy()))
    if manifest.get("format") != FORMAT or manifest["version"] > VERSION:
        raise CheckpointError(
            f"{path} has version {manifest.get('version')} of {manifest.get('format')}; this gflow reads up to "
            f"{VERSION} of {FORMAT}"
        )
    tensors = {n: x.reshape(manifest["shapes"][n]) for n, x in state.items()}
    return decode(manifest["tree"], tensors)


def _part(tensor: torch.Tensor, held: dict[int, tuple[torch.Tensor | None, Any]]) -> Any:
    """What this rank writes of a tensor: all of it (of equal ones one is written), its piece, or None."""
    piece, group = held.get(tensor.data_ptr(), (tensor, None))
    if piece is None:
        return None
    if group is None:
        return piece.detach().reshape(-1).contiguous()
    # start-up: only who has pieces needs them
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(group, piece.device.type)
    low = min(dist.get_rank(group) * piece.numel(), tensor.numel())
    mine = piece[: min(piece.numel(), tensor.numel() - low)]
    return DTensor.from_local(
        mine,
        mesh,
        [Shard(0)],
        run_check=False,
        shape=torch.Size([tensor.numel()]),
        stride=(1,),
    )


def _next(path: Path) -> int:
    """A number that no checkpoint in the directory has, the same on all ranks."""
    found = [0]
    if _rank() == 0:
        path.mkdir(parents=True, exist_ok=True)
        found = [max((int(p.name) for p in path.iterdir() if p.name.isdigit()), default=0) + 1]
    if _together():
        dist.broadcast_object_list(found, 0)
    return found[0]


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _together() else 0
