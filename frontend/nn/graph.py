"""`gflow.nn.graph`: graphs, and modules as graphs see them."""

from __future__ import annotations

from gflow.config import GraphConfig
from gflow.graph import Graph
from gflow.tracing.program.graph_blocks import GraphBlock, GraphTensor
from gflow.tracing.program.module_config import BlockConfig, GraphModule
from gflow.tracing.program.unwrapped import View as Proxy

__all__ = [
    "BlockConfig",
    "Graph",
    "GraphBlock",
    "GraphConfig",
    "GraphModule",
    "GraphTensor",
    "Proxy",
]
