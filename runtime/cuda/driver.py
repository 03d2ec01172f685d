"""The functions of the CUDA driver that launches need, through ctypes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

from ..device import DeviceError

#: the most bytes of shared memory per block without opt-in
_FREELY = 48 * 1024
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxGetCurrent": [c_void_p],
    "cuCtxSetCurrent": [c_void_p],
    "cuModuleLoadData": [c_void_p, c_char_p],
    "cuModuleGetFunction": [c_void_p, c_void_p, c_char_p],
    "cuFuncSetAttribute": [c_void_p, c_int, c_int],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetErrorString": [c_int, c_void_p],
}


class Driver:
    """Calls of the CUDA driver. A failed call raises `DeviceError` with the driver's message."""

    def __init__(self, library: Any) -> None:
        """
        Args:
            library: the driver's, as ctypes loads it.
        """
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self._launch = library.cuLaunchKernel
        self._call("cuInit", 0)

    def context(self, index: int) -> int:
        """The primary context of device number `index`, which PyTorch uses."""
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        return context.value or 0

    def enter(self, context: int) -> None:
        """Make a context the current one of this thread."""
        current = c_void_p()
        self._call("cuCtxGetCurrent", byref(current))
        if current.value != context:
            self._call("cuCtxSetCurrent", context)

    def load(self, image: bytes, entry: str, shared: int) -> tuple[int, int]:
        """Load a module; returns its handle and that of function `entry`.

        shared: the bytes of shared memory per block that the function needs.
        """
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), image)
        self._call("cuModuleGetFunction", byref(function), module, entry.encode())
        if shared > _FREELY:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        return module.value or 0, function.value or 0

    def launch(
        self, function: int, grid: tuple[int, ...], threads: int, shared: int, stream: int,
        parameters: int,
    ) -> None:  # fmt: skip
        """Launch a function, asynchronously. parameters: the address of an array with the address of each argument.

        Raises:
            DeviceError: the driver rejects the launch.
        """
        x, y, z = grid
        status = self._launch(function, x, y, z, threads, 1, 1, shared, stream, parameters, None)
        if status:
            raise DeviceError(self._text(status))

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise DeviceError(f"{name}: {self._text(status)}")

    def _text(self, status: int) -> str:
        """The name and the description of an error."""
        found = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if not getattr(self._library, name)(status, byref(text)) and text.value:
                found.append(text.value.decode())
        return ": ".join(found) or f"error {status} of the CUDA driver"


@cache
def driver() -> Driver:
    """The machine's driver.

    Raises:
        DeviceError: there is none.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return Driver(ctypes.CDLL(name))
    except OSError:
        raise DeviceError(
            f"there is no CUDA driver here ({name} is missing): a GPU of NVIDIA and its driver are needed "
            "to run what is compiled for CUDA"
        ) from None
