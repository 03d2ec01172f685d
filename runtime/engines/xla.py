"""XLA on the CPU, through jaxlib: StableHLO is compiled without JAX's tracing and configuration.

XLA reads a tensor in place, by DLPack, if it is dense and its address is a multiple of 16 bytes. XLA allocates its
results, since it cannot write to memory of others. A result with a place in the program's memory is copied there.
Results of the whole program have no such place (`handed`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import ref as weak

import torch

from .base import Copies, EngineCode, delivered, dense
from .packages import require

#: the alignment of operands that XLA's CPU code assumes, in bytes
_ALIGNMENT = 16


@cache
def _client() -> tuple[Any, Any, Any]:
    """jaxlib's client for the CPU, the list of its device, and the module with the class of compile options."""
    require("xla")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # no log messages on stderr
    # start-up: loaded with the first program of XLA
    from jaxlib import _jax, xla_client

    client = xla_client.make_cpu_client(asynchronous=False)
    return client, xla_client.DeviceList(tuple(client.local_devices()[:1])), _jax


class XlaCode(EngineCode):
    """A StableHLO module compiled by XLA."""

    def __init__(self, executable: Any) -> None:
        super().__init__()
        self._executable = executable
        client, _, self._jax = _client()
        (self._device,) = client.local_devices()[:1]
        # by the number of an operand that is read in place: the tensor, and XLA's buffer of its memory
        self._read: dict[int, tuple[weak[torch.Tensor], Any]] = {}

    @classmethod
    def compile(cls, code: bytes) -> XlaCode:
        """
        code: a StableHLO module, as a portable artifact or as text.

        Raises:
            EngineUnavailable: jaxlib is not installed.
            RuntimeError: XLA refuses the module.
        """
        client, devices, jax = _client()
        return cls(client.compile_and_load(code, devices, jax.CompileOptions()))

    @classmethod
    def load(cls, blob: bytes) -> XlaCode:
        """Load what `serialized` returned, by the same version of jaxlib and on the same kind of processor."""
        client, devices, jax = _client()
        return cls(client.deserialize_executable(blob, devices, jax.CompileOptions()))

    def serialized(self) -> bytes | None:
        return self._executable.serialize()

    def run(
        self,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor | None],
        on_write: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        copies = Copies()
        buffers = [self._buffer(n, x, copies) for n, x in enumerate(operands)]
        run = self._executable.execute_sharded(buffers)
        on_write()
        found = []
        for (made,), place in zip(
            run.disassemble_into_single_device_arrays(), results, strict=True
        ):
            found.append(delivered(torch.from_dlpack(made), place, copies))
        self.copies = copies
        return found

    def _buffer(self, n: int, x: torch.Tensor, copies: Copies) -> Any:
        """Operand `n` as XLA's. A buffer of memory that is read in place is kept as long as the tensor lives."""
        known = self._read.get(n)
        if known is not None and known[0]() is x:
            return known[1]
        given = dense(x, copies, _ALIGNMENT)
        capsule = torch.utils.dlpack.to_dlpack(given)
        buffer = self._jax.dlpack_managed_tensor_to_buffer(capsule, self._device, None)
        if given.data_ptr() == x.data_ptr():
            self._read[n] = weak(x, partial(self._forget, n)), buffer
        return buffer

    def _forget(self, n: int, tensor: weak[torch.Tensor]) -> None:
        """Drop the buffer of a tensor that is gone."""
        if self._read.get(n, (None,))[0] is tensor:
            del self._read[n]
