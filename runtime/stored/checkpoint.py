"""State dicts as one file: nested dicts of tensors and plain data, without pickle.

The file is a safetensors file, so other tools can read its tensors. Its metadata has one entry,
`gflow`: JSON with the nesting, all that is no tensor, and a checksum of each tensor. Reading builds
only what is listed in `decode`, and runs no code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

from ..tensors import DTYPES, dtype_named
from .atomic import new_directory, new_file

FORMAT, VERSION = "gflow-checkpoint", 1

#: types that a safetensors file has no name for are kept as bytes
_AS_BYTES = (torch.complex128, torch.complex32, torch.float8_e8m0fnu)


class CheckpointError(ValueError):
    """A file that is damaged, of another kind, or from a later version."""


#: the file in a directory that holds a checkpoint
IN_DIRECTORY = "checkpoint.safetensors"


def save(tree: Any, path: Path) -> None:
    """Write a checkpoint: to a file, or, where there is a directory or nothing at a path without a suffix, to a
    directory that holds the file. If the process is killed at any moment, the old or the new checkpoint is complete.

    Raises:
        TypeError: something in it is neither a tensor nor plain data.
        IsADirectoryError: `path` is a directory that holds other files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        if others := sorted({f.name for f in path.iterdir()} - {IN_DIRECTORY}):
            raise IsADirectoryError(
                f"{path} is a directory that holds no checkpoint alone (there is {others[0]}), so it is not replaced; "
                "save to a new path"
            )
    elif path.suffix or path.exists():
        with new_file(path) as temporary:
            write(tree, temporary)
        return
    with new_directory(path) as folder:
        write(tree, folder / IN_DIRECTORY)


def write(tree: Any, path: Path) -> None:
    """Write a checkpoint to a path that no reader uses yet.

    Raises:
        OSError: the file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    listed: dict[str, dict[str, Any]] = {}
    known: dict[Any, str] = {}

    def add(tensor: torch.Tensor, where: str) -> str:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and key in known:
            return known[key]
        name, n = where or "tensor", 1
        while name in tensors or name == "__metadata__":
            name, n = f"{where}.{n}", n + 1
        tensors[name], listed[name] = _flat(tensor, where)
        known[key] = name
        return name

    manifest = {"format": FORMAT, "version": VERSION, "tree": encode(tree, "", add)}
    manifest["tensors"] = listed
    manifest["sha256"] = _checksum(manifest)
    try:
        save_file(tensors, path, metadata={"gflow": json.dumps(manifest)})
    except SafetensorError as error:  # what the system said is in its text alone
        raise OSError(str(error)) from None


def load(data: bytes, what: str) -> Any:
    """What `save` wrote, from the file's bytes. what: names it in errors.

    Raises:
        CheckpointError: it is damaged, not a checkpoint, or from a later version.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["gflow"])
        if manifest["format"] != FORMAT:
            raise KeyError("format")
        version, checksum = manifest["version"], manifest.pop("sha256")
        intact = checksum == _checksum(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        # no JSON, or JSON of any kind and depth
        raise CheckpointError(f"{what} is not a gflow checkpoint, or it is damaged") from None
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"{what} has format version {version}; this gflow reads up to {VERSION}: upgrade gflow"
        )
    if not intact:
        raise CheckpointError(f"{what} is damaged: its checksum does not match")
    try:
        found = load_tensors(data)
        tensors = {n: _restored(found.pop(n), s, n, what) for n, s in manifest["tensors"].items()}
        return decode(manifest["tree"], tensors)
    except CheckpointError:
        raise
    except (
        SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError,
    ) as error:  # fmt: skip
        # the checksum is of the manifest: its tensors may be cut off, of other types, or not there
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{what} is damaged: {reason}") from None


def is_checkpoint(data: bytes) -> bool:
    """Whether bytes look like what `save` writes (they may still be damaged)."""
    length = int.from_bytes(data[:8], "little")
    return b'"gflow"' in data[8 : 8 + min(length, 100)] and data[8:9] == b"{"


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# tensors


def _flat(tensor: torch.Tensor, where: str) -> tuple[torch.Tensor, dict[str, Any]]:
    """A tensor as it is stored, dense and on the CPU, and the data that restores it."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{where!r} is a sparse or quantized tensor; save tensors that are dense")
    if tensor.dtype not in DTYPES.values():
        raise TypeError(f"{where!r} is a tensor of {tensor.dtype}, which checkpoints do not hold")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    strides = plain.stride()
    order = sorted(range(plain.dim()), key=lambda d: -strides[d])
    listed: dict[str, Any] = {"dtype": str(plain.dtype).removeprefix("torch.")}
    if plain.permute(order).is_contiguous() and not plain.is_contiguous():
        listed["order"] = order  # channels last, transposed: kept as it is
        plain = plain.permute(order)
    plain = plain.contiguous()
    if plain.untyped_storage().nbytes() != plain.nbytes:
        plain = plain.clone(memory_format=torch.contiguous_format)
    if plain.dtype in _AS_BYTES:
        listed["shape"] = list(plain.shape)
        plain = plain.reshape(-1).view(torch.uint8)
    listed["sha256"] = _digest(plain)
    return plain, listed


def _restored(tensor: torch.Tensor, listed: dict[str, Any], name: str, what: str) -> torch.Tensor:
    if _digest(tensor) != listed["sha256"]:
        raise CheckpointError(f"{what} is damaged: the checksum of {name!r} does not match")
    tensor = (
        tensor.clone()
    )  # PyTorch's memory begins at a cache line; that of a file's bytes does not
    dtype = dtype_named(listed["dtype"])
    if "shape" in listed:
        tensor = tensor.view(dtype).reshape(listed["shape"])
    if tensor.dtype != dtype:
        raise CheckpointError(f"{what} is damaged: {name!r} has another type than listed")
    if "order" in listed:
        order = listed["order"]
        tensor = tensor.permute([order.index(d) for d in range(len(order))])
    return tensor


def _digest(tensor: torch.Tensor) -> str:
    """Of a contiguous tensor: its shape, type and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# plain data


def encode(value: Any, where: str, add: Callable[[torch.Tensor, str], str]) -> Any:
    """A value as JSON; what JSON has no form for is an object with one tag.

    Raises:
        TypeError: a value has a type that checkpoints do not hold.
    """

    def item(key: Any, entry: Any) -> Any:
        return encode(entry, f"{where}.{key}" if where else str(key), add)

    if isinstance(value, torch.Tensor):
        return {"tensor": add(value, where)}
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if type(value) is list:
        return [item(i, v) for i, v in enumerate(value)]
    if type(value) in (tuple, torch.Size):
        return {type(value).__name__.lower(): [item(i, v) for i, v in enumerate(value)]}
    if isinstance(value, (set, frozenset)):
        return {"set": [item(i, v) for i, v in enumerate(sorted(value, key=repr))]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (torch.dtype, torch.device)):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, dict):
        kinds = {Counter: "counter", OrderedDict: "ordered"}
        kind = next((name for k, name in kinds.items() if isinstance(value, k)), "dict")
        items = [[encode(k, f"a key of {where}", add), item(k, v)] for k, v in value.items()]
        extra = getattr(value, "_metadata", None)  # versions of modules, in their state dicts
        found: dict[str, Any] = {kind: items}
        return found if extra is None else {**found, "metadata": item("_metadata", extra)}
    raise TypeError(
        f"{where or 'the object'!r} is a {type(value).__module__}.{type(value).__qualname__}; a "
        "checkpoint holds tensors, numbers, strings and dicts, lists and tuples of them. Save a "
        "module's or optimizer's state_dict(); torch.save() pickles any object."
    )


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The value that `encode` turned into JSON: containers and scalars are made again, tensors are looked up
    by name.

    Raises:
        KeyError: a tensor that is named is not there.
    """
    if isinstance(value, list):
        return [decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, content), *more) = value.items()
    if tag == "tensor":
        return tensors[content]
    if tag == "float":
        return float(content)
    if tag in ("tuple", "size", "set"):
        kind: Any = {"tuple": tuple, "size": torch.Size, "set": set}[tag]
        return kind(decode(v, tensors) for v in content)
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "device":
        return torch.device(content)
    if tag == "dtype":
        return dtype_named(content)
    made: Any = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[tag]()
    for key, entry in content:
        made[decode(key, tensors)] = decode(entry, tensors)
    for name, entry in more:
        setattr(made, f"_{name}" if name == "metadata" else "_", decode(entry, tensors))
    return made
