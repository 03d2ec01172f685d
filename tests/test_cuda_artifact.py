"""Graphs saved for a GPU from a machine without one, and run with the interpreter in its place."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch

import gflow
from gflow.runtime.stored import bundle
from gflow.runtime.stored.artifact import load_graph
from gflow.runtime.stored.bundle import ArtifactError
from gflow.saved.run import main as gflow_run
from tests import fuzz_artifacts

pytest.importorskip("triton")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(20)) for _ in range(2))

    def forward(self, x):
        return torch.softmax(torch.tanh(x * self.weight + self.bias), -1)


class Train(gflow.nn.Graph):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.Adam(model.parameters(), lr=0.1))

    def build(self, x):
        loss = (self.model(x) ** 2).sum()
        loss.backward()
        return {"loss": loss}


class Infer(gflow.nn.Graph):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x)


def test_a_graph_saved_for_a_gpu_runs_there(tmp_path, monkeypatch):
    model = Net()
    graph, x = Train(model), torch.randn(6, 20)
    graph(x)
    gflow.save(graph, tmp_path / "net", target="cuda:90")
    files = sorted(p.name for p in (tmp_path / "net" / "kernels").iterdir())
    sources = [f for f in files if f.endswith(".py")]
    assert sources
    assert len([f for f in files if f.endswith(".cubin")]) == len(sources)
    assert "@triton.jit" in (tmp_path / "net" / "kernels" / sources[0]).read_text()
    cubin = next(tmp_path.glob("net/kernels/*.cubin")).read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert json.loads((tmp_path / "net" / "manifest.json").read_text())["target"] == "cuda:90"
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactError, match=r"saved for cuda:90: .*(driver|GPU)"):
            gflow.load(tmp_path / "net")
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    loaded = gflow.load(tmp_path / "net")
    for _ in range(3):
        x = torch.randn(6, 20)
        torch.testing.assert_close(loaded(x)["loss"], graph(x)["loss"])
    # it is saved again as it came
    gflow.save(loaded, tmp_path / "again")
    other = gflow.load(tmp_path / "again")
    assert other.target == "cuda:90"
    torch.testing.assert_close(other(x)["loss"], graph(x)["loss"])


def test_it_runs_from_the_command_line(tmp_path, monkeypatch, capsys):
    graph, x = Infer(Net()), torch.randn(6, 20)
    want = graph(x)
    gflow.save(graph, tmp_path / "net", target="cuda:80")
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    np.save(tmp_path / "x.npy", x.numpy())
    argv = [str(tmp_path / "net"), "--input", str(tmp_path / "x.npy")]
    assert gflow_run([*argv, "--output", str(tmp_path / "y.npy"), "--repeat", "2"]) == 0
    assert "2 runs: median" in capsys.readouterr().out
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), want)


def test_stored_source_is_not_run(tmp_path, monkeypatch):
    """Where kernels are interpreted they are made from the IR, whatever the files say."""
    graph, x = Infer(Net()), torch.randn(6, 20)
    want, place = graph(x), tmp_path / "net"
    gflow.save(graph, place, target="cuda:80")
    manifest = json.loads((place / "manifest.json").read_text())
    for source in (place / "kernels").glob("*.py"):
        source.write_text("raise SystemExit('stored source ran')\n" + source.read_text())
        data = source.read_bytes()
        entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["files"][f"kernels/{source.name}"] = entry
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    for seals in (False, True):
        if seals:
            program = json.loads((place / "programs/0.json").read_text())
            fuzz_artifacts._reseal_saved(place, "programs/0.json", program)
            data = json.dumps(program).encode()
            (place / "programs/0.json").write_bytes(data)
            entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            manifest["files"]["programs/0.json"] = entry
            manifest["seal"] = bundle.seal(manifest)
        manifest.pop("sha256")
        manifest["sha256"] = bundle._checksum(manifest)
        (place / "manifest.json").write_text(json.dumps(manifest))
        if not seals:
            with pytest.raises(ArtifactError, match="changed since"):
                gflow.load(place)
    torch.testing.assert_close(gflow.load(place)(x), want)
    with pytest.raises(ArtifactError, match=r"takes gflow\.load"):  # the runtime has no compiler
        load_graph(place)


def test_targets_that_are_not_there(tmp_path):
    graph = Infer(Net())
    graph(torch.randn(6, 20))
    with pytest.raises(ValueError, match="one of 75, 80"):
        gflow.save(graph, tmp_path / "net", target="cuda:91")
    with pytest.raises(ValueError, match="unknown target 'tpu'"):
        gflow.save(graph, tmp_path / "net", target="tpu")


def test_the_kernels_that_a_graph_would_have_on_a_gpu():
    graph = Train(Net())
    graph(torch.randn(6, 20))
    own = graph.kernels()
    found = graph.kernels(target="cuda:90")
    assert all("@triton.jit" in k.source for k in found)
    assert all(k.uses and k.ops and k.sources for k in found)
    assert any(
        "softmax" in str(k.sources) or "test_cuda_artifact" in str(k.sources[0]) for k in found
    )
    assert [k.name for k in graph.kernels()] == [k.name for k in own]
    with pytest.raises(gflow.GraphError, match=r"kernels\(\): unknown target 'cuda:1'"):
        graph.kernels(target="cuda:1")


def test_autotune_is_a_switch():
    graph = Train(Net())
    assert graph.config.resolved().tune_seconds is None
    graph.config.enable_autotune()
    assert graph.config.resolved().tune_seconds == math.inf
    assert graph.config.resolved().tune_libraries
    graph.config.enable_autotune(libraries=False)
    assert not graph.config.resolved().tune_libraries
    graph.config.enable_autotune(seconds=5)
    assert graph.config.resolved().tune_seconds == 5.0
    graph.config.enable_autotune(False)
    assert graph.config.resolved().tune_seconds == 0.0
    for wrong in (-1, "5", math.nan, True):
        with pytest.raises(gflow.GraphError, match="takes a number of seconds, or None"):
            graph.config.enable_autotune(seconds=wrong)
    graph(torch.randn(6, 20))  # there is nothing to choose on the CPU
