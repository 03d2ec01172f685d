"""Values that code gets from a call rather than from an object: settings of PyTorch, context variables, the memory of
arrays. A guard repeats the call and compares."""

from __future__ import annotations

import array
import contextvars
import copy
import ctypes
import decimal
import functools
import inspect
import io
import logging
import mmap
import os
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch

#: arrays with more bytes are not compared at each call
MOST_BYTES = 1 << 16
#: those with more are not compared after a trace either
MOST_BYTES_ONCE = 1 << 28


_C: Any = torch._C
#: what the attributes of `torch.backends` call: properties of modules, which take three times as long
_BACKENDS: tuple[Callable[[], Any], ...] = (
    _C._get_mkldnn_enabled, _C._get_mkldnn_deterministic, _C._get_onednn_allow_tf32, _C._get_qengine,
    _C._get_cudnn_enabled, _C._get_cudnn_benchmark, _C._get_cudnn_deterministic, _C._get_cudnn_allow_tf32,
    _C._get_cublas_allow_tf32, _C._get_cublas_allow_fp16_reduced_precision_reduction,
    _C._get_cublas_allow_bf16_reduced_precision_reduction, _C._get_flash_sdp_enabled, _C._get_mem_efficient_sdp_enabled,
    _C._get_math_sdp_enabled, _C._get_cudnn_sdp_enabled,
)  # fmt: skip


def _backends() -> tuple[Any, ...]:
    einsum = torch.backends.opt_einsum
    return (*[read() for read in _BACKENDS], einsum.enabled, einsum.strategy)


#: by a name that occurs in the code that reads it
_SETTINGS: dict[str, Callable[[], Any]] = {
    "backends": _backends,
    "initial_seed": torch.initial_seed,
    "get_num_threads": torch.get_num_threads,
    "get_num_interop_threads": torch.get_num_interop_threads,
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "is_deterministic_algorithms_warn_only_enabled": (
        torch.is_deterministic_algorithms_warn_only_enabled
    ),
    "get_deterministic_debug_mode": torch.get_deterministic_debug_mode,
    "get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "is_anomaly_enabled": torch.is_anomaly_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
    "is_warn_always_enabled": torch.is_warn_always_enabled,
    "get_fastpath_enabled": lambda: torch.backends.mha.get_fastpath_enabled(),
}
#: those of the process, in the same way
_OF_PROCESS: dict[str, Callable[[], Any]] = {
    "getrecursionlimit": sys.getrecursionlimit,
    "getswitchinterval": sys.getswitchinterval,
    "getcwd": os.getcwd,
}


ENVIRONMENT = "os.environ"
#: a function that returns a value, and one that restores the current value, if there is one
_Setting = tuple[str, Callable[[], Any], "Callable[[], Any] | None"]


def settings(names: Iterable[str], changed: Collection[str] = ()) -> Iterator[_Setting]:
    """The settings that code with these names may read, with the functions that return and restore them. changed: names
    in code that may change settings which no code reads."""
    for name in _SETTINGS.keys() & names:
        yield f"torch.{name}", _SETTINGS[name], None
    for name in _OF_PROCESS.keys() & names:
        yield f"{_OF_PROCESS[name].__module__}.{name}", _OF_PROCESS[name], None
    if not {"decimal", "Decimal", "getcontext"}.isdisjoint(names):
        held = decimal.getcontext().copy()
        yield "decimal.getcontext()", _decimals, functools.partial(_put_decimals, held)
    if not {"simplefilter", "filterwarnings", "resetwarnings"}.isdisjoint(changed):
        yield "warnings.filters", _filters, functools.partial(_put_filters, list(warnings.filters))
    if not {"decimal", "Decimal", "getcontext"}.isdisjoint(changed):
        put_flags = functools.partial(_put_flags, _flags())
        yield "decimal.getcontext().flags", _flags, put_flags
    if "modules" in changed:
        known = dict(sys.modules)
        entries = functools.partial(_entries, known)
        yield "sys.modules", entries, functools.partial(_put_entries, known)
    if "disable" in changed:
        yield "logging.disable", _disabled, functools.partial(logging.disable, _disabled())
    if not {"environ", "getenv"}.isdisjoint(names):
        yield ENVIRONMENT, _environment, functools.partial(_put_environment, dict(os.environ))


def _filters() -> tuple[Any, ...]:
    return tuple(warnings.filters)


def _put_filters(held: list[Any]) -> None:
    warnings.filters[:] = held  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _disabled() -> int:
    return logging.root.manager.disable


def _decimals(of: decimal.Context | None = None) -> str:
    """The precision and the rounding mode of decimal numbers; not the flags of past operations."""
    context = (of or decimal.getcontext()).copy()
    context.clear_flags()
    return repr(context)


def _flags() -> tuple[str, ...]:
    return tuple(kind.__name__ for kind, on in decimal.getcontext().flags.items() if on)


def _put_flags(held: tuple[str, ...]) -> None:
    flags = decimal.getcontext().flags
    for kind in flags:
        flags[kind] = kind.__name__ in held


#: modules without a specification that an import of compiled code makes
_OF_CYTHON = ("_cython_", "cython_runtime")


def _entries(known: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """The entries of `sys.modules` that no import makes: others than the known ones under their names, and modules
    without a specification."""
    now = sys.modules
    found = [name for name, module in known.items() if now.get(name) is not module]
    found += [
        name for name, module in now.items()
        if name not in known and "." not in name and getattr(module, "__spec__", None) is None
        and not name.startswith(_OF_CYTHON)
    ]  # fmt: skip
    return tuple((name, id(now.get(name))) for name in found)


def _put_entries(known: dict[str, Any]) -> None:
    for name, _ in _entries(known):
        if name in known:
            sys.modules[name] = known[name]
        else:
            del sys.modules[name]


def _environment() -> tuple[Any, ...]:
    return tuple(os.environ.items())


def size_of(held: Any) -> int | None:
    """The bytes of memory that is compared by its contents: arrays of NumPy, of `array` and of `ctypes`, memory views,
    files in memory. None for other objects."""
    if isinstance(held, (io.StringIO, io.BytesIO, mmap.mmap)):
        return None if held.closed else _length(held)
    if isinstance(held, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)):
        return ctypes.sizeof(held)
    if isinstance(held, (array.array, bytearray)):
        return len(held) * getattr(held, "itemsize", 1)
    return held.nbytes if isinstance(held, memoryview) or is_array(held) else None


def is_array(held: Any) -> bool:
    """Whether an object is an array of NumPy."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(held, numpy.ndarray)


def is_constant(held: Any) -> bool:
    """Whether nothing can write into an array: it and all arrays whose memory it shares are read-only."""
    while is_array(held):
        if held.flags.writeable:
            return False
        if held.base is None:
            return True
        held = held.base
    return isinstance(held, bytes) or (isinstance(held, memoryview) and isinstance(held.obj, bytes))


def checksum(held: Any) -> Any:
    """The contents of a large array in short form."""
    if isinstance(held, io.StringIO):
        return zlib.crc32(held.getvalue().encode(errors="surrogatepass")), held.tell()
    if isinstance(held, io.BytesIO):
        return zlib.crc32(held.getbuffer()), held.tell()
    if is_array(held):
        if held.dtype.hasobject:
            return _array(held)
        data = held if held.flags.c_contiguous else held.copy(order="C")
        return held.shape, held.dtype.str, zlib.crc32(data.reshape(-1).view("u1").data)
    return zlib.crc32(bytes(held) if isinstance(held, memoryview) else held)


def value_of(held: Any) -> Callable[[], Any] | None:
    """A function that returns the value of an object that Python cannot inspect, as plain values; None for other
    objects."""
    if isinstance(held, contextvars.ContextVar):
        return functools.partial(_context, held)
    if isinstance(held, random.Random):
        return None if isinstance(held, random.SystemRandom) else held.getstate
    if isinstance(held, decimal.Decimal):
        return _decimals
    if isinstance(held, decimal.Context):
        return functools.partial(_decimals, held)
    if isinstance(held, (io.StringIO, io.BytesIO, mmap.mmap)):
        return None if held.closed else functools.partial(_text, held)
    if size_of(held) is not None:
        return functools.partial(_array if is_array(held) else bytes, held)
    if isinstance(held, torch.Generator):
        return held.initial_seed
    return functools.partial(_drawn, held) if _draws(held) else None


def _draws(held: Any) -> bool:
    """Whether an object is a generator of random numbers of NumPy."""
    module: Any = sys.modules.get("numpy.random")
    kinds = ("Generator", "RandomState", "BitGenerator")
    return module is not None and isinstance(held, tuple(getattr(module, k) for k in kinds))


def putting_back(held: Any) -> Callable[[], Any] | None:
    """A function that restores the current value of an object supported by `value_of`; None if there is none."""
    if isinstance(held, contextvars.ContextVar):
        return None if is_unset(held) else functools.partial(held.set, held.get())
    if isinstance(held, random.Random):
        return functools.partial(held.setstate, held.getstate())
    if isinstance(held, torch.Generator):
        return functools.partial(held.set_state, held.get_state())
    if isinstance(held, decimal.Context):
        return functools.partial(_put_decimals, held.copy(), held)
    if isinstance(held, (io.StringIO, io.BytesIO, mmap.mmap)):
        return functools.partial(_put_text, held, *_text(held))
    if isinstance(held, (array.array, bytearray)):
        return functools.partial(held.__setitem__, slice(None), held[:])
    if isinstance(held, memoryview):
        if held.readonly or not held.nbytes or not held.c_contiguous:
            return None
        return functools.partial(held.cast("B").__setitem__, slice(None), bytes(held))
    if isinstance(held, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)):
        return functools.partial(
            ctypes.memmove, ctypes.addressof(held), bytes(held), ctypes.sizeof(held)
        )
    if is_array(held):
        return functools.partial(_put_array, held, held.copy()) if held.flags.writeable else None
    if _draws(held):
        bits = _bits(held)
        return functools.partial(setattr, bits, "state", copy.deepcopy(bits.state))
    return None


def _length(held: io.StringIO | io.BytesIO | mmap.mmap) -> int:
    if isinstance(held, mmap.mmap):
        return len(held)
    return held.getbuffer().nbytes if isinstance(held, io.BytesIO) else len(held.getvalue())


def _text(held: io.StringIO | io.BytesIO | mmap.mmap) -> tuple[Any, int]:
    """The contents of a file in memory, and its position."""
    if held.closed:
        return "closed", 0
    return held[:] if isinstance(held, mmap.mmap) else held.getvalue(), held.tell()


def _put_text(held: Any, text: Any, place: int) -> None:
    if isinstance(held, mmap.mmap):
        held[:] = text
    else:
        held.seek(0)
        held.truncate()
        held.write(text)
    held.seek(place)


def _put_decimals(held: decimal.Context, now: decimal.Context | None = None) -> None:
    now = now or decimal.getcontext()
    for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps"):
        setattr(now, name, getattr(held, name))


def _put_environment(held: dict[str, str]) -> None:
    for name in os.environ.keys() - held.keys():
        del os.environ[name]
    os.environ.update(held)


def _put_array(held: Any, before: Any) -> None:
    held.flags.writeable = True
    if held.nbytes != before.nbytes:
        held.resize(before.shape, refcheck=False)
    for name in ("dtype", "shape"):  # setting one makes numpy look whether it can
        if getattr(held, name) != getattr(before, name):
            setattr(held, name, getattr(before, name))
    held[...] = before


def _array(held: Any) -> tuple[Any, ...]:
    return (
        held.shape,
        held.dtype.str,
        held.flags.writeable,
        repr(held.tolist()) if held.dtype.hasobject else held.tobytes(),
    )


def _drawn(held: Any) -> str:
    """The state of a generator of NumPy."""
    return repr(_bits(held).state)


def _bits(held: Any) -> Any:
    if hasattr(held, "random_raw"):
        return held
    return getattr(held, "bit_generator", None) or held._bit_generator


class _Clearings:
    """Counts how often the cache of a `functools.lru_cache` function was cleared."""

    def __init__(self, held: Any) -> None:
        self._held, self._count, self._misses = held, 0, held.cache_info().misses

    def __call__(self) -> int:
        misses = self._held.cache_info().misses
        self._count += misses < self._misses
        self._misses = misses
        return self._count


def cleared_of(held: Any) -> Callable[[], int] | None:
    """A function whose result changes when the cache of a function is cleared; None for a function without a cache."""
    return _Clearings(held) if isinstance(held, functools._lru_cache_wrapper) else None


_UNSET = "no value"


def is_unset(held: Any) -> bool:
    """Whether an object is a context variable without a value: only the code that sets it can remove the value
    again."""
    return isinstance(held, contextvars.ContextVar) and _context(held) is _UNSET


def _context(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()  # its default, if it has one
    except LookupError:
        return _UNSET


def is_iterator(held: Any) -> bool:
    """Whether an object of C code, or of PyTorch, returns other values at each use, and Python cannot inspect which
    ones are next."""
    kind = type(held)
    if isinstance(held, (CoroutineType, AsyncGeneratorType)):
        return True
    following = inspect.getattr_static(kind, "__next__", None)
    if isinstance(following, FunctionType):
        return module_of(kind).startswith("torch.")
    return isinstance(following, WrapperDescriptorType) and not hasattr(kind, "fileno")


#: types of attributes in classes of C code; Python's classes with `__slots__` have them, too
_ATTRIBUTES = (GetSetDescriptorType, MemberDescriptorType)
#: modules whose objects of C code are immutable, or are compared elsewhere
_LASTING = {
    "_abc", "_ctypes", "_struct", "builtins", "ctypes", "functools", "numpy", "operator", "re", "torch", "types",
    "typing", "zoneinfo",
}  # fmt: skip


def out_of_sight(held: Any, names: Collection[str]) -> str:
    """A description of an object that changes where Python cannot inspect it, by methods of C code with `names`; ""
    for other objects. Files, sockets and pipes also change by functions (`print`). Objects that are compared by value
    do not change."""
    kind: Any = type(held)
    if hasattr(kind, "fileno") and isinstance(kind, type):
        return f"a file or connection ({kind.__name__})"
    if isinstance(
        held, contextvars.Context
    ):  # no one but a function that it runs can put its variables back
        return "a context of variables"
    if kind.__hash__ is object.__hash__ and not _in_c(kind).isdisjoint(names):
        return f"an object of {kind.__name__}"
    return ""


@functools.lru_cache(maxsize=4096)
def _in_c(kind: type) -> frozenset[str]:
    """Methods that are written in C, except those of immutable objects. For Python's own classes also attributes, and
    functions of their modules, such as `xml.etree.ElementTree.SubElement`."""
    found: set[str] = set()
    for base in kind.__mro__:
        root = module_of(base).partition(".")[0]
        if root in _LASTING:
            continue
        standard = root in sys.stdlib_module_names and "__slots__" not in vars(base)
        parts = (MethodDescriptorType, *(_ATTRIBUTES if standard else ()))
        own = {n for n, part in vars(base).items() if isinstance(part, parts) and n[:2] != "__"}
        found |= own
        if own and standard:
            beside = vars(sys.modules.get(module_of(base), object))
            found |= {n for n, part in beside.items() if isinstance(part, BuiltinFunctionType)}
    return frozenset(found)


def module_of(kind: type) -> str:
    """The name of the module of a class; functions of Cython's classes have none."""
    return kind.__module__ if isinstance(kind.__module__, str) else ""
