"""The functions of the CUDA driver that launches need, through ctypes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p, cast
from functools import cache
from typing import Any

from ..device import DeviceError

#: the most bytes of shared memory per block without opt-in
_FREELY = 48 * 1024
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL

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
#: those by which launches in graphs get other arguments; a driver before CUDA 12 has not all of them
_OF_GRAPHS: dict[str, list[Any]] = {
    "cuStreamGetCaptureInfo_v2": [c_void_p] * 6,
    "cuGraphNodeGetType": [c_void_p, c_void_p],
    "cuGraphKernelNodeGetParams_v2": [c_void_p, c_void_p],
    "cuGraphExecKernelNodeSetParams_v2": [c_void_p, c_void_p, c_void_p],
}


class KernelNode(Structure):
    """The launch in a node of a graph (CUDA_KERNEL_NODE_PARAMS of CUDA 12).

    parameters: the address of an array with the address of each argument.
    """

    _fields_ = [
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("parameters", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p),
    ]  # fmt: skip


class Driver:
    """Calls of the CUDA driver. A failed call raises `DeviceError` with the driver's message."""

    def __init__(self, library: Any) -> None:
        """
        Args:
            library: the driver's, as ctypes loads it.
        """
        self._library = library
        self._sets_nodes = all(hasattr(library, name) for name in _OF_GRAPHS)
        signatures = {**_SIGNATURES, **_OF_GRAPHS} if self._sets_nodes else _SIGNATURES
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self._launch, self._get_current = library.cuLaunchKernel, library.cuCtxGetCurrent
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
        if self._get_current(byref(current)) or current.value != context:
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

    def captured_node(self, stream: int) -> int | None:
        """The node of what was last captured on a stream; None if this is not a single node, the stream is not
        captured, or the driver does not tell."""
        if not self._sets_nodes:
            return None
        status, nodes, count = c_int(), c_void_p(), c_size_t()
        failed = self._library.cuStreamGetCaptureInfo_v2(
            stream, byref(status), None, None, byref(nodes), byref(count)
        )
        if failed or status.value != _CAPTURING or count.value != 1:
            return None
        return cast(nodes, POINTER(c_void_p))[0]

    def kernel_node(self, node: int) -> KernelNode | None:
        """The launch in a node of a graph that is not instantiated, which keeps the memory of its arguments; None if
        the node is no launch."""
        kind, found = c_int(), KernelNode()
        if self._library.cuGraphNodeGetType(node, byref(kind)) or kind.value != _KERNEL:
            return None
        return None if self._library.cuGraphKernelNodeGetParams_v2(node, byref(found)) else found

    def set_kernel_node(self, graph: int, node: int, launch: KernelNode) -> None:
        """Replace the launch in an instantiated graph that was in `node` before, for later launches of the graph. The
        driver copies the arguments.

        Raises:
            DeviceError: the driver rejects it.
        """
        if status := self._library.cuGraphExecKernelNodeSetParams_v2(graph, node, byref(launch)):
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
