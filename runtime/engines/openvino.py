"""OpenVINO on the CPU: models in ONNX, on tensors in the program's memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from .base import InPlaceCode
from .packages import require


@cache
def _core() -> Any:
    """OpenVINO's registry of devices, one per process."""
    require("openvino")
    # start-up: loaded with its first program
    import openvino

    return openvino.Core()


class OpenVinoCode(InPlaceCode):
    """An ONNX model compiled by OpenVINO, in float32 (it would take bf16 where the processor has it)."""

    def __init__(self, compiled: Any, names: Sequence[str]) -> None:
        super().__init__()
        # start-up: loaded with its first program
        import openvino

        self._tensor = openvino.Tensor
        self._request = compiled.create_infer_request()
        # OpenVINO removes inputs that nothing uses
        left = {name: n for n, port in enumerate(compiled.inputs) for name in port.names}
        self._inputs = [left.get(name) for name in names]
        self._given = [port.get_element_type() for port in compiled.inputs]
        self._kinds = [
            (port.get_element_type(), port.get_partial_shape()) for port in compiled.outputs
        ]

    @classmethod
    def compile(cls, code: bytes) -> OpenVinoCode:
        """
        code: an ONNX model.

        Raises:
            EngineUnavailable: openvino is not installed.
            RuntimeError: OpenVINO refuses the model.
        """
        core = _core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        # start-up: loaded with its first program
        import onnx

        names = [entry.name for entry in onnx.load_from_string(code).graph.input]
        return cls(core.compile_model(core.read_model(code), "CPU", settings), names)

    @classmethod
    def load(cls, blob: bytes) -> OpenVinoCode:
        return cls.compile(blob)

    def operand(self, n: int, x: torch.Tensor) -> None:
        at = self._inputs[n]
        if at is not None:
            self._request.set_input_tensor(at, self._shared(x, self._given[at]))

    def result(self, n: int, x: torch.Tensor | None) -> None:
        kind, shape = self._kinds[n]
        own = self._tensor(kind, shape.to_shape()) if x is None else self._shared(x, kind)
        self._request.set_output_tensor(n, own)

    def infer(self) -> None:
        self._request.infer()

    def made(self, n: int) -> torch.Tensor:
        return torch.from_numpy(self._request.get_output_tensor(n).data)

    def _shared(self, x: torch.Tensor, kind: Any) -> Any:
        """The tensor's memory as OpenVINO's. Regions have bytes for bools: a bool may become a float32 in OpenVINO."""
        if x.dtype == torch.bool and kind.get_type_name() == "u8":
            x = x.view(torch.uint8)
        return self._tensor(x.numpy(), shared_memory=True)
