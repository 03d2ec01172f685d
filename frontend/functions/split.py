"""A function in pieces: TorchDynamo splits it where no program can continue, and each piece is compiled."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from gflow.tracing.context.location import is_user_code
from gflow.tracing.reads.of_modules import OF_ALL_MODULES
from gflow.tracing.reads.reads import Reads
from gflow.tracing.reads.state import StateGuard

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions

_log = logging.getLogger("gflow")
#: loggers with which TorchDynamo reports code that it leaves to Python
_DYNAMO = logging.getLogger("torch._dynamo.convert_frame")
#: the `Split` that runs in this thread
_running = threading.local()
_LIMIT = 1024
#: TorchDynamo's errors for unsupported functions
UNTRACED = (
    torch._dynamo.exc.TorchDynamoException,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


class Split:
    """Runs a target through TorchDynamo and the gflow backend.

    Python runs unchanged between two pieces: branches on the values of tensors, `.item()`, boolean masks as indices,
    `nonzero`, packed sequences. A piece that TorchDynamo or the backend refuses also runs in Python; the pieces before
    it are not repeated.

    Args:
        target: a module or a function.
        whole: whether a target that needs a split is an error, with TorchDynamo's reason.
        dynamic: whether sizes are dynamic from the first call on; otherwise from the second size on.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        options: CompileOptions | None,
        whole: bool,
        dynamic: bool | None = None,
    ) -> None:
        self._target, self._whole = target, whole
        self._options, self._dynamic = options, dynamic
        self._compile()
        self._said: set[tuple[str, str]] = set()

    def _compile(self) -> None:
        # start-up: the compiler and TorchDynamo are loaded at their first use
        from gflow.dynamo import gflow

        backend = functools.partial(gflow, options=self._options)  # it has its own programs
        self._methods = _guard_of_methods(self._target)
        self._compiled: Callable[..., Any] | None = torch.compile(
            self._target, backend=backend, fullgraph=self._whole, dynamic=self._dynamic
        )
        # All modules of PyTorch's own are one function to TorchDynamo, which limits its programs; and it takes it that
        # modules without hooks have none later. Its `patch` takes 30 µs a call.
        self._set: Callable[[], Callable[[], None]] = torch._dynamo.config._make_closure_patcher(
            recompile_limit=_LIMIT,
            accumulated_recompile_limit=_LIMIT,
            skip_nnmodule_hook_guards=False,
            suppress_errors=not self._whole,
        )

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._compiled is None:
            return self._target(*args, **kwargs)
        if not self._methods.holds():
            self._compile()
        restore = self._set()
        try:
            if self._whole:
                return self._compiled(*args, **kwargs)
            try:
                with _refusals_told_by(self):
                    return self._compiled(*args, **kwargs)
            except UNTRACED as error:  # TorchDynamo suppresses most, not all
                if _has_run(error):
                    raise
                self.refused(error)
        finally:
            restore()
        self._compiled = None
        return self._target(*args, **kwargs)

    def refused(self, error: BaseException) -> None:
        """Warn once why the target, or a piece of it, runs in eager mode."""
        self._say("runs in eager mode, or a piece of it, since TorchDynamo cannot split it", error)

    def leave_to_eager(self, reason: str) -> None:
        """Run the target in eager mode from now on: it depends on state that TorchDynamo does not guard."""
        if self._compiled is not None:
            self._compiled = None
            _log.warning(
                "compile(): %s runs in eager mode, since %s", name_of(self._target), reason
            )

    def in_eager(self, why: str) -> None:
        """Warn once that some calls run in eager mode: `IN_EAGER` or `TRANSFORMED`."""
        if (why, "") not in self._said:
            self._said.add((why, ""))
            _log.warning("compile(): %s %s", name_of(self._target), why)

    def because_of(self, problem: BaseException) -> None:
        """Warn once why the target is not one program."""
        self._say("is split into several programs, since it cannot be compiled as one", problem)

    def _say(self, what: str, error: BaseException) -> None:
        text = sentence(error)
        if (what, text) not in self._said:
            self._said.add((what, text))
            _log.warning("compile(): %s %s: %s", name_of(self._target), what, text)


def _guard_of_methods(target: Callable[..., Any]) -> StateGuard:
    """A guard on methods of classes and hooks of all modules, which TorchDynamo does not guard."""
    reads = Reads().walk([("function", target)])
    found = [
        r for r in reads.found
        if (r.kind == "attribute" and isinstance(r.holder, type))
        or (r.kind == "hooks" and r.path.startswith(OF_ALL_MODULES))
    ]  # fmt: skip
    return StateGuard(found, (), [], lambda: None, lambda: 0)


@contextmanager
def _refusals_told_by(split: Split) -> Iterator[None]:
    """Within, reports of TorchDynamo in this thread about code that it leaves to Python become gflow's warnings."""
    outer = getattr(_running, "split", None)
    _running.split = split
    _DYNAMO.addFilter(_in_our_words)  # once only
    try:
        yield
    finally:
        _running.split = outer


def _in_our_words(record: logging.LogRecord) -> bool:
    split: Split | None = getattr(_running, "split", None)
    error = record.exc_info[1] if record.exc_info else None
    if error is None or split is None:
        return True
    if record.levelno >= logging.WARNING:
        split.refused(error)
    return False


def _has_run(error: BaseException) -> bool:
    """Whether some of a target may have run before TorchDynamo raised an error: the traceback has a user frame."""
    trace = error.__traceback__
    while trace is not None:
        if is_user_code(trace.tb_frame.f_code):
            return True
        trace = trace.tb_next
    return False


def name_of(target: Any) -> str:
    """The name of a module or a function in messages."""
    return str(getattr(target, "__qualname__", None) or type(target).__name__)


def sentence(error: BaseException) -> str:
    """The first sentence of an error: its location and the problem, without advice. For an error that TorchDynamo
    wraps, that of the backend."""
    error = getattr(error, "inner_exception", error)
    lines = str(error).splitlines()
    return lines[0].split(". ")[0] if lines else type(error).__name__
