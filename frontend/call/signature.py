"""Converts the arguments of a call to a `BoundCall`, whose key selects a compiled program."""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from gflow.errors import GraphInputError
from gflow.runtime.tensors import DTYPES
from gflow.tracing.context.location import here
from gflow.tracing.context.wrappers import LAZY
from gflow.tracing.data.bound_call import BoundCall, input_names
from gflow.tracing.data.global_tensors import is_global
from gflow.tracing.data.pytrees import learn
from gflow.tracing.program.modules import ModuleTable

from .conditions.layout_guard import tensor_guards

Tensor = torch.Tensor
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum,
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip
#: marks in the key of a tensor whose memory does not hold its elements: programs support conjugate views, and tracing
#: refuses the others
_CONJUGATE, _NOT_IN_MEMORY = ("conjugate",), ("not in memory",)
#: dtypes of the dialect
_DTYPES = frozenset(DTYPES.values())
#: types of arguments that are leaves, and are their own key
_OWN_KEY = frozenset({type(None), bool, int, str})
_requires_grad = operator.attrgetter("requires_grad")


class Parameters:
    """The parameters of a Python function, to which calls are bound.

    Calls of a function that only forwards its arguments (`*args, **kwargs`) are not changed.
    """

    def __init__(self, build: Callable[..., Any]) -> None:
        bound = isinstance(build, MethodType)
        function = build.__func__ if isinstance(build, MethodType) else build
        self.function = function if isinstance(function, FunctionType) else None
        self.alike: Alike | None = None
        self._latest: tuple[Any, ...] | None = None  # the key of the latest call of tensors
        self.code: CodeType | None = None
        self.defaults: tuple[Any, ...] | None = None
        if self.function is None:
            return
        code = self.code = self.function.__code__
        count = code.co_argcount
        self.positional = code.co_varnames[bound:count]
        self.count = len(self.positional)
        self.only_positional = max(code.co_posonlyargcount - bound, 0)
        self.only_keyword = code.co_varnames[count : count + code.co_kwonlyargcount]
        self.more_positional = bool(code.co_flags & inspect.CO_VARARGS)
        self.more_keywords = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.forwards = not self.count and self.more_positional and self.more_keywords
        defaults = self.defaults = self.function.__defaults__
        # by the number of arguments: the defaults of all others, if they can be filled in directly
        self.tails: dict[int, tuple[Any, ...]] = {self.count: ()}
        for n in range(1, len(defaults or ()) + 1):
            if defaults and not self.only_keyword and all(map(_is_plain, defaults[-n:])):
                self.tails[self.count - n] = defaults[-n:]

    def are_of(self, build: Callable[..., Any]) -> bool:
        """Whether a function still has these parameters."""
        function, own = getattr(build, "__func__", build), self.function
        if own is None or function is not own:
            return False
        return own.__code__ is self.code and own.__defaults__ is self.defaults

    def learn(self, call: BoundCall) -> None:
        """Take note of a call whose arguments are tensors, for later calls: at the second of an equal key, since guards
        take longer to make than a key."""
        if call.key == self._latest and not (self.alike is not None and self.alike.key == call.key):
            self.alike = Alike(call.leaves, call.key)
        self._latest = call.key

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A call in normal form: arguments are positional where possible, keywords are in the order of the parameters,
        and omitted parameters have their defaults, if these are plain values. None if the call does not fit."""
        if self.function is None:
            return args, kwargs
        if self.forwards and not self.only_keyword:
            return args, kwargs
        if not kwargs and not self.only_keyword:
            tail = self.tails.get(len(args))
            if tail is not None:
                return args + tail, kwargs
        if len(args) > self.count and not self.more_positional:
            return None
        defaults = self.defaults or ()
        required = self.count - len(defaults)
        left, values = dict(kwargs), [*args]
        if not left.keys().isdisjoint(self.positional[self.only_positional : len(args)]):
            return None
        for n in range(len(args), self.count):
            name = self.positional[n]
            if n >= self.only_positional and name in left:
                values.append(left.pop(name))
            elif n >= required and _is_plain(defaults[n - required]):
                values.append(defaults[n - required])
            else:
                break
        if len(values) < required:
            return None
        own = dict(zip(self.positional[required:], defaults))
        own |= self.function.__kwdefaults__ or {}
        named: dict[str, Any] = {}
        for name in (
            *self.positional[max(len(values), self.only_positional) :],
            *self.only_keyword,
        ):
            if name in left:
                named[name] = left.pop(name)
            elif name in own:
                if _is_plain(own[name]):
                    named[name] = own[name]
            elif name in self.only_keyword:
                return None
        if left and not self.more_keywords:
            return None
        return tuple(values), {**named, **left}


class Alike:
    """Whether calls by position have tensors like those of an earlier call, and so its key. PyTorch's guards compare
    all that is in a key but `requires_grad`, which they take together with the gradient mode, and which arguments are
    the same tensor."""

    def __init__(self, tensors: Sequence[Tensor], key: tuple[Any, ...]) -> None:
        self.key, self._count, self._guards = key, len(tensors), tensor_guards(tensors)
        self._flags = [*map(_requires_grad, tensors)]

    def are(self, args: tuple[Any, ...]) -> bool:
        """Whether the arguments of a call are alike."""
        return (
            len(args) == self._count
            and self._guards.check(*args)
            and (len(args) == 1 or len({*map(id, args)}) == len(args))
            and [*map(_requires_grad, args)] == self._flags
        )


def _is_plain(value: Any) -> bool:
    """Whether a default can be an argument of a call: it has no identity, and no tensors."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def bind_call(
    build: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parameters: Parameters | None = None,
) -> BoundCall:
    """A call of `build`. parameters: those of `build`, if known.

    Raises:
        GraphInputError: an argument is missing, unknown, or of a kind that a program cannot have.
    """
    if parameters is None:
        parameters = Parameters(build)
    args, alike = tuple(args), parameters.alike
    if alike is not None and not kwargs and alike.are(args):
        return BoundCall(build, args, {}, [*args], alike.key)
    bound = parameters.bind(args, dict(kwargs))
    if bound is None:
        check_call(build, args, kwargs)
        bound = args, dict(kwargs)  # its declared signature fits: the arguments are not changed
    call = _flattened(build, *bound)
    different = len({*map(id, args)}) == len(args) == len(call.leaves)
    if not kwargs and different and {*map(type, args)} == {Tensor}:
        parameters.learn(call)
    return call


def _flattened(
    build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BoundCall:
    found: list[Any] = []
    tensors: list[Tensor] = []
    parts: list[Any] = [tuple(kwargs)] if kwargs else []
    if _take_plain(args, found, tensors, parts) and (
        not kwargs or _take_plain(kwargs.values(), found, tensors, parts)
    ):
        if len(tensors) > 1:
            parts += _repeats(tensors)
        return BoundCall(build, args, kwargs, found, tuple(parts))
    leaves, spec = tree_flatten((args, kwargs))
    parts = [repr(spec)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            if leaf.layout != torch.strided or leaf.is_nested:
                nested, do = leaf.is_nested, "call .to_dense()"
                if nested:
                    do = "pad it (.to_padded_tensor(0.0))"
                what = f"a {'nested' if nested else leaf.layout} tensor"
                raise _wrong(build, args, kwargs, i, what, do)
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
            if type(leaf) is not Tensor:
                parts.append(type(leaf))
            parts += _not_in_memory(leaf)
            if isinstance(leaf, torch.nn.Parameter):
                parts.append(id(leaf))
            if is_global(leaf):
                parts.append((leaf.device_mesh, leaf.placements))  # type: ignore[attr-defined]
        elif isinstance(leaf, _PLAIN):
            number = isinstance(
                leaf, (float, complex)
            )  # nan equals itself, and 0.0 differs from -0.0
            parts.append((type(leaf), repr(leaf) if number else leaf))
        elif learn(leaf):
            return _flattened(build, args, kwargs)
        elif type(leaf).__module__ == "numpy":
            what, do = f"a numpy {type(leaf).__name__}", "pass torch.as_tensor(...)"
            raise _wrong(build, args, kwargs, i, what, do)
        else:
            what = f"an object of type {type(leaf).__module__}.{type(leaf).__qualname__}"
            raise _wrong(build, args, kwargs, i, what, "pass its tensors and numbers")
    parts += _repeats([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    return BoundCall(build, args, kwargs, leaves, tuple(parts))


def _take_plain(
    values: Iterable[Any], leaves: list[Any], tensors: list[Tensor], parts: list[Any]
) -> bool:
    """Flatten arguments of the usual types, as `tree_flatten` does; False at the first other one.

    Args:
        leaves, tensors, parts: take the leaves, the tensors among them, and the parts of the call's key.
    """
    for value in values:
        kind = type(value)
        if kind is Tensor:
            if value.layout is not torch.strided or value.is_nested:
                return False  # some layouts have no strides, or no shape
            tensors.append(value)
            parts.append(
                (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
            )
            parts += _not_in_memory(value)
        elif kind in _OWN_KEY:
            parts.append((kind, value))
        elif kind is float:
            parts.append((kind, repr(value)))
        elif kind is dict or kind is list or kind is tuple:
            if kind is dict and {*map(type, value)} - {str}:
                return False  # keys of other types may be equal: 1 and True
            parts.append((kind, tuple(value) if kind is dict else len(value)))
            inner = value.values() if kind is dict else value
            if not _take_plain(inner, leaves, tensors, parts):
                return False
            continue
        else:
            return False
        leaves.append(value)
    return True


def _not_in_memory(tensor: Tensor) -> tuple[str, ...]:
    if tensor.is_neg() or tensor._is_zerotensor():
        return _NOT_IN_MEMORY
    return _CONJUGATE if tensor.is_conj() else ()


def _repeats(tensors: Sequence[Tensor]) -> list[Any]:
    """Which arguments are the same tensor."""
    ids = [id(t) for t in tensors]
    if len(set(ids)) == len(ids):
        return []
    return [tuple(ids.index(i) for i in ids)]


def _wrong(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    index: int,
    what: str,
    do: str,
) -> GraphInputError:
    name = input_names(build, args, kwargs)[index]
    return GraphInputError(
        f"{here()}: input {name!r} is {what}; a graph takes dense tensors, Python numbers, "
        f"strings, None, and lists, tuples, dicts and dataclasses of them: {do}."
    )


def check_call(build: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the arguments fit `build`'s declared parameters.

    Raises:
        GraphInputError: they do not.
    """
    try:
        inspect.signature(build).bind(*args, **kwargs)
    except TypeError as error:
        owner = getattr(build, "__qualname__", "build")
        raise GraphInputError(
            f"{here()}: the arguments do not fit {owner}{inspect.signature(build)}: {error}"
        ) from None


def check_tensors(call: BoundCall, table: ModuleTable) -> None:
    """Check that inputs and parameters have dtypes of the dialect and are on one device (0-d CPU tensors may be
    combined with any).

    Raises:
        GraphInputError: one does not, belongs to a lazy module, or is on another device.
    """
    known: tuple[str, torch.device] | None = None
    tensors = [(f"parameter {s.name!r}", s.tensor) for s in table.slots]
    tensors += [
        (f"input {n!r}", t) for n, t in zip(call.names, call.leaves) if isinstance(t, Tensor)
    ]
    for name, tensor in tensors:
        if torch.nn.parameter.is_lazy(tensor):
            raise GraphInputError(f"{here()}: {name} {LAZY}")
        if tensor.is_quantized or tensor.dtype not in _DTYPES:
            raise GraphInputError(
                f"{here()}: {name} has dtype {tensor.dtype}, which a graph cannot take; "
                "convert it first, e.g. with .float()."
            )
        if tensor.dim() == 0 and tensor.device.type == "cpu":
            continue
        if known is None:
            known = (name, tensor.device)
        elif tensor.device != known[1]:
            raise GraphInputError(
                f"{here()}: {name} is on {tensor.device}, but {known[0]} is on {known[1]}; "
                f"move one with .to({str(known[1])!r})."
            )
