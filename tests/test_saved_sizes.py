"""Saved graphs whose sizes vary: what a graph was called with, a loaded one takes, and every size of the range."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gflow
from gflow.runtime.stored import bundle
from gflow.saved.run import describe, main


class Step(gflow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))
        self.config.enable_dynamic_shapes()

    def build(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(x)
        loss = (out - y).square().sum() / x.shape[0]
        loss.backward()
        return loss, torch.cat([out, y])


def batch(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 4, generator=generator), torch.randn(n, 1, generator=generator)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Step, Path, list[Any]]:
    """A graph that was called with two sizes, where it is saved, and what it gives for more calls."""
    graph, path = Step(), tmp_path_factory.mktemp("saved") / "graph"
    for n in (8, 3):
        graph(*batch(n))
    gflow.save(graph, path)
    return graph, path, [graph(*batch(n)) for n in (8, 3, 5, 2, 40)]


def check(loaded: Any, expected: list[Any]) -> None:
    for n, want in zip((8, 3, 5, 2, 40), expected):
        for a, b in zip(loaded(*batch(n)), want):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_loaded_graph_takes_every_size_of_the_range(saved: tuple[Step, Path, list[Any]]) -> None:
    _, path, expected = saved
    loaded = gflow.load(path)
    check(loaded, expected)
    x, y = batch(5)
    strided = torch.empty(4, 5).T.copy_(x)
    torch.testing.assert_close(loaded(strided, y)[1][:, :0], torch.empty(10, 0))
    for wrong, part in (
        ((x, y[:4]), "[n, 1] expected, where n is 5"),
        (batch(1025), "n in [2, 1024]"),
        ((x[:, :3], y), "[n, 4] expected"),
        ((x[0], y), "[n, 4] expected"),
        ((x.double(), y), "torch.float32 expected"),
    ):
        with pytest.raises(ValueError, match="Step") as error:
            loaded(*wrong)
        assert part in str(error.value)
    assert any("x: float32 n×4" in line for line in describe(loaded).splitlines())
    assert any("output.1: float32 (2*n)×1" in line for line in describe(loaded).splitlines())


def test_it_can_be_saved_again_compiled_from_its_ir_and_run_from_a_shell(
    saved: tuple[Step, Path, list[Any]], tmp_path: Path
) -> None:
    _, path, expected = saved
    loaded = gflow.load(path, native=False)
    gflow.save(loaded, tmp_path / "again")
    check(loaded, expected)
    for name, value in zip("xy", batch(3)):
        np.save(tmp_path / f"{name}.npy", value.numpy())
    given = [f"--input={tmp_path / name}.npy" for name in "xy"]
    assert main([str(tmp_path / "again"), *given, f"--output=output.1={tmp_path / 'out.npy'}"]) == 0
    assert np.load(tmp_path / "out.npy").shape == (6, 1)


@pytest.mark.parametrize("what", ["no size", "another input", "a fixed size"])
def test_what_does_not_fit_is_refused(
    saved: tuple[Step, Path, list[Any]], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path, _ = saved
    read = bundle.read_bundle

    def changed(*args: Any) -> Any:
        found = read(*args)
        text = json.dumps(found.manifest)
        found.manifest = json.loads(
            {
                "no size": text.replace('["size", null]', '["rng", null]'),
                "another input": text.replace("[null, 1]", "[null, 2]"),
                "a fixed size": text.replace("[null, 1]", "[1, null]"),
            }[what]
        )
        assert json.dumps(found.manifest) != text
        return found

    monkeypatch.setattr("gflow.runtime.stored.artifact.read_bundle", changed)
    with pytest.raises(bundle.ArtifactError):
        gflow.load(path)


def test_marked_sizes_are_saved_in_each_format(tmp_path: Path) -> None:
    graph = gflow.nn.Graph.trace(lambda x: (x.softmax(-1) * x.shape[0], x.sum()))
    graph(gflow.dynamic_dim(torch.ones(2, 3), 0, min=1, max=9))
    for n in (1, 6):
        graph(torch.randn(n, 3))
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    for n in (1, 2, 9):
        x = torch.randn(n, 3)
        for a, b in zip(loaded(x), (x.softmax(-1) * n, x.sum())):
            torch.testing.assert_close(a, b)
    gflow.save(graph, tmp_path / "graph.mlir", format="stablehlo")
    assert "%arg0: tensor<?x3xf32>" in (tmp_path / "graph.mlir").read_text()
