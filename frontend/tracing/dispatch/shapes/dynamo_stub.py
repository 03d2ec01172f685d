"""Fake tensors without importing all of TorchDynamo, which takes a second and a half.

`FakeTensorMode` reads a few flags of `torch._dynamo.config`, and importing that module runs the package's `__init__`,
which loads all of TorchDynamo. While a trace runs, a stand-in for the package allows importing its submodules alone.
Any other use of it loads the real package, which then replaces the stand-in. A module is the same object for all
threads, so this is only done in processes with one thread.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from ...context.threads import BESIDE, originals

_NAME = "torch._dynamo"


class _StandIn(ModuleType):
    """The package while a trace runs. Functions that PyTorch hides from TorchDynamo ask it once for a wrapper and
    cache the answer: here they get themselves, and the cached answers are cleared when the stand-in is removed."""

    def __init__(self, name: str, until_the_end: contextlib.ExitStack) -> None:
        super().__init__(name)
        self.until_the_end = until_the_end
        self.asked: list[Any] = []

    def disable(self, fn: Any, recursive: bool = True, **_: Any) -> Any:
        self.asked.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        _kept.clear()
        with originals():  # TorchDynamo keeps the functions of PyTorch that it finds
            package = importlib.import_module(_NAME)
        self.until_the_end.enter_context(_compiles_with_originals())
        return getattr(package, name)


def _remove(stand_in: _StandIn) -> None:
    """Remove the stand-in and the modules that were loaded under it. The real package, which may be being imported
    from one of these, loads its own."""
    for fn in stand_in.asked:
        getattr(fn, "__dict__", {}).pop("__dynamo_disable", None)
    stand_in.asked.clear()
    if sys.modules.get(_NAME) is stand_in:
        later = list(itertools.takewhile(lambda name: name != _NAME, reversed(sys.modules)))
        del sys.modules[_NAME]
        for name in later:
            if name.startswith(f"{_NAME}."):
                _kept[name] = sys.modules.pop(name)
    if torch.__dict__.get("_dynamo") is stand_in:
        del torch.__dict__["_dynamo"]


#: submodules that were loaded without the package, for the next trace
_kept: dict[str, ModuleType] = {}


@contextlib.contextmanager
def _compiles_with_originals() -> Iterator[None]:
    """Let TorchDynamo compile in this thread (for `torch.cond`) as if no graph were traced: it keeps tables of
    PyTorch's functions, which it builds at first use."""
    handler = importlib.import_module(f"{_NAME}.callback").callback_handler
    thread, during = threading.get_ident(), contextlib.ExitStack()

    def start(_: object) -> None:
        if threading.get_ident() == thread:
            during.enter_context(originals())

    def end(_: object) -> None:
        if threading.get_ident() == thread:
            during.close()

    handler.register_start_callback(start)
    handler.register_end_callback(end)
    try:
        yield
    finally:
        during.close()
        for callbacks, mine in ((handler.start_callbacks, start), (handler.end_callbacks, end)):
            if mine in callbacks:  # torch._dynamo.reset() removes all callbacks
                callbacks.remove(mine)


@contextlib.contextmanager
def light_dynamo() -> Iterator[None]:
    """Within, `import torch._dynamo.config` loads only that module, unless TorchDynamo is loaded.

    If there are threads that are not gflow's own, TorchDynamo is loaded, since one of them may import it, or a
    submodule, at any time.
    """
    threads = [thread for thread in threading.enumerate() if thread.name != BESIDE]
    if _NAME in sys.modules or len(threads) > 1:
        importlib.import_module(_NAME)  # waits for a thread that is importing it
        with _compiles_with_originals():
            yield
        return
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    until_the_end = contextlib.ExitStack()
    stand_in = _StandIn(_NAME, until_the_end)
    stand_in.__path__ = [f"{path}/_dynamo" for path in spec.submodule_search_locations]
    stand_in.__spec__ = importlib.machinery.ModuleSpec(_NAME, None, is_package=True)
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in  # type: ignore[assignment]
    for name, module in _kept.items():
        sys.modules[name] = module
        setattr(stand_in, name.rpartition(".")[2], module)
    try:
        importlib.import_module(f"{_NAME}.config")
        with until_the_end:
            yield
    finally:
        _remove(stand_in)
