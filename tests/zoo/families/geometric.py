"""torch_geometric's models and convolutions: two layers on a graph of 40 nodes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .family import Family, fed, without_dropout

_MODELS = ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN")
_NODES, _EDGES, _WIDTH = 40, 160, 16


def found() -> Iterator[Family]:
    """The models of node features, and each convolution for one kind of nodes."""
    from torch_geometric.nn import conv  # loaded by who measures it

    for name in _MODELS:
        yield Family(name, partial(_model, name))
    for name in conv.__all__:
        if name not in ("MessagePassing", "SimpleConv") and "Hetero" not in name:
            yield Family(name, partial(_convolution, name))


def _degrees() -> dict[str, Any]:
    return {
        "aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"],
        "deg": torch.tensor([2, 6, 10, 12, 6, 4]),
    }  # fmt: skip


#: arguments of constructors, by name
_GIVEN: dict[str, Any] = {
    "in_channels": _WIDTH, "out_channels": _WIDTH, "channels": _WIDTH, "hidden_channels": _WIDTH,
    "num_layers": 2, "K": 2, "dim": 2, "kernel_size": 3, "num_relations": 3, "edge_dim": 3, "heads": 2,
    "alpha": 0.1, "num_node_types": 2, "num_edge_types": 2, "phi_k": 4, "num_types": 2, "mod": "additive",
    "attention_mechanism": "additive", "layer": 1, "k": 4, "first_aggr": True,
}  # fmt: skip


#: the width of the network of a convolution, where it isn't that of nodes
_OUT = {"NNConv": _WIDTH * _WIDTH}


class _Two(torch.nn.Module):
    """Two convolutions with a ReLU between them."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, **others).relu(), **others)


def _model(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    from torch_geometric.nn import models

    options = _degrees() if name == "PNA" else {}
    model = getattr(models, name)(_WIDTH, _WIDTH, num_layers=2, **options)
    return fed(without_dropout(model), _candidates())


def _convolution(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    from torch_geometric.nn import conv

    kind = getattr(conv, name)
    layers = [kind(**_arguments(kind, name)) for _ in range(2)]
    return fed(without_dropout(_Two(*layers)), _candidates())


def _arguments(kind: Any, name: str) -> dict[str, Any]:
    """The arguments of a convolution's constructor that have no default."""
    made: dict[str, Any] = _degrees() if name == "PNAConv" else {}
    for key, parameter in inspect.signature(kind).parameters.items():
        plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if key == "nn":
            made[key] = torch.nn.Sequential(
                torch.nn.LazyLinear(_WIDTH),
                torch.nn.ReLU(),
                torch.nn.LazyLinear(_OUT.get(name, _WIDTH)),
            )
        elif plain and parameter.default is parameter.empty and key in _GIVEN and key not in made:
            made[key] = _GIVEN[key]
    return made


def _candidates() -> Iterator[dict[str, Any]]:
    """What a convolution may take beside the nodes."""
    x, edges = torch.randn(_NODES, _WIDTH), torch.randint(_NODES, (2, _EDGES))
    yield {"x": x, "edge_index": edges}
    yield {"x": x, "edge_index": edges, "edge_attr": torch.rand(_EDGES, 3)}
    yield {"x": x, "edge_index": edges, "edge_attr": torch.rand(_EDGES, 2)}
    yield {"x": x, "edge_index": edges, "edge_attr": torch.rand(_EDGES, _WIDTH)}
    yield {"x": x}
    yield {"x": x, "edge_index": edges, "edge_type": torch.randint(3, (_EDGES,))}
    yield {"x": x, "edge_index": edges, "x_0": x}
    yield {"x": x, "edge_index": edges, "pos": torch.randn(_NODES, 3)}
    yield {"x": x, "hyperedge_index": torch.stack([edges[0], edges[1] % 20])}
