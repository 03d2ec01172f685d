"""State dicts of many ranks as a directory, by `torch.distributed.checkpoint`: each rank writes its shards, and any
number of ranks reads it.

    PATH/latest       the name of the checkpoint that counts
    PATH/3/           a checkpoint: PyTorch's files, among them a tensor of bytes that holds the tree as JSON

Of a global tensor (`DTensor`) each part along the dimensions of its mesh that split it is a tensor of its own, NAME#0,
NAME#1, …, in one dimension; the manifest says how they are put together.

A checkpoint is written beside the previous one and becomes valid when `latest` names it, by one rename. After a kill at
any moment, the old or the new one is complete. As in `checkpoint.py`, no object of the tree is pickled. PyTorch's list
of tensors (`.metadata`) is a pickle: it is read with the classes of such lists alone, and checked before any tensor is.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
import warnings
import zipfile
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gflow.dialects.records import record

from ..distributed.pieces import parts_held
from ..tensors import DTYPES
from .atomic import new_file
from .checkpoint import CheckpointError, decode, encode

FORMAT, VERSION = "gflow-sharded-checkpoint", 2
_LATEST, _MANIFEST = "latest", "gflow.manifest"

_DCP = "torch.distributed.checkpoint"
#: what a list of tensors may be made of, by module
_NAMES = {
    f"{_DCP}.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    f"{_DCP}.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(str(d).removeprefix("torch.") for d in DTYPES.values())},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}  # fmt: skip


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
    """What `save_sharded` wrote, with whole tensors; ranks of a group call it together. No code is run.

    Raises:
        CheckpointError: there is no whole checkpoint, it is damaged, or from a later version.
    """
    # start-up: few graphs are loaded in this format
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return _loaded(path)
    except CheckpointError:
        raise
    except (
        CheckpointException, pickle.UnpicklingError, zipfile.BadZipFile, OSError, EOFError, ValueError,
        LookupError, TypeError, AttributeError, RuntimeError, AssertionError, OverflowError,
    ) as error:  # fmt: skip
        # files of any content: of a list that does not fit its tensors, of tensors that are cut off
        causes = getattr(error, "failures", None)
        cause = next(iter(causes.values()))[0] if causes else error
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise CheckpointError(f"{path} holds no whole sharded checkpoint: {reason}") from None


def _loaded(path: Path) -> Any:
    # start-up: few graphs are loaded in this format
    import torch.distributed.checkpoint as dcp

    number = (path / _LATEST).read_text()
    if not (number.isascii() and number.isdigit()):
        raise CheckpointError(f"{path / _LATEST} names no checkpoint")

    class Reader(dcp.FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return listed

    folder = path / number
    with (folder / ".metadata").open("rb") as file:
        try:
            listed = _Listed(file).load()
        except MemoryError:  # it announces more bytes than there are
            raise pickle.UnpicklingError("its list of tensors is damaged") from None
    state = _places(listed, path)
    _check_pieces(listed, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=Reader(str(folder)), no_dist=not _together())
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


class _Listed(pickle.Unpickler):
    """Reads PyTorch's list of the tensors of a checkpoint."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"its list of tensors names {module}.{name}")
        return super().find_class(module, name)


def _places(listed: Any, path: Path) -> dict[str, torch.Tensor]:
    """Memory for each tensor of a list, all of which will be written.

    Raises:
        CheckpointError: the list is not gflow's: an entry is no tensor, its pieces are not all of it, or they are in
            files elsewhere.
    """
    # start-up: few graphs are loaded in this format
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    state: dict[str, torch.Tensor] = {}
    for name, entry in listed.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata) or len(entry.size) != 1:
            raise CheckpointError(f"{path} is not gflow's: {name!r} is no tensor in one dimension")
        end = 0
        for chunk in sorted(entry.chunks, key=lambda chunk: tuple(chunk.offsets)):
            if tuple(chunk.offsets) != (end,) or len(chunk.sizes) != 1 or chunk.sizes[0] < 0:
                raise CheckpointError(f"{path} is damaged: pieces of {name!r} are missing")
            end += chunk.sizes[0]
        if (end,) != tuple(entry.size):
            raise CheckpointError(f"{path} is damaged: pieces of {name!r} are missing")
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    if _MANIFEST not in state:
        raise CheckpointError(f"{path} is not gflow's: it has no {_MANIFEST}")
    return state


def _check_pieces(listed: Any, folder: Path) -> None:
    """Check the bytes of each piece, a zip file with checksums, which `torch.load` does not look at.

    Raises:
        CheckpointError: a piece is damaged, or in a file elsewhere.
        BadZipFile: it is none.
    """
    for index, info in listed.storage_data.items():
        if Path(info.relative_path).name != info.relative_path:
            raise CheckpointError(f"{folder} is damaged: it names files elsewhere")
        with (folder / info.relative_path).open("rb") as file:
            file.seek(info.offset)
            piece = zipfile.ZipFile(io.BytesIO(file.read(info.length)))
        # all are 0 where PyTorch was told to compute none
        if any(entry.CRC for entry in piece.infolist()) and piece.testzip() is not None:
            raise CheckpointError(
                f"{folder} is damaged: the checksum of {index.fqn!r} does not match"
            )


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
