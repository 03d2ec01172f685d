"""Source locations of recorded ops: user frame, module path, and the forward op that a backward op belongs to (by the
autograd node's sequence number)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from weakref import WeakKeyDictionary

import torch

from ..data.values import SourceLoc
from .scopes import ScopeStack, checkpoint_calls
from .threads import here_only, replaced
from .watch import current, infos
from .wrappers import check_module


def _folder(package: str) -> Path:
    """The folder of a package, without importing it. Symbolic links are resolved for a file in it, since installers
    may link each file."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent


#: in a checkout, gflow's folders are siblings
_OWN_DIRS = tuple(
    str(_folder(package)) + os.sep
    for package in ("gflow", "gflow.compiler", "gflow.dialects", "gflow.runtime")
)
_PYTORCH = str(_folder("torch")) + os.sep
_STANDARD_LIBRARY = str(Path(contextlib.__file__).resolve().parent) + os.sep
#: prefixes that classify most files without resolving links
_PYTORCH_AS_IMPORTED = str(Path(torch.__file__).parent) + os.sep
_STANDARD_LIBRARY_AS_IMPORTED = str(Path(contextlib.__file__).parent) + os.sep
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
#: by file: code objects of two files are equal where they read alike and begin at one line, as in a copied library
_owners: dict[str, str] = {}


_resolved_folder = cache(os.path.realpath)


def _resolved(file: str) -> str:
    """A file's path with symbolic links resolved; those of its folder are resolved once for all of its files."""
    if os.path.islink(file):  # noqa: PTH114  # of each module of a process: a Path takes three times as long
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    return f"{_resolved_folder(folder)}{os.sep}{name}"


def owner_of(file: str) -> str:
    """The owner of a file's code: "gflow", "torch", "standard" (Python's library) or "user" (all others)."""
    owner = _owners.get(file)
    if owner is None:
        # most modules of a process are PyTorch's and Python's: resolving the links of each would take 0.2 s of a call
        known = file.startswith(_PYTORCH_AS_IMPORTED) or (
            file.startswith(_STANDARD_LIBRARY_AS_IMPORTED) and not is_installed(file)
        )
        path = file if known else _resolved(file)
        if path.startswith(_OWN_DIRS):
            owner = "gflow"
        elif path.startswith((_PYTORCH, _PYTORCH_AS_IMPORTED)):
            owner = "torch"
        elif file.startswith("<frozen") or (
            path.startswith((_STANDARD_LIBRARY, _STANDARD_LIBRARY_AS_IMPORTED))
            and "site-packages" not in path
        ):
            owner = "standard"
        else:
            owner = "user"
        _owners[file] = owner
    return owner


def is_user_code(code: CodeType) -> bool:
    """Whether code is outside of torch, gflow and the standard library."""
    return owner_of(code.co_filename) == "user"


@cache
def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed library."""
    path = os.sep + file
    return any(folder in path for folder in _INSTALLED)


def user_frame(depth: int = 1) -> tuple[str, int]:
    """File and line of the innermost frame outside torch and gflow."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if is_user_code(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


def here() -> str:
    """`file:line` of the innermost frame outside torch and gflow, for the beginning of errors."""
    file, line = user_frame(2)
    return f"{file}:{line}"


def user_line(error: BaseException) -> str:
    """`file:line: ` of the innermost user frame in the traceback of `error`; "" if there is none."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        if is_user_code(trace.tb_frame.f_code):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return found


#: optimizers and the lines that added them to their graphs
_added: WeakKeyDictionary[torch.optim.Optimizer, tuple[str, int]] = WeakKeyDictionary()


def optimizer_added(optimizer: torch.optim.Optimizer) -> None:
    """Record the line that adds an optimizer to a graph, as the location of its ops."""
    _added[optimizer] = user_frame(2)


class Locator:
    """The location of the op that is being dispatched, while a trace is recorded.

    Args:
        outside: code of the functions that call `build()` and optimizers. Their callers are not locations of ops; an
            op without user code inside of them has the location `home`.
    """

    def __init__(self, module_names: Mapping[int, str], outside: Collection[CodeType] = ()) -> None:
        self.module_names, self.outside = module_names, outside
        self.home = ("<unknown>", 0)
        self.stack: list[str] = [""]
        self._failed: tuple[BaseException | None, str] = (None, "")
        self.scopes = ScopeStack()
        self.optimizer = False
        self.backward_loc: SourceLoc | None = None
        self.watcher = current()
        self._by_node: dict[int, SourceLoc] = {}
        self._cache: dict[tuple[str, int, str, str], SourceLoc] = {}

    def _loc(self, file: str, line: int, module: str, phase: str) -> SourceLoc:
        key = (file, line, module, phase)
        loc = self._cache.get(key)
        if loc is None:
            loc = self._cache[key] = SourceLoc(file, line, module, phase)
        return loc

    @contextlib.contextmanager
    def at_home(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Within, ops without user code have the location where `optimizer` was added."""
        before = self.home
        self.home = _added.get(optimizer, before)
        try:
            yield
        finally:
            self.home = before

    def _user_line(self) -> tuple[str, int]:
        frame: FrameType | None = sys._getframe(2)
        owners, outside = _owners, self.outside
        while frame is not None and (code := frame.f_code) not in outside:
            file = code.co_filename
            if (owners.get(file) or owner_of(file)) == "user":
                return file, frame.f_lineno
            frame = frame.f_back
        return self.home

    def module_of(self, error: BaseException) -> str:
        """`, in module 'model.1' (Linear)`: the innermost module in the traceback of an error; "" if there is none."""
        failed, name = self._failed
        self._failed = (None, "")
        return f", in module {name}" if failed is error else ""

    def here(self) -> SourceLoc:
        """The location of the op that is being dispatched."""
        if self.optimizer:
            file, line = self._user_line()
            return self._loc(file, line, self.stack[-1], "optimizer")
        node = torch._C._current_autograd_node()
        if node is not None:
            forward = self._by_node.get(node._sequence_nr())
            if forward is not None:
                loc = self._loc(forward.file, forward.line, forward.module, "backward")
            elif self.backward_loc is not None:
                loc = self.backward_loc
            else:
                file, line = self._user_line()
                loc = self._loc(file, line, "", "backward")
            self.backward_loc = loc
        else:
            file, line = self._user_line()
            loc = self._loc(file, line, self.stack[-1], "forward")
        self._by_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, loc)
        return loc

    @contextlib.contextmanager
    def module_calls(
        self,
        checkpointed: Callable[[torch.nn.Module], bool] = lambda module: False,
        instead: Callable[[torch.nn.Module], torch.nn.Module | None] = lambda module: None,
    ) -> Iterator[None]:
        """Track the path of the module that runs, and the marked calls that contain it, by a patched
        `Module.__call__`.

        Args:
            instead: gives the module to call instead of another one; None for the module itself.
        """
        original = torch.nn.Module.__call__
        names, stack, scopes = self.module_names, self.stack, self.scopes
        watcher = self.watcher

        def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            path = names.get(id(module))
            inner = instead(module)
            if inner is not None:
                return call(inner, *args, **kwargs)
            check_module(module, path or "", here)
            stack.append(stack[-1] if path is None else path)
            if path is None:
                watcher.unnamed_module(module)
            else:
                watcher.module_begins(path, module, infos(args, kwargs))
            try:
                if checkpointed(module):
                    with scopes.call(stack[-1] or type(module).__name__):
                        result = original(module, *args, **kwargs)
                else:
                    result = original(module, *args, **kwargs)
            except BaseException as error:
                if self._failed[0] is not error:
                    self._failed = (error, f"{stack[-1]!r} ({type(module).__name__})")
                if path is not None:
                    watcher.module_ends(path, module, ())
                raise
            finally:
                stack.pop()
            if path is not None:
                watcher.module_ends(path, module, infos(result))
            return result

        with (
            replaced((torch.nn.Module, "__call__", here_only(original, call))),
            checkpoint_calls(scopes, lambda: stack[-1]),
        ):
            yield
