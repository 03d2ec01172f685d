"""Programs for CUDA devices: kernels as machine code, launched through the driver.

Needs PyTorch and the driver; neither Triton nor MLIR.
"""

from __future__ import annotations

from .device import Device, DeviceError
from .executable import CudaExecutable

__all__ = ["CudaExecutable", "Device", "DeviceError"]
