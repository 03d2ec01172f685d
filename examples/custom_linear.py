"""A module of one's own, called eagerly and as a graph: both give the same."""

import gflow as flow
import gflow.nn as nn


class Affine(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(flow.randn(inputs, outputs))
        self.bias = nn.Parameter(flow.randn(outputs))

    def forward(self, x):
        return flow.matmul(x, self.weight) + self.bias


class AffineGraph(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x)


flow.manual_seed(0)
model = Affine(4, 3)
graph = AffineGraph(model)

x = flow.randn(8, 4)
by_graph = graph(x)
by_eager = model(x)

print("graph:", by_graph[0])
print("eager:", by_eager[0])
assert flow.allclose(by_graph, by_eager, rtol=1e-5, atol=1e-6)
