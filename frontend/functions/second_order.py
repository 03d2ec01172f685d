"""Gradients of gradients: of a call of a compiled function, with `create_graph=True`.

A backward program returns gradients without autograd history. Therefore the call is repeated in eager mode, as
`torch.utils.checkpoint` does, and the gradients are computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_version = attrgetter("_version")


class Slots:
    """The slots of modules that hold tensors which a call updates.

    Args:
        modules: the modules that the call may reach.
        buffers: the tensors that the call updates.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], buffers: Sequence[torch.Tensor]) -> None:
        updated = {id(b) for b in buffers}
        self.places = [
            (m._buffers, name)
            for m in (modules if updated else ())
            for name, b in m._buffers.items()
            if id(b) in updated
        ]
        self.hold_all = updated == {id(slots[name]) for slots, name in self.places}


class Again:
    """A call that can be repeated.

    Args:
        takers: the tensors that receive gradients.
        leaves: the arguments, flattened.
        slots: where the tensors are that the call updates.
        devices: the types of devices whose autocast is restored.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        takers: Sequence[torch.Tensor],
        slots: Slots,
        devices: Sequence[str],
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs
        self._takers, self._slots = takers, slots
        self._results: list[torch.Tensor] = []
        self._read = [*takers, *(x for x in leaves if isinstance(x, torch.Tensor))]
        self._versions = [*map(_version, self._read)]
        self._autocast = [
            (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices
        ]

    def keep(self, results: Sequence[torch.Tensor]) -> None:
        """Keep the results of the call, to compare them if it reads tensors that it updates."""
        if self._slots.places:
            self._results = [r.detach() for r in results]

    def _check(self, results: Any) -> None:
        tensors = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        for kept, found in zip(self._results, tensors):
            if not torch.allclose(kept, found.detach(), rtol=1e-2, atol=1e-3, equal_nan=True):
                raise RuntimeError(
                    "gradients with create_graph=True repeat a compiled call, and this call depends on buffers "
                    "that it updates, so its results would differ. Call the function without gflow.compile."
                )

    @contextmanager
    def _copied_buffers(self) -> Iterator[None]:
        """Within, the buffers that the call updates are copies, so that they are not updated twice."""
        if not self._slots.hold_all:
            raise RuntimeError(
                "gradients with create_graph=True repeat a compiled call, and this call updates a tensor that "
                "is not a buffer of a module. Call the function without gflow.compile."
            )
        before = [slots[name] for slots, name in self._slots.places]
        try:
            for (slots, name), buffer in zip(self._slots.places, before):
                slots[name] = buffer.clone() if buffer is not None else None
            yield
        finally:
            for (slots, name), buffer in zip(self._slots.places, before):
                slots[name] = buffer

    def gradients(
        self, coming: Sequence[torch.Tensor | None], history: bool
    ) -> list[torch.Tensor | None]:
        """The gradients of the takers.

        Args:
            coming: the gradients of the results that require them, None for an unused one.
            history: whether they have a history (`create_graph=True`).

        Raises:
            RuntimeError: a tensor that the call has read was updated since.
        """
        if [*map(_version, self._read)] != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation: gradients with create_graph=True repeat a compiled call with the tensors that it "
                "read"
            )
        with torch.enable_grad(), ExitStack() as stack:
            for device, enabled, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled))
            stack.enter_context(self._copied_buffers())
            results = self._target(*self._args, **self._kwargs)
        self._check(results)
        through = [
            x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        taking = [n for n, g in enumerate(coming) if g is not None]
        through, coming = [through[n] for n in taking], [coming[n] for n in taking]
        return list(
            torch.autograd.grad(
                through, self._takers, coming, create_graph=history, allow_unused=True
            )
        )
