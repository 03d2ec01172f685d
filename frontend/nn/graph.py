"""`gflow.nn.graph`: graphs, and modules as graphs see them."""

from __future__ import annotations

from gflow.config import GraphConfig
from gflow.graph import Graph
from gflow.tracing.program.module_config import BlockConfig, GraphModule

__all__ = ["BlockConfig", "Graph", "GraphConfig", "GraphModule"]
