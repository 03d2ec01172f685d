"""ONNX Runtime on the CPU: models in ONNX, on tensors in the program's memory."""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch

from .base import InPlaceCode, NotFinite
from .packages import require

#: the most values of ONNX Runtime that are kept for places of results: a graph's results alternate between few buffers
_KEPT = 16
#: the last output of a model with a probe
_PROBE = "probe"


class OnnxRuntimeCode(InPlaceCode):
    """An ONNX model compiled by ONNX Runtime."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self._session, self._binding = session, session.io_binding()
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]
        # by the number of a result, its address and shape
        self._places: dict[tuple[int, int, torch.Size], Any] = {}
        self._probe = np.zeros((), np.float32) if self._outputs[-1] == _PROBE else None
        if self._probe is not None:
            # start-up: loaded with its first program
            from onnxruntime import OrtValue

            self._binding.bind_ortvalue_output(_PROBE, OrtValue.ortvalue_from_numpy(self._probe))

    @classmethod
    def compile(cls, code: bytes) -> OnnxRuntimeCode:
        """
        code: an ONNX model.

        Raises:
            EngineUnavailable: onnxruntime is not installed.
            RuntimeError: ONNX Runtime refuses the model.
        """
        require("onnxruntime", writes=False)
        # start-up: loaded with its first program
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(
                code, options, providers=["CPUExecutionProvider"]
            )
        except _errors() as error:
            raise RuntimeError(f"ONNX Runtime refuses the model: {error}") from None
        return cls(session)

    @classmethod
    def load(cls, blob: bytes) -> OnnxRuntimeCode:
        return cls.compile(blob)

    def operand(self, n: int, x: torch.Tensor) -> None:
        self._binding.bind_input(
            self._inputs[n], "cpu", 0, _numpy(x.dtype), tuple(x.shape), _address(x)
        )

    def result(self, n: int, x: torch.Tensor | None) -> None:
        name = self._outputs[n]
        if x is None:
            self._binding.bind_output(name, "cpu")
        else:
            key = n, _address(x), x.shape
            place = self._places.get(key)
            if place is None:
                if len(self._places) >= _KEPT:
                    self._places.clear()
                place = self._places[key] = _value(x)
            self._binding.bind_ortvalue_output(name, place)

    def infer(self) -> None:
        self._session.run_with_iobinding(self._binding)
        if self._probe is not None and not isfinite(self._probe):
            raise NotFinite

    def made(self, n: int) -> torch.Tensor:
        return torch.from_numpy(self._binding.get_outputs()[n].numpy())


#: memory for tensors without elements: ONNX Runtime refuses the address 0
_NOTHING = torch.empty(1)


def _address(x: torch.Tensor) -> int:
    return x.data_ptr() or _NOTHING.data_ptr()


class _Memory:
    """The memory of a tensor, for NumPy, without a reference to it."""

    def __init__(self, x: torch.Tensor) -> None:
        dtype = _numpy(x.dtype)
        self.__array_interface__ = {
            "data": (_address(x), False), "shape": tuple(x.shape), "typestr": dtype.str, "version": 3,
        }  # fmt: skip


def _value(x: torch.Tensor) -> Any:
    """A dense tensor's memory as a value of ONNX Runtime. The caller keeps the tensor alive."""
    # start-up: loaded with its first program
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(np.asarray(_Memory(x)))


@cache
def _errors() -> tuple[type[Exception], ...]:
    """The classes of ONNX Runtime's errors. They have no public names, and no common base but `Exception`."""
    # start-up: loaded with its first program
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [value for value in vars(state).values() if isinstance(value, type)]
    return (RuntimeError, ValueError, *(c for c in found if issubclass(c, Exception)))


@cache
def _numpy(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype
