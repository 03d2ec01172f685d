"""A function in pieces: TorchDynamo splits it where no program can go on, and each piece is compiled."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions

_log = logging.getLogger("gflow")
_LIMIT = 1024
#: what TorchDynamo raises about a function that it cannot hold
UNTRACED = (
    torch._dynamo.exc.TorchDynamoException,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


class Split:
    """Runs a target through TorchDynamo and the gflow backend; as eager where TorchDynamo fails as well.

    Between two pieces Python runs as it stands: choices by the values of tensors, `.item()`, boolean
    masks as indices, `nonzero`, packed sequences.

    Args:
        target: a module or a function.
        whole: whether a target that needs a split is an error, with TorchDynamo's reason.
        dynamic: whether sizes vary from the first call on; else, from the second size on.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        options: CompileOptions | None,
        whole: bool,
        dynamic: bool | None = None,
    ) -> None:
        # start-up: the compiler, and TorchDynamo, are loaded by who needs them
        from gflow.dynamo import gflow

        backend = functools.partial(gflow, options=options)
        self._target, self._whole = target, whole
        self._compiled: Callable[..., Any] | None = torch.compile(
            target, backend=backend, fullgraph=whole, dynamic=dynamic
        )
        self._said: set[str] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._compiled is None:
            return self._target(*args, **kwargs)
        # All modules of PyTorch's own are one function to TorchDynamo, which limits its programs.
        with torch._dynamo.config.patch(recompile_limit=_LIMIT, accumulated_recompile_limit=_LIMIT):
            if self._whole:
                return self._compiled(*args, **kwargs)
            try:
                return self._compiled(*args, **kwargs)
            except (*UNTRACED, AssertionError) as error:
                if isinstance(error, AssertionError) and not _of_dynamo(error):
                    raise
                _log.warning(
                    "compile(): %s runs in eager mode, since TorchDynamo cannot split it: %s",
                    name_of(self._target),
                    sentence(error),
                )
        self._compiled = None
        return self._target(*args, **kwargs)

    def leave_to_eager(self, reason: str) -> None:
        """Run the target as it stands from now on: it depends on what TorchDynamo does not see."""
        if self._compiled is not None:
            self._compiled = None
            _log.warning(
                "compile(): %s runs in eager mode, since %s", name_of(self._target), reason
            )

    def because_of(self, problem: BaseException) -> None:
        """Say once why the target is not one program."""
        text = sentence(problem)
        if text not in self._said:
            self._said.add(text)
            _log.warning(
                "compile(): %s is split into several programs, since it cannot be compiled as one: %s",
                name_of(self._target),
                text,
            )


def _of_dynamo(error: BaseException) -> bool:
    """Whether TorchDynamo itself raised an error, as it does where a function assigns to a global tensor."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "/torch/_dynamo/" in trace.tb_frame.f_code.co_filename


def name_of(target: Any) -> str:
    """What a message calls a module or a function."""
    return str(getattr(target, "__qualname__", None) or type(target).__name__)


def sentence(error: BaseException) -> str:
    """What an error says first: its place and the problem, without the ways out. Of one that TorchDynamo wraps, what
    the backend says."""
    error = getattr(error, "inner_exception", error)
    lines = str(error).splitlines()
    return lines[0].split(". ")[0] if lines else type(error).__name__
