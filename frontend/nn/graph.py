"""`gflow.nn.graph`: graphs, and modules as graphs see them."""

from __future__ import annotations

from ..blocks import BlockConfig, GraphModule
from ..config import GraphConfig
from ..graph import Graph

__all__ = ["BlockConfig", "Graph", "GraphConfig", "GraphModule"]
