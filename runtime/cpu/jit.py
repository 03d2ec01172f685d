"""Machine code of kernels: compiled by LLVM in threads, or from the disk cache.

Kernel functions are cached by their text for the life of the process: graphs, signatures and
layers that need the same code share it. The machine code of a program is kept on disk, too
(`runtime/stored/cache.py`), and is loaded without LLVM.

Kernels are compiled in threads (`_Job`), while code generation emits those that come next. A thread ends when there is
no more to do, and a process forks only when none runs: locks of LLVM would stay locked in the child.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from gflow.dialects.program import processor

from ..interrupts import held
from ..stored import cache as disk
from . import llvm
from .objects import LoadedObject, ObjectError, load_object, supported

if TYPE_CHECKING:
    from gflow.dialects.mlir import ExecutionEngine

_log = logging.getLogger("gflow")

#: (instruction sets, kernel) → address
_addresses: dict[tuple[str, str], int] = {}
_engines: list[ExecutionEngine] = []
_loaded: list[LoadedObject] = []
#: (instruction sets, kernel) → the disk cache's name for the object file that has it
_stored_in: dict[tuple[str, str], str] = {}
#: an entry that begins with it is a list of the names of other entries, which together have all kernels of a program
_LIST = b"gflow objects\n"
#: characters of the least text that a thread is started for: LLVM takes about 2 µs for each, and 10 ms for a module
_LEAST_TEXT = 32_000
#: bytes of a thread's stack; LLVM's passes are recursive
_STACK = 16 << 20


class _Job:
    """Kernels that one thread compiles."""

    def __init__(
        self, kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str
    ) -> None:
        self.kernels, self.declarations, self.isa = kernels, declarations, isa
        self.ended = threading.Event()
        self.error: BaseException | None = None


#: guards all that follows, and the tables above
_lock = threading.Lock()
#: by instruction sets and kernel, the job that compiles it
_jobs: dict[tuple[str, str], _Job] = {}
_queue: deque[_Job] = deque()
_threads: set[threading.Thread] = set()


def begin_kernels(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> None:
    """Begin to compile kernels in a thread. What fails is tried again, and raised, by `compile_kernels`; see there."""
    _begin(kernels, declarations, processor.limit(), parts=1)


def compile_kernels(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> dict[str, int]:
    """Addresses of kernel functions.

    Args:
        kernels: function name to the text of an `llvm.func` of that name; a name determines its
            text (it ends in a hash of it), so a name already compiled isn't compiled again.
        declarations: what they call: function name to its `llvm.func` text.

    Raises:
        MLIRError: a text is not valid MLIR.
        RuntimeError: LLVM cannot compile or link the kernels.
    """
    isa = processor.limit()
    whole = _cache_key(kernels, declarations, isa)
    with _lock:
        missing = [(isa, name) for name in kernels if (isa, name) not in _addresses]
        begun = any(at in _jobs for at in missing)
    if missing and (begun or whole is None or not _load(whole, kernels, isa)):
        _wait(_begin(kernels, declarations, isa, parts=_most_threads()))
    if whole is not None:  # another process asks for all of them at once
        _store_list(whole, kernels, isa)
    return {name: _addresses[isa, name] for name in kernels}


def _begin(
    kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str, parts: int
) -> list[_Job]:
    """Start threads for the kernels that are neither compiled nor being compiled. parts: the most of them.

    Returns:
        The jobs of the kernels that are not compiled.
    """
    most = _most_threads()
    with held(), _lock:
        missing = {
            name: text
            for name, text in kernels.items()
            if (isa, name) not in _addresses and (isa, name) not in _jobs
        }
        for part in _divided(missing, parts):
            job = _Job(part, declarations, isa)
            _queue.append(job)
            _jobs.update(dict.fromkeys([(isa, name) for name in part], job))
        before = threading.stack_size(_STACK)
        try:
            for _ in range(min(most - len(_threads), len(_queue))):
                thread = threading.Thread(target=_work, name="gflow: LLVM")
                thread.start()
                _threads.add(thread)
        except RuntimeError:
            # no more threads, as while the interpreter ends: `_wait` works instead
            pass
        finally:
            threading.stack_size(before)
        ours = (_jobs.get((isa, name)) for name in kernels)
        return [*dict.fromkeys(job for job in ours if job is not None)]


def _divided(kernels: Mapping[str, str], parts: int) -> list[dict[str, str]]:
    """Kernels in parts that take LLVM about the same time."""
    size = sum(map(len, kernels.values()))
    found: list[dict[str, str]] = [{} for _ in range(max(1, min(parts, size // _LEAST_TEXT)))]
    sizes = [0] * len(found)
    for name, text in sorted(kernels.items(), key=lambda item: -len(item[1])):
        least = sizes.index(min(sizes))
        found[least][name] = text
        sizes[least] += len(text)
    return [part for part in found if part]


def _most_threads() -> int:
    """As many threads as PyTorch may use, on the cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, torch.get_num_threads())


def _wait(jobs: Iterable[_Job]) -> None:
    """Wait for jobs.

    Raises:
        BaseException: what a job raises.
    """
    with _lock:
        alone = not _threads
    if alone:
        with held():
            _work()
    for job in jobs:
        job.ended.wait()
        if job.error is not None:
            raise job.error


def _work() -> None:
    """Run jobs while there are any: what a thread does."""
    while True:
        with _lock:
            if not _queue:
                _threads.discard(threading.current_thread())
                return
            job = _queue.popleft()
        try:
            _compile(job.kernels, job.declarations, job.isa)
        except BaseException as error:  # of the thread that waits
            job.error = error
        with _lock:
            for name in job.kernels:
                del _jobs[job.isa, name]
        job.ended.set()


def _before_fork() -> None:
    """Wait until no thread compiles, and let none begin."""
    while True:
        _lock.acquire()
        running = [*_threads]
        if not running:
            return
        _lock.release()
        for thread in running:
            thread.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def adopt_object(data: bytes, kernels: Iterable[str]) -> None:
    """Use stored machine code for kernels that are not compiled yet.

    Raises:
        ObjectError: the code is damaged, is for another machine, or lacks one of the kernels.
    """
    isa = processor.limit()
    with _lock:
        missing = [name for name in kernels if (isa, name) not in _addresses]
        if not missing:
            return
        loaded = load_object(data, llvm.symbol_address)
        for name in missing:
            if name not in loaded.symbols:
                raise ObjectError(f"the object file lacks the kernel {name}")
        _addresses.update({(isa, name): loaded.symbols[name] for name in missing})
        _loaded.append(loaded)


def object_file(kernels: Mapping[str, str], declarations: Mapping[str, str]) -> bytes | None:
    """The machine code of kernels as an object file; None on machines that cannot load such files."""
    if not supported():
        return None
    isa = processor.limit()
    name = _cache_key(kernels, declarations, isa)
    data = None if name is None else disk.read("objects", name)
    if data is not None and not data.startswith(_LIST):
        return data
    engine = llvm.engine_of(kernels, declarations, isa, dump=True)
    engine.raw_lookup(llvm.ADDRESSES)
    return llvm.object_of(engine)


def _compile(kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str) -> None:
    """Add the addresses of new kernels, from the disk cache or compiled."""
    name = _cache_key(kernels, declarations, isa)
    if name is not None and _load(name, kernels, isa):
        return
    engine = llvm.engine_of(kernels, declarations, isa, dump=supported())
    table = (ctypes.c_int64 * len(kernels))()
    pointer = ctypes.c_void_p(ctypes.addressof(table))
    # raw_lookup gives the packed interface: a function of one array of pointers to the arguments
    found = engine.raw_lookup(llvm.ADDRESSES)
    if not found:
        raise RuntimeError(
            f"LLVM could not link the kernels {', '.join(kernels)}: a function that they call is missing (LLVM names "
            "it on the standard error output)"
        )
    fill = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found)
    fill((ctypes.c_void_p * 1)(ctypes.addressof(pointer)))
    addresses = dict(zip(kernels, table))
    try:
        # an engine keeps some MiB beside the code, so it is dropped once the code is loaded without it
        code = llvm.object_of(engine) if supported() else None
        loaded = None if code is None else load_object(code, llvm.symbol_address)
    except (OSError, ObjectError) as error:  # no room for it
        uncached = "" if name is None else ", and their machine code is not cached"
        _log.warning("%d kernels keep LLVM's engine in memory%s: %s", len(kernels), uncached, error)
        code = loaded = None
    if loaded is not None:
        addresses = {kernel: loaded.symbols[kernel] for kernel in kernels}
    if name is not None and code is not None:
        disk.write("objects", name, code)
    with _lock:
        if loaded is None:
            _engines.append(engine)
        else:
            _loaded.append(loaded)
        if name is not None and code is not None:
            _stored_in.update({(isa, kernel): name for kernel in kernels})
        _addresses.update({(isa, kernel): at for kernel, at in addresses.items()})


def _load(name: str, kernels: Iterable[str], isa: str) -> bool:
    """Add the addresses of kernels from an entry of the disk cache; False if they are not all there."""
    data = disk.read("objects", name)
    if data is None:
        return False
    parts = [name]
    if data.startswith(_LIST):
        parts = data[len(_LIST) :].decode().split()
    codes = [data if part == name else disk.read("objects", part) for part in parts]
    places: dict[str, tuple[str, int]] = {}
    loaded = []
    try:
        for part, code in zip(parts, codes, strict=True):
            if code is None:
                return False
            loaded.append(load_object(code, llvm.symbol_address))
            places.update({k: (part, at) for k, at in loaded[-1].symbols.items()})
        found = {kernel: places[kernel] for kernel in kernels}
    except (ObjectError, KeyError) as error:
        disk.discard("objects", name, str(error))
        return False
    with _lock:
        _stored_in.update({(isa, kernel): part for kernel, (part, _) in found.items()})
        _loaded.extend(loaded)
        _addresses.update({(isa, kernel): at for kernel, (_, at) in found.items()})
    return True


def _store_list(name: str, kernels: Iterable[str], isa: str) -> None:
    """Write the list of the entries that have these kernels, if there are several: parts of the program, races, other
    programs of this process. name: the list's."""
    parts = {_stored_in.get((isa, kernel)) for kernel in kernels}
    if None not in parts and parts != {name} and disk.read("objects", name) is None:
        disk.write("objects", name, _LIST + "\n".join(sorted(filter(None, parts))).encode())


def _cache_key(kernels: Mapping[str, str], declarations: Mapping[str, str], isa: str) -> str | None:
    """The cache's name for the machine code of these kernels; None if there is no cache."""
    if disk.directory() is None or not supported():
        return None
    return disk.key(isa, *declarations.values(), *kernels.values())
