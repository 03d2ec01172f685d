"""Graphs leave PyTorch as they found it: what else a program does with it works before and after."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import gflow as flow

class Graph(flow.nn.Graph):
    def build(self, x):
        return x[torch.tensor([0, 2, 4])] + torch.arange(3.0)  # a literal needs more of Dynamo's modules

x = torch.randn(5)
for _ in range(2):
    assert torch.equal(Graph()(x), x[::2] + torch.arange(3.0))
module = torch.nn.Linear(5, 5)
assert not hasattr(module, "config")
assert "config" not in dir(module)
compiled = torch.compile(lambda x: module(x).sin() + 1, backend="eager")
torch.testing.assert_close(compiled(x), module(x).sin() + 1)

class Outer(flow.nn.Graph):
    def build(self, x):
        return compiled(x) * 2  # traced as it was written

torch.testing.assert_close(Outer()(x), compiled(x) * 2)
assert torch.equal(Graph()(x), x[::2] + torch.arange(3.0))
"""


def test_a_graph_with_a_tensor_literal_then_torch_compile() -> None:
    """In a process of its own: what this is about is what a first call loads."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
