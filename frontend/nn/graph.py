"""`gflow.nn.graph`: graphs, and modules as graphs see them."""

from __future__ import annotations

from ..blocks import BlockConfig, GraphModule
from ..graph import Graph

__all__ = ["BlockConfig", "Graph", "GraphModule"]
