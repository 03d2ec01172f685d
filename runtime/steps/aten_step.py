"""Runs an ATen overload on tensors in the arena, in arguments and in results."""

from __future__ import annotations

from typing import Any

import torch

from gflow.dialects.aten.calls import decode_call, find_overload
from gflow.dialects.extents import N
from gflow.dialects.program import AtenStep, TensorRef

from ..failures import explain, where
from .host_step import HostStep, Locate

#: overloads whose out= variant writes its result to the given tensor without an intermediate copy
_OUT = {
    "aten.mm.default": "out", "aten.bmm.default": "out", "aten.matmul.default": "out",
    "aten.index_select.default": "out", "aten.gather.default": "out", "aten.argmax.default": "out",
    "aten.argmin.default": "out", "aten.index_add.default": "out",
}  # fmt: skip


def register(name: str) -> None:
    """Register the overload `name` if it is one of gflow's own."""
    # what registers ops takes a third of a second to load
    if name.startswith("gflow.recurrent"):
        from ..torch_ops import recurrent  # noqa: F401
    elif name.startswith("gflow.ctc_loss"):
        from ..torch_ops import ctc  # noqa: F401
    elif name == "gflow.draw.default":
        from ..torch_ops import draw  # noqa: F401


def resolve(name: str) -> Any:
    """The overload named `name` (for example `aten.topk.default`)."""
    register(name)
    return find_overload(name)


class AtenCall(HostStep):
    """A call of an ATen overload, ready to run."""

    def __init__(self, step: AtenStep) -> None:
        self.step, self.label = step, step.label
        self.func = resolve(step.overload)
        self.out = None
        if step.overload in _OUT and len(step.outputs) == 1 and step.outputs[0] is not None:
            self.out = getattr(self.func.overloadpacket, _OUT[step.overload])
        self.has_scalars = '"s":' in step.args
        self._spots: list[tuple[int, int]] | None = (
            None  # (argument, input), where all tensors are arguments
        )
        self.draws = torch.Tag.nondeterministic_seeded in self.func.tags
        self.generator: torch.Tensor | None = None  # its state before the latest run
        self.writes = self.has_run = False  # how far the latest run has come
        self.to_arguments = any(r is not None and r.place.space == "arg" for r in step.outputs)
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor | None] = []
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.size: N = 0

    def refs(self) -> list[TensorRef]:
        return [*self.step.inputs, *(r for r in self.step.outputs if r is not None)]

    def bound(self) -> list[torch.Tensor]:
        return [*self.inputs, *(t for t in self.outputs if t is not None)]

    def bind(self, locate: Locate, size: N = 0) -> None:
        """Bind tensors. size: the program's dynamic size, if it has one."""
        self.size = size
        self.inputs = [locate(r) for r in self.step.inputs]
        self.outputs = [None if r is None else locate(r) for r in self.step.outputs]
        if self._spots is None or not self.args:
            self.decode()
            self._spots = self._found_spots()
        else:
            for at, index in self._spots:
                self.args[at] = self.inputs[index]

    def _found_spots(self) -> list[tuple[int, int]] | None:
        """The inputs that the arguments are, if each argument is just an input; else None."""
        found = [
            (at, index)
            for at, value in enumerate(self.args)
            for index, given in enumerate(self.inputs)
            if value is given
        ]
        whole = self.step.args.count('"t":') == len(found)
        return found if whole and not self.has_scalars and '"part":' not in self.step.args else None

    def unbind(self) -> None:
        """Drop the references to all tensors."""
        self.inputs, self.outputs, self.args, self.kwargs = [], [], [], {}

    def decode(self) -> None:
        """The arguments of PyTorch's call, from the stored ones and the bound tensors. Numbers in 0-d tensors are
        read."""
        self.args, self.kwargs = decode_call(
            self.step.args, self.inputs, lambda t: t.item(), self.size
        )

    def prepare(self) -> None:
        super().prepare()
        self.generator = None

    def run(self) -> None:
        """Call the overload.

        Raises:
            Exception: as PyTorch raises it, with the source location in the author's program added.
        """
        try:
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
        self.writes = True
        for target, value in zip(self.outputs, self._results(result), strict=True):
            if target is not None and value is not None:
                if value.shape != target.shape:
                    raise RuntimeError(
                        f"{self.step.overload} gave shape {list(value.shape)} where PyTorch's "
                        f"shape rule promised {list(target.shape)} ({self.step.label})"
                    )
                target.copy_(value)

    def undo(self) -> None:
        """Restore the generator that the latest run drew from."""
        if self.generator is not None:
            torch.default_generator.set_state(self.generator)

    def _results(self, result: Any) -> list[torch.Tensor | None]:
        """The tensors of a result. Results that were None at tracing have no output; others may be None now (an
        undefined tensor that PyTorch's shape rule returns)."""
        flat = _flatten(result)
        if len(flat) == len(self.outputs):
            return flat
        return [t for t in flat if t is not None]


def _flatten(value: Any) -> list[torch.Tensor | None]:
    if isinstance(value, list | tuple):
        return [t for v in value for t in _flatten(v)]
    return [value if isinstance(value, torch.Tensor) else None]
