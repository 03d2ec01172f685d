"""Loss scaling: dynamic (`GradScaler`, as in PyTorch) and by a constant (`StaticGradScaler`)."""

from __future__ import annotations

import math
from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for graphs: `graph.set_grad_scaler(GradScaler())`.

    Each step multiplies the gradient of the loss by the scale. If a gradient is inf or nan, the optimizer's step is
    skipped, and the scale is multiplied by `backoff_factor`. After `growth_interval` steps without inf and nan, the
    scale is multiplied by `growth_factor`. The state is on the device of the parameters. `get_scale()`, `state_dict()`
    and `load_state_dict()` work as in eager mode. The class can also be used in eager mode.

    device: only for eager use, on another device than the CPU.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


class StaticGradScaler:
    """Scales the loss by a constant. The gradient of the loss is multiplied by `scale_factor`, and the gradients of
    parameters are divided by it before the optimizer reads them. No step is skipped."""

    def __init__(self, scale_factor: float) -> None:
        if not (isinstance(scale_factor, (int, float)) and 0 < scale_factor < math.inf):
            raise ValueError(f"scale_factor must be a positive number, got {scale_factor!r}")
        self.scale_factor = float(scale_factor)

    def get_scale(self) -> float:
        """The constant."""
        return self.scale_factor

    def state_dict(self) -> dict[str, Any]:
        """`{"scale_factor": …}`."""
        return {"scale_factor": self.scale_factor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the constant from a result of `state_dict()`."""
        self.scale_factor = float(state_dict["scale_factor"])
