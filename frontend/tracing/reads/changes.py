"""Changes of Python objects by `build()`.

`build()` runs once for each program, so such a change happens once, not at every call. The user is warned of it, and
of state that no guard can compare.
"""

from __future__ import annotations

import random
import warnings
import weakref
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

import torch

from gflow.errors import GraphTraceError, StateChangedError
from gflow.tracing.data.updates import ONCE
from gflow.tracing.program.modules import Reached

from .names import is_library, names_of
from .of_objects import Order
from .reach import Read
from .reads import Reads
from .settings import ENVIRONMENT
from .state import MISSING, now, same

#: graphs, and the names for which they have warned
_told: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


#: slots of modules, whose tensors are compared elsewhere
_OF_TENSORS = ("._parameters", "._buffers")


def changed(before: Iterable[Read]) -> dict[str, str]:
    """The names of values that differ from what was read, each with a description of the change."""
    found: dict[str, str] = {}
    for read in before:
        value = now(read)
        if read.kind in ("list", "dict"):
            if len(value) != len(read.value) or not all(map(same, value, read.value)):
                found.setdefault(read.path, "items of it")
        elif read.kind == "size" and value != read.value and not read.path.endswith(_OF_TENSORS):
            found.setdefault(read.path, "items of it")
        elif read.kind == "hooks" and value != read.value:
            found.setdefault(read.path, "hooks in it")
        elif read.kind == "call" and not same(value, read.value):
            found.setdefault(read.path, "values in it")
        elif read.kind == "class" and value is not read.value:
            found.setdefault(read.path, "its class")
        elif read.kind in ("item", "attribute", "cell") and not same(value, read.value):
            found.setdefault(read.path, f"{_short(read.value)} to {_short(value)}")
    return found


def put_back(before: Iterable[Read], names: frozenset[str] | set[str]) -> None:
    """Restore the values that were read. names: attributes that are removed if they did not exist."""
    before = list(before)
    held = {(id(r.holder), r.key) for r in before if r.kind == "slot"}
    for read in before:
        value = now(read)
        if read.kind == "size" and value != read.value and read.path.endswith("._modules"):
            for key in [k for k in read.holder if (id(read.holder), k) not in held]:
                del read.holder[key]
        elif read.kind == "hooks" and value != read.value:
            hooks = read.holder if read.key is None else read.holder[read.key]
            hooks.clear()
            hooks.update(read.value)
        if read.value is MISSING and value is not MISSING and read.kind == "missing":
            delattr(read.holder, read.key)
        if read.kind == "names":
            for name in names & (value - read.value):
                if isinstance(read.holder, dict):
                    read.holder.pop(name)
                elif isinstance(read.key, type):
                    delattr(read.key, name)
        if read.kind in ("list", "dict"):
            if len(value) == len(read.value) and all(a is b for a, b in zip(value, read.value)):
                continue
            read.holder.clear()
            if read.kind == "list":
                ordered = not isinstance(read.holder, set)
                (read.holder.extend if ordered else read.holder.update)(read.value)
            else:
                half = len(read.value) // 2
                read.holder.update(zip(read.value[:half], read.value[half:]))
        elif read.kind in ("item", "attribute", "cell") and value is not read.value:
            _assign(read)
        elif read.kind == "class" and value is not read.value:
            read.holder.__class__ = read.value
        elif read.kind == "call" and read.key is not None and not same(value, read.value):
            read.key()


def _hidden(read: Read) -> str:
    """What TorchDynamo would do with a change that it does not detect; "" if it detects it."""
    if read.kind == "call" and isinstance(getattr(read.holder, "__self__", None), random.Random):
        return "turn its random numbers into constants"
    if isinstance(read.holder, Order) and {*read.value} == {*read.holder}:
        return "leave the order of an OrderedDict as it is"
    if read.kind == "attribute" and isinstance(read.holder, FunctionType):
        return "turn attributes of a function into constants"
    if read.kind == "call" and read.path == ENVIRONMENT:
        return "turn the environment into constants"
    if read.kind == "call" and isinstance(getattr(read.holder, "__self__", None), weakref.WeakSet):
        return "turn the members of a WeakSet into constants"
    return ""


def _hidden_iterator(held: Any) -> str:
    """What TorchDynamo would do with an iterator of an unsupported kind."""
    return (
        "turn what an iterator gives into constants" if isinstance(held, type(iter(int, 1))) else ""
    )


def _assign(read: Read) -> None:
    if read.kind == "cell" and read.value is MISSING:
        del read.holder.cell_contents
    elif read.kind == "cell":
        read.holder.cell_contents = read.value
    elif read.kind == "attribute":
        setattr(read.holder, read.key, read.value)
    elif read.value is MISSING:
        dict.pop(read.holder, read.key, None)
    else:
        dict.__setitem__(read.holder, read.key, read.value)


def refuse_changes(
    name: str,
    before: Iterable[Read],
    lost: Iterable[str],
    codes: Iterable[CodeType],
    home: tuple[str, int],
    untraced: str = "",
) -> None:
    """Check that `build()` has changed nothing that it or other code may read.

    Args:
        untraced: what TorchDynamo would do with its code, if it does not support it.
        lost: places where it has put tensors.
        home: the location of `build()`.

    Raises:
        StateChangedError: it has.
    """
    for path in lost:
        file, line = _place(path, codes, home)
        raise StateChangedError(f"{file}:{line}: {name} puts a tensor into {path} at each call")
    changes = changed(before)
    for path, what in changes.items():
        file, line = _place(path, codes, home)
        error = StateChangedError(f"{file}:{line}: {name} changes {path} ({what}) at each call")
        error.hidden = next(filter(None, [_hidden(r) for r in before if r.path in changes]), "")
        error.hidden = error.hidden or untraced
        raise error


def warn_of_changes(
    graph: Any,
    name: str,
    before: Iterable[Read],
    reached: Reached,
    codes: Iterable[CodeType],
    home: tuple[str, int],
) -> None:
    """Warn once of each change of `build()` that is not repeated, and of each tensor that it has stored where it is
    lost. home: the location of `build()`.

    Raises:
        GraphTraceError: a lost tensor is read by `build()`, or it has made an assignment that is no update of tensors.
    """
    for path, what in reached.refused:
        file, line = _place(path, codes, home)
        raise GraphTraceError(f"{file}:{line}: build() of {name} {what}.")
    for path, what in changed(before).items():
        change = what if what.endswith(("of it", "in it", "class")) else f"from {what}"
        _tell(
            graph,
            path,
            f"build() of {name} changes {path} ({change}). It runs once for each program, not at every call, "
            "so this is not repeated. Keep what has to change at every call in a buffer (or another tensor), "
            "or outside of build().",
            _place(path, codes, home),
        )
    for path in reached.lost:
        last = path.rpartition(".")[2]
        if any(last in names_of(code).before for code in codes if not is_library(code)):
            file, line = _place(path, codes, home)
            raise GraphTraceError(
                f"{file}:{line}: build() of {name} finds no tensor to update at {path}, and puts one there for the "
                "next call. A program can only update tensors that exist before the call. Create the tensor before "
                "the first call (register_buffer), and use a separate Python value for the choice. "
                f"{ONCE}."
            )
        _tell(
            graph,
            path,
            f"build() of {name} puts a tensor into {path}, where none was before the call: there is nothing to "
            "update, and a tensor of the trace has no values after it. Return the tensor from build(), or give "
            "the module a buffer for it.",
            _place(path, codes, home),
        )


def lose_arguments(
    graph: Any, name: str, rearranged: Iterable[str], home: tuple[str, int], refused: bool
) -> None:
    """Warn once for each list or dict of an argument that `build()` changes: the caller does not see the change.

    Raises:
        StateChangedError: instead of the warning, if `refused`.
    """
    for path in rearranged:
        if refused:
            raise StateChangedError(
                f"{home[0]}:{home[1]}: {name} changes items of {path} at each call"
            )
        _tell(
            graph,
            path,
            f"build() of {name} changes items of {path}. It gets a copy of the lists and dicts that a call is given, "
            "so the caller does not see that. Return what is new from build().",
            home,
        )


def lose_settings(
    graph: Any,
    name: str,
    passing: Iterable[tuple[str, tuple[str, int]]],
    home: tuple[str, int],
    refused: bool,
) -> None:
    """Warn once for each setting of autograd that `build()` leaves changed: after the call it is as before.

    Raises:
        StateChangedError: instead of the warning, if `refused`.
    """
    for what, line in passing:
        where = line if line[1] else home
        if refused:
            raise StateChangedError(f"{where[0]}:{where[1]}: {name} changes {what} at each call")
        _tell(
            graph,
            what,
            f"build() of {name} changes {what}. That holds until build() ends: after each call it is as before. Change "
            "it before the call.",
            where,
        )


def warn_of_cached(graph: Any, name: str, paths: Iterable[str], home: tuple[str, int]) -> None:
    """Warn once for each `functools.lru_cache` that it keeps no tensor of `build()`."""
    for path in paths:
        _tell(
            graph,
            path,
            f"build() of {name} calls {path}, of which functools.lru_cache would keep a tensor. A tensor of the trace "
            "has no values after it, so what it keeps is given up, and the program makes the tensor at each call. Call "
            "the function before the graph to have its tensor kept, and used by the program.",
            home,
        )


def refuse_lasting(name: str, reads: Reads, home: tuple[str, int]) -> None:
    """Check that `build()` makes no change that cannot be undone.

    Raises:
        StateChangedError: it can advance an iterator, change an object that Python cannot inspect, or set a variable
            that had no value.
    """
    refused = [
        (path, f"take values from {path}, an iterator,", _hidden_iterator(held))
        for path, held in reads.iterators
    ]
    refused += [(path, f"change {path}, {what},", "") for path, what in reads.opaque]
    refused += [(path, f"read or change {path}, {_large(n)},", "") for path, n in reads.large]
    refused += [(path, f"set {path}, which has no value,", "") for path in reads.unset]
    for path, what, hidden in refused:
        file, line = _place(path, reads.codes, home)
        error = StateChangedError(f"{file}:{line}: {name} can {what} at each call")
        error.hidden = hidden
        raise error


def warn_of_constants(graph: Any, name: str, reads: Reads, home: tuple[str, int]) -> None:
    """Warn once of each value that no guard can compare: the next value of an iterator, and objects of C code. home:
    the location of `build()`."""
    for path, _ in reads.iterators:
        _tell(
            graph,
            path,
            f"build() of {name} can take values from {path}, an iterator. It runs once for each program, not "
            "at every call, so they are constants. Take them outside of build(), and pass them as arguments.",
            _place(path, reads.codes, home),
        )
    for path, size in reads.large:
        _tell(
            graph,
            path,
            f"build() of {name} can read or change {path}, {_large(size)}. It runs once for each program, not at every "
            "call, so what it reads is a constant, and what it changes is changed once. Make an array that stays as it "
            "is read-only (array.setflags(write=False)), or pass it as an argument, or as a tensor.",
            _place(path, reads.codes, home),
        )
    for path, what in reads.opaque:
        _tell(
            graph,
            path,
            f"build() of {name} can change or read {path}, {what}. It runs once for each program, not at every call, "
            "so what it changes is changed once, and what it reads is a constant. Use it outside of build().",
            _place(path, reads.codes, home),
        )


def refuse_shared_arrays(
    name: str, reads: Reads, written: Iterable[tuple[str, torch.Tensor]], home: tuple[str, int]
) -> None:
    """Check that `build()` reads no NumPy array over the memory of a tensor that the program updates.

    Raises:
        GraphTraceError: it does. The array would have the values from before the call.
    """
    places = [(what, t.untyped_storage()) for what, t in written if t.device.type == "cpu"]
    for path, held in reads.arrays:
        for what, storage in places:
            begin = held.__array_interface__["data"][0]
            if begin - storage.data_ptr() in range(max(storage.nbytes(), 1)):
                file, line = _place(path, reads.codes, home)
                raise GraphTraceError(
                    f"{file}:{line}: build() of {name} reads {path}, a NumPy array over the memory of {what}, which "
                    "the program updates. build() runs before the program, so it would read the values from before the "
                    "call. Read the tensor instead."
                )


def _large(size: int) -> str:
    return f"an array of {size / 2**20:.1f} MiB, which calls do not compare"


def _tell(graph: Any, path: str, text: str, where: tuple[str, int]) -> None:
    told = _told.setdefault(graph, set())
    if path not in told:
        told.add(path)
        warnings.warn_explicit(text, UserWarning, *where)


def _place(path: str, codes: Iterable[CodeType], home: tuple[str, int]) -> tuple[str, int]:
    """The line that assigns a name, or that first reads it."""
    last = path.partition("[")[0].rpartition(".")[2]
    own = [code for code in codes if not is_library(code)]
    for kind in ("assigned", "loaded"):
        for code in own:
            line = getattr(names_of(code), kind).get(last)
            if line is not None:
                return code.co_filename, line
    return home


def _short(value: Any) -> str:
    text = repr(value) if not hasattr(value, "__dict__") else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
