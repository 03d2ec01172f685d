"""State dicts of many ranks as a directory, by `torch.distributed.checkpoint`: each rank writes its shards, and any
number of ranks reads it.

    PATH/latest       the name of the checkpoint that counts
    PATH/3/           a checkpoint: PyTorch's files, among them a tensor of bytes that holds the tree as JSON

Of a global tensor (`DTensor`) each part along the dimensions of its mesh that split it is a tensor of its own, NAME#0,
NAME#1, …, in one dimension; the manifest says how they are put together.

A checkpoint is written beside the previous one and becomes valid when `latest` names it, by one rename. After a kill at
any moment, the old or the new one is complete. As in `checkpoint.py`, nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gflow.dialects.records import record

from ..distributed.pieces import parts_held
from .atomic import new_file
from .checkpoint import CheckpointError, decode, encode

FORMAT, VERSION = "gflow-sharded-checkpoint", 2
_LATEST, _MANIFEST = "latest", "gflow.manifest"


def save_sharded(tree: Any, path: Path) -> None:
    """Write a checkpoint; all ranks call it together, with their own parts of the same tree.

    Raises:
        TypeError: something in the tree is neither a tensor nor plain data, or a DTensor that is a partial sum, or has
            parts of different sizes.
        OSError: it cannot be written.
    """
    # start-up: few graphs are saved in this format
    import torch.distributed.checkpoint as dcp

    state: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    split: dict[str, list[tuple[int, int]]] = {}
    known: dict[Any, str] = {}
    held = parts_held()

    def add(tensor: torch.Tensor, where: str) -> str:
        share = _share(tensor, where)
        key = (share.local.data_ptr(), tensor.shape, tensor.dtype)
        if tensor.numel() and key in known:
            return known[key]
        name = known[key] = where or "tensor"
        shapes[name] = list(tensor.shape)
        if share.axes:
            split[name] = share.axes
        part = _part(share, held)
        if part is not None:
            state[f"{name}#{share.number}" if share.axes else name] = part
        return name

    manifest = {"format": FORMAT, "version": VERSION, "tree": encode(tree, "", add)}
    manifest["shapes"], manifest["split"] = shapes, split
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
    # start-up: few graphs are loaded in this format
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
    split = manifest.get("split", {})
    tensors = {
        n: _whole(n, shape, split[n], state) if n in split else state[n].reshape(shape)
        for n, shape in manifest["shapes"].items()
    }
    return decode(manifest["tree"], tensors)


def _whole(
    name: str, shape: list[int], split: list[list[int]], state: dict[str, torch.Tensor]
) -> torch.Tensor:
    """A tensor from its parts. split: the dimension and the number of parts, from the outermost split on."""
    local = [*shape]
    for dim, ranks in split:
        local[dim] //= ranks
    parts = [state.pop(f"{name}#{k}").reshape(local) for k in range(prod(n for _, n in split))]
    for dim, ranks in reversed(split):
        parts = [torch.cat(parts[k : k + ranks], dim) for k in range(0, len(parts), ranks)]
    return parts[0]


@record
class _Share:
    """This rank's part of a tensor: part `number` of those that `axes` (dimension, ranks) split it into; of that,
    with a group, the piece of one of its ranks, as `fully_shard` cuts what tensor parallelism has cut."""

    local: torch.Tensor
    axes: list[tuple[int, int]] = field(default_factory=list)
    number: int = 0
    group: Any = None


def _share(tensor: torch.Tensor, where: str) -> _Share:
    loaded = sys.modules.get("torch.distributed.tensor")
    if loaded is None or not isinstance(tensor, loaded.DTensor):
        return _Share(tensor)
    mesh, place = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    axes: list[tuple[int, int]] = []
    number, group, parts = 0, None, 1
    for n, placement in enumerate(tensor.placements):
        kind, ranks = type(placement).__name__, mesh.size(n)
        if kind == "_StridedShard" and placement.dim == 0 and n == 0:
            group, parts = mesh.get_group(n), parts * ranks
        elif kind == "Shard":
            axes.append((placement.dim % tensor.dim(), ranks))
            number, parts = number * ranks + place[n], parts * ranks
        elif kind != "Replicate":
            raise TypeError(
                f"{where!r} is a DTensor placed as {placement}; call .redistribute() first"
            )
    local = tensor._local_tensor
    if local.numel() * parts != tensor.numel():
        raise TypeError(
            f"{where!r} is a DTensor whose parts differ in size; pad it to a multiple of the ranks"
        )
    return _Share(local, axes, number, group)


def _part(share: _Share, held: dict[int, tuple[torch.Tensor | None, Any]]) -> Any:
    """What this rank writes of its share: all of it (of equal ones one is written), its piece, or None."""
    piece, group = held.get(share.local.data_ptr(), (share.local, share.group))
    if piece is None:
        return None
    piece, count = piece.detach().reshape(-1).contiguous(), share.local.numel()
    if group is None:
        return piece
    if share.group is not None:
        count *= dist.get_world_size(group)
    # start-up: few programs have shards
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(group, piece.device.type)
    low = min(dist.get_rank(group) * piece.numel(), count)
    mine = piece[: min(piece.numel(), count - low)]
    return DTensor.from_local(
        mine,
        mesh,
        [Shard(0)],
        run_check=False,
        shape=torch.Size([count]),
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
