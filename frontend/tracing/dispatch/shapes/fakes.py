"""Shape inference of ATen ops on fake tensors, cached.

A call is looked up by its op and the metadata of its arguments; only a new one runs PyTorch's fake implementation. A
fake tensor here carries its `TraceValue`, and a small integer for its metadata, so a lookup takes a few microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

from .shape_rules import CORRECTED, RULES, Metadata, plain, plain_size

_LIMIT = 200_000
_META = torch.device("meta")
_metadata_ids: dict[tuple[Any, ...], int] = {}
_known: dict[Any, tuple[type | None, list[Metadata | None]]] = {}
_view_ops: dict[Any, bool] = {}


class _Unknown(Exception):
    """An argument that cannot be part of a cache key."""


def _metadata(tensor: torch.Tensor) -> Metadata:
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def tag(fake: FakeTensor) -> int:
    """An integer for the metadata and the storage offset of a fake tensor, equal for equal ones: a view of a view
    depends on both."""
    found: int | None = fake.__dict__.get("_gflow_metadata")
    if found is None:
        key = _metadata(fake) if fake.fake_mode.shape_env is None else plain(fake)
        if fake.layout == torch.strided:
            memory = plain_size(fake.untyped_storage().nbytes())
            key = (*key, plain_size(fake.storage_offset()), memory)
        found = _metadata_ids.setdefault(key, len(_metadata_ids))
        fake._gflow_metadata = found  # type: ignore[attr-defined]
    return found


def _key(arg: Any) -> Any:
    kind = type(arg)
    if kind is FakeTensor:
        if arg.constant is not None:
            raise _Unknown
        return (FakeTensor, tag(arg))
    if kind is list or kind is tuple:
        return tuple([_key(a) for a in arg])
    if isinstance(arg, torch.SymInt):
        return (torch.SymInt, arg.node.expr)
    if isinstance(arg, (torch.Tensor, torch.SymFloat, torch.SymBool)):
        raise _Unknown
    return (kind, arg)


def new_fake(mode: FakeTensorMode, metadata: Metadata) -> FakeTensor:
    """A fake tensor with this metadata and a storage of its own. It must be called below all modes."""
    shape, stride, dtype, device = metadata
    meta = torch.empty_strided(shape, stride, dtype=dtype, device=_META)
    return _fake_of(mode, meta, device)


def _fake_of(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """A fake tensor with this meta tensor. PyTorch's constructor takes 20 µs; all that it sets is the same for each
    fake tensor of a mode and a device, so it is copied from the first one."""
    first = mode.__dict__.setdefault("_gflow_first", {})
    attributes = first.get(device)
    if attributes is None:
        fake = FakeTensor(mode, meta, device)
        first[device] = dict(fake.__dict__)
        return fake
    made = torch.Tensor._make_subclass(
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    made.__dict__.update(attributes)
    return made


def same_memory(mode: FakeTensorMode, func: Any, types: Any, args: tuple[Any, ...]) -> Any:
    """The result of an op that returns its operand (detach, alias)."""
    fake = args[0]
    if type(fake) is not FakeTensor or fake.constant is not None or len(args) > 1:
        return mode.dispatch(func, types, args)
    with in_kernel_invocation_manager(mode):
        meta = func(fake)
    return _fake_of(mode, meta, fake.fake_device)


def fake_call(
    mode: FakeTensorMode, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The results of `func` on fake tensors: new fake tensors."""
    if mode.shape_env is None:
        return _fake_call(mode, func, types, args, kwargs)
    with mode.shape_env.inferring():  # type: ignore[attr-defined]
        return _fake_call(mode, func, types, args, kwargs)


def _fake_call(
    mode: FakeTensorMode, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    env = mode.shape_env
    calls = _known if env is None else env.known  # type: ignore[attr-defined]
    key: Any
    try:
        words = tuple([(k, _key(v)) for k, v in kwargs.items()]) if kwargs else ()
        key = (func, torch.get_default_dtype(), _key(args), words)
        known = calls.get(key)
    except (_Unknown, TypeError):
        key = known = None
    rule = RULES.get(func) if key is not None or func in CORRECTED else None
    if known is None and rule is not None:
        items = rule[1](args, kwargs)
        if items is not None:
            known = (rule[0], items)
            if key is not None:
                calls[key] = known
    if known is None:
        made = 0 if env is None else env.unbacked_symint_counter
        out = mode.dispatch(func, types, args, kwargs)
        if env is not None and env.unbacked_symint_counter != made:
            return out  # another call gives results of other sizes
        described = None if key is None else _describe(func, args, out)
        if described is not None:
            if len(calls) > _LIMIT:
                calls.clear()
            calls[key] = described
        return out
    container, items = known
    with torch._C._DisableTorchDispatch():
        fakes = [None if m is None else new_fake(mode, m) for m in items]
    return fakes[0] if container is None else container(fakes)


def _describe(
    func: Any, args: tuple[Any, ...], out: Any
) -> tuple[type | None, list[Metadata | None]] | None:
    """A description from which `out` can be created again; None if it must be computed each time."""
    # PyTorch's rules return named tuples, too
    container = next((kind for kind in (tuple, list) if isinstance(out, kind)), None)
    items = out if container is not None else (out,)
    described: list[Metadata | None] = []
    for item in items:
        if item is None:
            described.append(None)
        elif (
            type(item) is FakeTensor
            and item.constant is None
            and plain_size(item.storage_offset()) == 0
            and not item.dtype.is_complex
            and item.layout == torch.strided
            and not any(item is a for a in args)
        ):
            described.append(_metadata(item))
        else:
            return None
    if _is_view(func) and (
        container is not None
        or plain_size(items[0].untyped_storage().nbytes()) != plain_size(_size(items[0]))
    ):
        return None  # the storage is larger than the view: a later as_strided may read the rest
    return container, described


def _is_view(func: Any) -> bool:
    known = _view_ops.get(func)
    if known is None:
        known = _view_ops[func] = any(r.alias_info is not None for r in func._schema.returns)
    return known


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
