"""What a compiled graph shows: its IR and where the time went."""

from __future__ import annotations

import pytest

import gflow as flow


class Scaled(flow.nn.Graph):
    def __init__(self, model: flow.nn.Module, train: bool) -> None:
        super().__init__()
        self.model = model
        if train:
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
        self.train = train

    def build(self, x: flow.Tensor) -> flow.Tensor:
        y = self.model(x).relu().sum()
        if self.train:
            y.backward()
        return y


@pytest.mark.parametrize("train", [False, True])
def test_ir_and_timings(train: bool) -> None:
    graph = Scaled(flow.nn.Linear(3, 2), train)
    with pytest.raises(flow.GraphError, match="not compiled yet; call it once"):
        graph.ir()
    graph(flow.ones(4, 3))
    for stage in ("traced", "planned"):
        assert "func.func @" in graph.ir(stage)
        assert "model.weight" in graph.ir(stage)
    assert "gflow.fused" not in graph.ir("traced")
    assert graph.ir() == graph.ir("planned")
    assert {"trace", "lower", "codegen", "load"} <= set(graph.timings)
    assert all(seconds >= 0 for seconds in graph.timings.values())
    with pytest.raises(
        flow.GraphError, match=r"test_graph_inspection.py:\d+: ir\(\) has the stages"
    ):
        graph.ir("fused")
    graph(flow.ones(5, 3))
    assert "tensor<5x3xf32>" in graph.ir()
