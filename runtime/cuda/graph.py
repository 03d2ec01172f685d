"""A CUDA graph of PyTorch's, whose launches can get other arguments.

A kernel node of an instantiated graph has a copy of the arguments of its launch. `cuGraphExecKernelNodeSetParams`
replaces them for later launches of the graph; launches that are enqueued or running keep theirs. It needs the node of
the graph before its instantiation. While a stream is captured, the driver tells which nodes the next one depends on;
right after a launch, this is the launch's node alone. Each node is compared with its launch: function, grid, block,
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p, string_at

import torch

from .device import Launch
from .driver import Driver, KernelNode
from .launches import size_of


class CudaGraph:
    """One captured graph; a `Captured`.

    fixed: why launches cannot get other arguments; "" if they can. launch: launches the graph on the current stream.
    """

    def __init__(self, driver: Driver) -> None:
        # nodes are those of the graph that was captured, so it is kept beside the instantiated one
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self.launch: Callable[[], None] = self.graph.replay
        self.fixed = ""
        self._driver = driver
        self._executable = 0
        self._nodes: dict[
            int, tuple[int, KernelNode]
        ] = {}  # by the address of a launch's parameters
        self._launches: list[Launch] = []  # the memory of their arguments

    def note(self, launch: Launch, stream: int) -> None:
        """Find the node of a launch that was just captured."""
        node = self._driver.captured_node(stream)
        if node is None:
            self.fixed = f"the driver does not tell the graph's node of {launch.step.label}"
            return
        loaded = launch.function
        wanted = KernelNode(
            loaded.function,
            launch.step.grid,
            (loaded.threads, 1, 1),
            loaded.shared,
            launch.parameters,
        )
        if not _is_of(self._driver.kernel_node(node), wanted, launch):
            self.fixed = f"the graph's node of {launch.step.label} is another launch"
            return
        self._nodes[launch.parameters] = node, wanted
        self._launches.append(launch)

    def instantiate(self) -> None:
        """Make the graph ready to launch, after its capture."""
        self.graph.instantiate()
        self._executable = self.graph.raw_cuda_graph_exec()

    def update(self, launch: Launch) -> None:
        """Give a launch its present arguments.

        Raises:
            DeviceError: the driver rejects them.
        """
        self._driver.set_kernel_node(self._executable, *self._nodes[launch.parameters])


def _is_of(found: KernelNode | None, wanted: KernelNode, launch: Launch) -> bool:
    """Whether a node is that of a launch."""
    if found is None or not found.parameters or found.extra:
        return False
    # a driver may tell of a kernel without a context instead of its function
    function = found.function if found.function or not found.kernel else wanted.function
    if function != wanted.function or found.shared != wanted.shared:
        return False
    if [*found.grid] != [*wanted.grid] or [*found.block] != [*wanted.block]:
        return False
    # without the scratch addresses, of which a version of Triton may add fewer
    sizes = [*map(size_of, launch.kernel.parameters.values())]
    at = (c_void_p * len(sizes)).from_address(found.parameters)
    return all(
        address is not None and string_at(address, size) == word.tobytes()[:size]
        for address, size, word in zip(at, sizes, launch.words)
    )
