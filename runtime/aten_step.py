"""Running an ATen overload on tensors that live in the arena, in arguments and in results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gflow.dialects.aten import decode_call
from gflow.dialects.collectives import is_collective
from gflow.dialects.program import AtenStep, TensorRef

from .failures import explain, where
from .interrupts import held

Locate = Callable[[TensorRef], torch.Tensor]

#: overloads whose out= variant writes into the given tensor without a copy of its own
_OUT = {
    "aten.mm.default": "out", "aten.bmm.default": "out", "aten.matmul.default": "out",
    "aten.index_select.default": "out", "aten.gather.default": "out", "aten.argmax.default": "out",
    "aten.argmin.default": "out", "aten.index_add.default": "out",
}  # fmt: skip


def resolve(name: str) -> Any:
    """The overload that `name` (`aten.topk.default`) spells."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


class AtenCall:
    """One step, ready to run.

    `bind` puts tensors in; it need not be called again while they stay where they are.
    """

    def __init__(self, step: AtenStep) -> None:
        self.step = step
        self.func = resolve(step.overload)
        self.out = None
        if step.overload in _OUT and len(step.outputs) == 1 and step.outputs[0] is not None:
            self.out = getattr(self.func.overloadpacket, _OUT[step.overload])
        self.collective = is_collective(step.overload)
        self.has_scalars = '"s":' in step.args
        self.draws = torch.Tag.nondeterministic_seeded in self.func.tags
        self.generator: torch.Tensor | None = None  # its state before the latest run
        self.writes = self.has_run = False  # how far the latest run has come
        self.to_arguments = any(r is not None and r.place.space == "arg" for r in step.outputs)
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor | None] = []
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.size = 0

    def refs(self) -> list[TensorRef]:
        return [*self.step.inputs, *(r for r in self.step.outputs if r is not None)]

    def bind(self, locate: Locate, size: int = 0) -> None:
        """Put tensors in. size: the program's, if it has one."""
        self.size = size
        self.inputs = [locate(r) for r in self.step.inputs]
        self.outputs = [None if r is None else locate(r) for r in self.step.outputs]
        self.decode()

    def unbind(self) -> None:
        """Let go of all tensors."""
        self.inputs, self.outputs, self.args, self.kwargs = [], [], [], {}

    def decode(self) -> None:
        self.args, self.kwargs = decode_call(
            self.step.args, self.inputs, lambda t: t.item(), self.size
        )

    def run(self) -> None:
        """Make the call.

        Raises:
            Exception: what PyTorch raises, with the place in the author's program that it comes from.
        """
        try:
            if self.collective:
                with held():  # the other ranks do not wait for a second one
                    self._run()
            else:
                self._run()
        except Exception as error:
            explain(error, where(self.step.label))
            raise

    def _run(self) -> None:
        self.writes = self.has_run = False
        if self.draws:
            self.generator = torch.default_generator.get_state()
        if self.has_scalars:
            self.decode()
        if self.out is not None:
            self.writes = True
            self.out(*self.args, **self.kwargs, out=self.outputs[0])
        else:
            result = self.func(*self.args, **self.kwargs)
            self._write(result)
        self.has_run = True

    def _write(self, result: Any) -> None:
        """Copy results to their places."""
        outputs = self.outputs
        if self.collective:  # it runs on until it is waited for, and has a token behind its results
            result = [torch.ops._c10d_functional.wait_tensor(t) for t in _flatten(result)]
            outputs = outputs[: len(result)]
        self.writes = True
        for target, value in zip(outputs, self._results(result), strict=True):
            if target is not None and value is not None:
                if value.shape != target.shape:
                    raise RuntimeError(
                        f"{self.step.overload} gave shape {list(value.shape)} where PyTorch's "
                        f"shape rule promised {list(target.shape)} ({self.step.label})"
                    )
                target.copy_(value)

    def undo_draw(self) -> None:
        """Put back the generator that the latest run drew from."""
        if self.generator is not None:
            torch.default_generator.set_state(self.generator)

    def _results(self, result: Any) -> list[torch.Tensor | None]:
        """The tensors of a result. Those that were None when the call was traced have no
        output; others may be None now (an undefined tensor that PyTorch's shape rule gives)."""
        flat = _flatten(result)
        if self.collective or len(flat) == len(self.outputs):
            return flat
        return [t for t in flat if t is not None]


def _flatten(value: Any) -> list[torch.Tensor | None]:
    if isinstance(value, list | tuple):
        return [t for v in value for t in _flatten(v)]
    return [value if isinstance(value, torch.Tensor) else None]
