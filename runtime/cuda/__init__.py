"""Programs for CUDA devices: kernels as machine code, launched through the driver.

Needs PyTorch and the driver; neither Triton nor MLIR.

    binding             bringing arguments to where kernels can read them
    capture             a call as one CUDA graph
    checks              what checks of a program report from a device, and when the host looks: at the next call,
                        without waiting
    device              what a program for CUDA runs on, as far as the runtime is concerned
    driver              the part of the CUDA driver that launching kernels takes, by ctypes
    executable          runs a `Program` for CUDA: launches and ATen calls on PyTorch's current stream, in an arena
                        of its caching allocator
    fake                a device that runs nothing, and checks everything that is begun on it
    gpu                 a GPU, through the CUDA driver and PyTorch
    interpreter         a device without hardware: kernels run as Python on CPU tensors, by Triton's interpreter
    interpreter_repair  what Triton's interpreter lacks, or does wrong
    launches            the launches of a program: their arguments, as the driver takes them
    recording           graphs for devices that stand in for a GPU: what was begun is noted, and begun again as it
                        was
    timing              how long single steps of a program take on a device
"""

from __future__ import annotations

from .device import Device, DeviceError
from .executable import CudaExecutable

__all__ = ["CudaExecutable", "Device", "DeviceError"]
