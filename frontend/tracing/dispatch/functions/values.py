"""Functions that read the values of tensors: they raise clear errors, or return traced numbers in an optimizer."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..failures.assertions import asserted, fail_if
from ..recorder import item_error, untraced
from ..symbols.number_nodes import number_of
from ..symbols.numbers import wrap
from .proxies import Fact, Handler, TensorProxies, unwrap

Tensor = torch.Tensor


def _value(what: str) -> Handler:
    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tensor = args[0]
        fake = unwrap(tensor)
        if getattr(fake, "constant", None) is not None:
            return func(*args, **kwargs)
        raise item_error(mode.recorder.locator.here(), what)

    return handler


def _listed(what: str, question: Callable[[Tensor], Any]) -> Handler:
    """All values of a tensor, if the trace knows them."""
    unknown = _value(what)

    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        recorder, tensor = mode.recorder, args[0]
        if recorder.known is not None and len(args) == 1 and not kwargs:
            with recorder.fake_mode, recorder:
                found = recorder.known.listed(unwrap(tensor), question)
            if found is not None:
                return found
        return unknown(mode, func, args, kwargs)

    return handler


_tolist = _listed("a tensor's values (.tolist())", Tensor.tolist)


def _array(tensor: Tensor) -> Any:
    """A tensor's values as an array of NumPy, which is not for writing: it is no memory of the tensor."""
    found = tensor.cpu().numpy().copy()
    found.flags.writeable = False
    return found


def _item(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if mode.in_optimizer and tensor.numel() == 1 and not tensor.is_complex():
        return wrap(mode.recorder.number_from(unwrap(tensor)))
    return func(*args, **kwargs)


def _bool(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if mode.in_optimizer or getattr(unwrap(args[0]), "constant", None) is not None:
        return bool(func(*args, **kwargs))
    found = asserted(args[0])
    if found is not None:
        return found
    if mode.recorder.branches is not None and args[0].dtype != torch.bool and args[0].numel() == 1:
        return bool(func(args[0] != 0))
    return bool(func(*args, **kwargs))


def _tensor_literal(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.tensor(x)` and `torch.as_tensor(x)` with traced numbers inside of x."""
    data: Any = args[0] if args else kwargs.get("data")
    node = number_of(data)
    if node is not None:
        words = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}
        if node.is_integer:
            words.setdefault("dtype", torch.int64)
        return torch.scalar_tensor(data, **words)
    if isinstance(data, (list, tuple)) and any(
        number_of(x) is not None or isinstance(x, Tensor) for x in data
    ):
        words = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}
        if not any(isinstance(x, Tensor) for x in data):
            plain = [x if (n := number_of(x)) is None else n.hint for x in data]
            with untraced():
                words.setdefault("dtype", torch.tensor(plain).dtype)
        return torch.stack(
            [
                torch.as_tensor(x, **words)
                if isinstance(x, Tensor)
                else torch.scalar_tensor(x, **words)
                for x in data
            ]
        )
    return func(*args, **kwargs)


def _over_array(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A tensor over the memory of a NumPy array. A program has a constant instead; the array is noted for
    `check_arrays`."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not args or type(args[0]) is not numpy.ndarray:
        return _tensor_literal(mode, func, args, kwargs)
    array = args[0]
    # from here on, the trace holds the copy alone
    found = func(array.copy(), *args[1:], **kwargs)
    shared = len(args) == 1 and not kwargs
    if array.flags.writeable:  # of others PyTorch warns
        with untraced():
            shared = func(array, *args[1:], **kwargs).data_ptr() == array.ctypes.data
    while type(array.base) is numpy.ndarray:
        array = array.base
    if shared:
        now = mode.recorder.value_of(unwrap(found))
        mode.arrays.append((weakref.ref(array), found, now, mode.recorder.locator.here()))
    return found


def _bounds(mode: TensorProxies, places: Tensor, what: str) -> Any:
    """The values of a tensor of bounds: a program is valid for calls with the same, and checks them.

    Raises:
        GraphTraceError: it is no small tensor of integers from outside, on the CPU, or was updated before.
    """
    recorder, real = mode.recorder, mode.real_of(places)
    with recorder.fake_mode, recorder:
        now = recorder.value_of(unwrap(places))
    if places.numel() <= _BOUNDS and mode.knows(places):
        return _tolist(mode, Tensor.tolist, (places,), {})
    here = (
        real is not None
        and real.device.type == "cpu"
        and any(i.value is now for i in recorder.inputs)
    )
    whole = not (places.is_floating_point() or places.is_complex() or places.dtype == torch.bool)
    if real is None or not here or not whole or places.numel() > _BOUNDS:
        raise item_error(recorder.locator.here(), what)
    with torch._C.DisableTorchFunction():
        found = real.tolist()
    mode.facts.append(Fact(real, Tensor.tolist, found, "the value"))
    with untraced():
        known = real.detach().clone()
    words = f"the program is for bounds {found}; trace it for others"
    fail_if(places != mode.lift(known), "RuntimeError", words)
    return found


#: the largest tensor of bounds
_BOUNDS = 64


def _tensor_split(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names = ("input", "tensor_indices_or_sections", "dim")
    words = dict(zip(names, args, strict=False)) | kwargs
    places = words.pop("indices_or_sections", words.get("tensor_indices_or_sections"))
    if not isinstance(places, Tensor):
        return func(*args, **kwargs)
    if places.dim() > 1 or places.dtype != torch.int64:
        return func(*args, **kwargs)  # an error of PyTorch's
    found = _bounds(mode, places, "the values of a tensor, to split by them")
    return func(words["input"], found, dim=words.get("dim", 0))


def _narrow(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    words = dict(zip(("input", "dim", "start", "length"), args, strict=False)) | kwargs
    start = words.get("start")
    if not isinstance(start, Tensor) or start.dim() or len(words) != 4:
        return func(*args, **kwargs)
    found = _bounds(mode, start, "the value of a tensor, to slice by it")
    return func(words["input"], words["dim"], found, words["length"])


def _get_item(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x[i]` by an integer in a 0-d tensor, whose value PyTorch reads to give a view: a copy of that row. `selected`
    notes both tensors for `check_selected`, since updates of one would reach the other."""
    tensor, index = args
    parts = [*index] if isinstance(index, tuple) else [index]
    at = [n for n, part in enumerate(parts) if _is_position(part)]
    others = [part for n, part in enumerate(parts) if n not in at]
    if not at or mode.in_optimizer or not all(map(_is_basic, others)):
        return func(*args, **kwargs)
    for n in at:
        parts[n] = slice(None)
    found, dims = func(tensor, tuple(parts)), []
    for n in at:
        before, behind = (
            [p for p in some if type(p) is not int] for some in (parts[:n], parts[n + 1 :])
        )
        dims.append(-1 - len(behind) if Ellipsis in before else len(before))
        place = (index[n] if isinstance(index, tuple) else index).long().reshape(1)
        whole = [None] * (dims[-1] % found.dim())
        found = torch.ops.aten.index.Tensor(found, [*whole, place])
    found = found.squeeze(dims)
    with mode.recorder.fake_mode, mode.recorder:
        now = mode.recorder.value_of(unwrap(tensor)), mode.recorder.value_of(unwrap(found))
    mode.selected.append((tensor, found, now, mode.recorder.locator.here()))
    return found


def _is_position(part: Any) -> bool:
    """Whether a part of an index is an integer in a traced 0-d tensor."""
    if not isinstance(part, Tensor) or part.dim() or part.is_floating_point() or part.is_complex():
        return False
    known = getattr(unwrap(part), "constant", None) is not None
    return not known and part.dtype not in (torch.bool, torch.uint8)


def _is_basic(part: Any) -> bool:
    if isinstance(part, slice):
        return not any(isinstance(x, Tensor) for x in (part.start, part.stop, part.step))
    return part is None or part is Ellipsis or type(part) is int


def _repr(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    recorder, tensor = mode.recorder, args[0]
    if recorder.known is not None:
        with recorder.fake_mode, recorder:
            found = recorder.known.text(unwrap(tensor))
        if found is not None:
            return found
    if mode.asked is not None:
        mode.asked("the text of a tensor", "text")
    return f"<traced tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}>"


def _format(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensor, spec = args
    if not tensor.dim() and mode.knows(tensor):
        return format(tensor.item(), spec)
    if spec:
        raise item_error(mode.recorder.locator.here(), "a tensor's value, to format it")
    return _repr(mode, func, args, kwargs)


HANDLERS: dict[Any, Handler] = {
    Tensor.__getitem__: _get_item,
    torch.tensor_split: _tensor_split,
    Tensor.tensor_split: _tensor_split,
    torch.narrow: _narrow,
    Tensor.narrow: _narrow,
    Tensor.__bool__: _bool,
    Tensor.item: _item,
    Tensor.tolist: _tolist,
    Tensor.numpy: _listed("a tensor's memory (.numpy())", _array),
    Tensor.__array__: _listed("a tensor's memory (conversion to numpy)", _array),
    Tensor.data_ptr: _value("a tensor's memory (.data_ptr())"),
    Tensor.__deepcopy__: _value("a copy of a tensor with its values (copy.deepcopy)"),
    Tensor.share_memory_: _value("a tensor's memory (.share_memory_())"),
    Tensor.__repr__: _repr,
    Tensor.__format__: _format,
    Tensor.is_set_to: _value("whether tensors share memory (.is_set_to())"),
    torch.tensor: _tensor_literal,
    torch.as_tensor: _over_array,
    torch.asarray: _over_array,
}
