"""`gflow.save(graph, path)` and `gflow.load(path)`: graphs that run without their code."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules

import gflow as flow
from gflow.runtime.cpu import jit, machine, objects
from gflow.runtime.stored import bundle
from gflow.runtime.stored.bundle import ArtifactError
from gflow.runtime.stored.loaded_graph import LoadedGraph
from gflow.saved.run import main


class Eval(flow.nn.Graph):
    """With a program for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.config.enable_dynamic_shapes(False)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.LazyLinear(5)
        self.table = torch.arange(5.0)

    def build(self, x: Tensor, scale: Any = 1.0) -> dict[str, Any]:
        out = self.head(self.model(x)) * scale + self.table
        return {"logits": out, "more": [out.argmax(1), None, "name"]}


class Train(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4))
        self.head = nn.Linear(16, 3)
        adam = torch.optim.AdamW(self.model.parameters(), 0.01)
        sgd = torch.optim.SGD(self.head.parameters(), 0.1, momentum=0.9)
        parts = [schedules.ConstantLR(adam, 1.0), schedules.MultiStepLR(adam, [1, 2], 0.5)]
        self.add_optimizer(adam, schedules.SequentialLR(adam, parts, [1]))
        self.add_optimizer(sgd)
        self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**8, growth_interval=2))

    def build(self, x: Tensor, *, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.head(self.model(x)), y)
        loss.backward()
        return loss


LOAD = """
import json, sys
import numpy as np, torch
import gflow as flow

folder = sys.argv[1]
x = torch.from_numpy(np.load(folder + "/x.npy"))
graph = flow.load(folder + "/1/model")
small, large = graph(x[:2]), graph(x)
np.save(folder + "/small.npy", small["logits"].numpy())
np.save(folder + "/large.npy", large["logits"].numpy())

train = flow.load(folder + "/train")
x, y = flow.load(folder + "/batch")
losses = [train(x, y=y).item() for _ in range(3)]
flow.save(train.state_dict(), folder + "/state")
flow.save(train, folder + "/train2")
loaded = [m for m in sys.modules if m.startswith(("gflow", "torch_mlir"))]
print(json.dumps({"losses": losses, "more": large["more"][1:], "modules": loaded}))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Graphs that were saved, and what a process that has only the files makes of them."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    graph, x = Eval(), torch.randn(4, 3, 8, 8)
    graph.head(graph.model(x))
    graph.model.eval()
    small, large = graph(x[:2]), graph(x)
    np.save(folder / "x.npy", x.numpy())
    flow.save(graph, folder / "1" / "model")
    train, batch = Train(), (torch.randn(8, 6), torch.randint(3, (8,)))
    for _ in range(2):
        train(batch[0], y=batch[1])
    flow.save(train, folder / "train")
    flow.save(batch, folder / "batch")
    losses = [train(batch[0], y=batch[1]).item() for _ in range(3)]
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {"small": small, "large": large, "train": train, "losses": losses, "batch": batch}
    return folder, {**found, "other": json.loads(done.stdout)}


def test_a_process_without_the_code(saved: tuple[Path, dict[str, Any]]) -> None:
    folder, found = saved
    for name in ("small", "large"):
        assert np.array_equal(np.load(folder / f"{name}.npy"), found[name]["logits"].numpy())
    assert found["other"]["more"] == [None, "name"]
    modules = found["other"]["modules"]
    assert "gflow.runtime.stored.artifact" in modules
    banned = (
        "gflow.tracing",
        "gflow.graph",
        "gflow.lowering",
        "gflow.compiler",
        "gflow.call.plans.plan",
    )
    if objects.supported():
        banned += ("torch_mlir",)
    assert not [m for m in modules if m.startswith(banned)]


def test_a_training_graph_goes_on(saved: tuple[Path, dict[str, Any]]) -> None:
    folder, found = saved
    assert found["other"]["losses"] == found["losses"]
    state = flow.load(folder / "state")
    expected = found["train"].state_dict()
    assert list(state) == list(expected)
    torch.testing.assert_close(dict(state), dict(expected), rtol=0, atol=0)
    # back to a graph with code, and on from what the other process saved
    resumed, again = Train(), flow.load(folder / "train2")
    resumed.load_state_dict(state)
    x, y = found["batch"]
    wanted = found["train"](x, y=y)
    assert torch.equal(resumed(x, y=y), wanted)
    assert torch.equal(again(x, y=y), wanted)


def test_kernels_from_their_text(
    saved: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = saved
    monkeypatch.setattr(machine, "runs", lambda *_: False)
    monkeypatch.setattr(jit, "_addresses", {})
    x = torch.from_numpy(np.load(folder / "x.npy"))
    assert torch.equal(flow.load(folder / "1" / "model")(x)["logits"], found["large"]["logits"])


def test_signatures(saved: tuple[Path, dict[str, Any]]) -> None:
    folder, found = saved
    graph = flow.load(folder / "1" / "model")
    x = torch.from_numpy(np.load(folder / "x.npy"))
    assert [str(i) for i in graph.inputs] == ["x: float32 4×3×8×8"]
    assert [o.name for o in graph.outputs] == ["logits", "more.0"]
    assert len(graph.signatures) == 2
    assert torch.equal(graph(x=x)["logits"], found["large"]["logits"])
    other_strides = x.to(memory_format=torch.channels_last)
    assert torch.equal(graph(other_strides)["logits"], found["large"]["logits"])
    assert torch.equal(graph.run_named({"x": x})["logits"], found["large"]["logits"])
    with pytest.raises(ValueError, match=r"'x' has shape \[3, 3, 8, 8\], \[4, 3, 8, 8\] expected"):
        graph(x[:3])
    with pytest.raises(ValueError, match=r"'x' is torch.float64, torch.float32 expected"):
        graph(x.double())
    with pytest.raises(ValueError, match="do not fit: too many positional"):
        graph(x, 1.0, 2.0)
    with pytest.raises(ValueError, match="by more than their tensors"):
        graph(x, 2.0)
    with pytest.raises(ValueError, match="there is no input 'z'; known: x"):
        graph.run_named({"x": x, "z": x})


def test_structures_numbers_and_inputs_that_change(tmp_path: Path) -> None:
    class Mixed(flow.nn.Graph):
        def build(self, xs: list[Tensor], *more: Any, k: dict[str, Any]) -> tuple[Any, ...]:
            xs[0].add_(1)
            return (xs[0] * k["a"], [more[0] + xs[1] if k["flag"] else more[0]]), {"n": 1.5}

    graph = Mixed()

    def call(target: Any) -> tuple[Any, Tensor]:
        changed = torch.arange(6.0).reshape(2, 3)
        k = {"a": torch.full((2, 3), 2.0), "flag": True, "none": None}
        return target([changed, torch.ones(2, 3)], torch.ones(3), k=k), changed

    wanted = call(graph)
    flow.save(graph, tmp_path / "m")
    torch.testing.assert_close(call(flow.load(tmp_path / "m")), wanted, rtol=0, atol=0)
    loaded = flow.load(tmp_path / "m")
    changed = torch.arange(6.0).reshape(3, 2).t()  # other strides: changed all the same
    before = changed.clone()
    loaded([changed, torch.ones(2, 3)], torch.ones(3), k={"a": before, "flag": True, "none": None})
    assert torch.equal(changed, before + 1)
    with pytest.raises(ValueError, match="by more than their tensors"):
        loaded([changed, before], torch.ones(3), k={"a": before, "flag": False, "none": None})


def test_numbers(tmp_path: Path) -> None:
    graph, x = Train(), torch.randn(8, 6)
    y = torch.randint(3, (8,))
    graph(x, y=y)
    flow.save(graph, tmp_path / "m")
    loaded = flow.load(tmp_path / "m")
    assert loaded.numbers["optimizer.1.group0.lr"] == 0.1
    graph._checked().optimizers[1].param_groups[0]["lr"] = 0.5
    loaded.set_number("optimizer.1.group0.lr", 0.5)
    assert torch.equal(loaded(x, y=y), graph(x, y=y))
    assert torch.equal(loaded(x, y=y), graph(x, y=y))
    assert loaded.state_dict()["graph.optimizer.1"]["param_groups"][0]["lr"] == 0.5
    with pytest.raises(KeyError, match="has no number 'lr'"):
        loaded.set_number("lr", 1.0)
    # SGD without momentum is another program
    loaded.set_number("optimizer.1.group0.momentum", 0.0)
    with pytest.raises(ValueError, match=r"compiled for other values of .*group0\.momentum"):
        loaded(x, y=y)


def step_of(optimizer: torch.optim.Optimizer, scheduler: Any) -> flow.nn.Graph:
    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.weight = optimizer.param_groups[0]["params"][0]
            self.add_optimizer(optimizer, scheduler)

        def build(self) -> Tensor:
            loss = (self.weight * self.weight).sum()
            loss.backward()
            return loss

    return Step()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedules.OneCycleLR(o, 0.3, total_steps=20),
        lambda o: schedules.CyclicLR(o, 0.01, 0.2, step_size_up=2, mode="exp_range"),
        lambda o: schedules.ChainedScheduler(
            [schedules.ExponentialLR(o, 0.9), schedules.CosineAnnealingLR(o, 5)], optimizer=o
        ),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
        lambda o: flow.optim.lr_scheduler.WarmUpLR(
            flow.optim.lr_scheduler.PolynomialLR(o, steps=20), warmup_iters=5
        ),
        lambda o: flow.optim.lr_scheduler.WarmUpLR(o),
    ],
)
def test_schedulers_go_on(make: Callable[[Any], Any], tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1, momentum=0.9)
    graph = step_of(optimizer, make(optimizer))
    for _ in range(3):
        graph()
    flow.save(graph, tmp_path / "m")
    loaded = flow.load(tmp_path / "m")
    for _ in range(6):
        assert torch.equal(loaded(), graph())
        assert loaded.numbers["optimizer.0.group0.lr"] == optimizer.param_groups[0]["lr"]
    same = {"check_dtype": True, "rtol": 0, "atol": 0}
    ours, theirs = (g.state_dict()["graph.optimizer.0"] for g in (loaded, graph))
    torch.testing.assert_close(ours["state"], theirs["state"], **same)


def test_a_scheduler_that_stays_behind(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    graph = step_of(optimizer, schedules.LambdaLR(optimizer, lambda n: 1 / (1 + n)))
    graph()
    with pytest.warns(UserWarning, match="the LambdaLR of Step_.* stays behind"):
        flow.save(graph, tmp_path / "m")
    loaded = flow.load(tmp_path / "m")
    loaded()
    assert loaded.numbers["optimizer.0.group0.lr"] == 0.05


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(flow.GraphError, match="call it once with its inputs before it is saved"):
        flow.save(Train(), tmp_path / "m")
    graph = Train()
    graph(torch.randn(8, 6), y=torch.randint(3, (8,)))
    graph.model.eval()
    with pytest.raises(flow.GraphError, match="present modes"):
        flow.save(graph, tmp_path / "m")
    graph.model.train()
    with pytest.raises(ValueError, match="unknown target 'cuda:1'"):
        flow.save(graph, tmp_path / "m", target="cuda:1")
    with pytest.raises(ValueError, match="unknown target 'tpu'; known: 'cpu'"):
        flow.save(graph, tmp_path / "m", target="tpu")
    by_strides = flow.nn.Graph.trace(lambda x: x.as_strided((2,), (3,)) * 2)
    by_strides(torch.ones(8))
    with pytest.raises(flow.GraphError, match=r"as_strided on input 'args.0', .*clone"):
        flow.save(by_strides, tmp_path / "m")
    assert not list(tmp_path.iterdir())
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="holds other files"):
        flow.save(graph, tmp_path / "m")
    assert (tmp_path / "m" / "mine.txt").read_text() == "mine"


# damage


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Tiny(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 2)

        def build(self, x: Tensor) -> Tensor:
            return self.model(x).relu()

    graph = Tiny()
    graph(torch.ones(2, 3))
    path = tmp_path_factory.mktemp("tiny") / "model"
    for _ in range(2):  # the second replaces the first
        flow.save(graph, path)
    assert [p.name for p in path.parent.iterdir()] == ["model"]
    return path


def refused(path: Path) -> str:
    with pytest.raises((ArtifactError, flow.CheckpointError)) as found:
        flow.load(path)
    assert "\n" not in str(found.value)
    return str(found.value)


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def test_every_changed_file_is_refused(artifact: Path) -> None:
    assert isinstance(flow.load(artifact), LoadedGraph)
    names = {str(p.relative_to(artifact)) for p in files_of(artifact)}
    assert {"manifest.json", "model.mlir", "weights.safetensors", "programs/0.json"} <= names
    for path in files_of(artifact):
        data = path.read_bytes()
        for at in (0, len(data) // 3, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            refused(artifact)
        for cut in (0, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:cut])
            refused(artifact)
        path.write_bytes(data + b"\n\n\n \0")
        refused(artifact)
        path.unlink()
        assert "is missing" in refused(artifact)
        path.symlink_to("/etc/passwd")
        assert "is a link" in refused(artifact)
        path.unlink()
        path.mkdir()
        refused(artifact)
        path.rmdir()
        path.write_bytes(data)
    kernels, aside = artifact / "kernels", artifact.parent / "aside"
    kernels.rename(aside)
    kernels.symlink_to(aside)
    assert "is a link" in refused(artifact)
    kernels.unlink()
    aside.rename(kernels)
    assert isinstance(flow.load(artifact), LoadedGraph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=2), "has format version 2; this gflow reads up to 1"),
        (lambda m: m.update(format="x"), "no manifest of a saved graph"),
        (lambda m: m["files"].update({"../../x": {"size": 0, "sha256": ""}}), "outside of it"),
        (lambda m: m["files"].update({"/etc/passwd": {"size": 0, "sha256": ""}}), "outside of it"),
        (lambda m: m["files"].pop("model.mlir"), "cannot be loaded"),
        (lambda m: m.pop("programs"), "cannot be loaded"),
        (lambda m: m["programs"][0]["arguments"].pop(), "does not fit the program"),
        (lambda m: m.update(target="cuda:90"), "was saved for cuda:90"),
    ],
)
def test_manifests_with_a_checksum_that_fits(
    artifact: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = artifact / "manifest.json"
    text = path.read_text()
    changed(artifact, change)
    assert message in refused(artifact)
    path.write_text(text)


def changed(artifact: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and sign it again."""
    path = artifact / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest["seal"] = bundle.seal(manifest)
    manifest["sha256"] = bundle._checksum(manifest)
    path.write_text(json.dumps(manifest))


def test_what_runs_without_stored_code(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gflow-run --no-native` reads no machine code: there may be none that is any."""
    shutil.copytree(artifact, tmp_path / "graph")
    path = tmp_path / "graph" / "manifest.json"
    manifest = json.loads(path.read_text())
    data = b"no machine code"
    (tmp_path / "graph/kernels/cpu.o").write_bytes(data)
    manifest["files"]["kernels/cpu.o"] = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    manifest.pop("sha256")
    for seal in (manifest["seal"], bundle.seal(manifest)):
        manifest["seal"] = seal
        manifest["sha256"] = bundle._checksum({k: v for k, v in manifest.items() if k != "sha256"})
        path.write_text(json.dumps(manifest))
        good = seal == bundle.seal(manifest)
        assert main([str(tmp_path / "graph"), "--no-native", "--info"]) == (0 if good else 1)
    assert "changed since it was written" in capsys.readouterr().err


def test_what_is_no_artifact(tmp_path: Path) -> None:
    assert "is missing" in refused(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "no manifest" in refused(tmp_path)


# gflow-run


def test_run(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, found = saved
    model, x, y = str(folder / "1" / "model"), str(folder / "x.npy"), str(tmp_path / "y.npy")
    assert main([model, "--input", x, "--output", y]) == 0
    assert np.array_equal(np.load(y), found["large"]["logits"].numpy())
    named = ["--input", f"x={x}", "--output", f"more.0={y}", "--repeat", "3"]
    assert main([model, *named]) == 0
    assert np.array_equal(np.load(y), found["large"]["more"][0].numpy())
    assert "3 runs: median" in capsys.readouterr().out
    assert main([model, "--info"]) == 0
    shown = capsys.readouterr().out
    assert "Eval_" in shown
    assert "  input   x: float32 4×3×8×8\n" in shown
    assert "  output  more.0: int64 4" in shown


def test_run_says_what_is_wrong(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*argv: str) -> str:
        assert main([str(artifact), *argv]) == 1
        said = capsys.readouterr().err
        assert said.startswith("gflow-run: ")
        assert said.count("\n") == 1
        return said

    x = tmp_path / "x.npy"
    np.save(x, np.ones((2, 4), np.float32))
    assert "'x' has shape [2, 4], [2, 3] expected" in error("--input", str(x))
    np.save(x, np.ones((2, 3)))
    assert "'x' is torch.float64, torch.float32 expected" in error("--input", str(x))
    assert "input 'x' (x: float32 2×3) is missing" in error("--output", str(x))
    assert "there is no input 'z'; known: x" in error("--input", f"z={x}")
    assert "2 inputs were given; the graph has 1" in error("--input", str(x), "--input", str(x))
    assert "No such file" in error("--input", str(tmp_path / "none.npy"))
    np.save(x, np.array([object()]), allow_pickle=True)
    assert "is no .npy file of a tensor" in error("--input", str(x))
    assert main([str(tmp_path), "--info"]) == 1
    assert "manifest.json is missing" in capsys.readouterr().err


class Accumulated(Train):
    """Steps in micro-batches, and results of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.config.set_gradient_accumulation_steps(4)

    def build(self, x: Tensor, *, y: Tensor) -> Any:  # type: ignore[override]
        logits = self.head(self.model(x))
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        return loss, {"right": (logits.argmax(1) == y).sum(), "logits": logits}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["update"].__setitem__(0, s["update"][1]), "of both"),
        (lambda s: s.update(results=1), "a result that there is not"),
    ],
)
def test_parts_of_a_step_that_do_not_fit(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """The first one wrote beyond an argument."""
    graph = Accumulated()
    graph(torch.randn(8, 6), y=torch.randint(3, (8,)))
    flow.save(graph, tmp_path / "graph")
    changed(tmp_path / "graph", lambda m: change(m["programs"][0]["split"]))
    assert message in refused(tmp_path / "graph")


def test_training_in_micro_batches_goes_on(tmp_path: Path) -> None:
    """What is loaded, and what is loaded from that, take the steps of the graph itself."""
    torch.manual_seed(0)
    graph = Accumulated()
    batches = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(6)]
    for x, y in batches[:2]:
        graph(x, y=y)
    flow.save(graph, tmp_path / "one")
    flow.save(graph.state_dict(), tmp_path / "state")
    weights = {k: v.clone() for k, v in graph.model.to(nn.Module).state_dict().items()}
    expected = [graph(x, y=y) for x, y in batches[2:]]

    one = flow.load(tmp_path / "one")
    assert [str(i) for i in one.outputs][2:] == ["output.1.logits: float32 8×3"]
    assert [tuple(i.shape) for i in one.inputs] == [(8, 6), (8,)]
    found = [one(x, y=y) for x, y in batches[2:4]]
    flow.save(one, tmp_path / "two")
    two = flow.load(tmp_path / "two")
    found += [two(x, y=y) for x, y in batches[4:]]
    resumed = Accumulated()
    resumed.load_state_dict(flow.load(tmp_path / "state"))
    again = [resumed(x, y=y) for x, y in batches[2:]]
    for other in (found, again):
        for (loss, more), (loss_, more_) in zip(expected, other, strict=True):
            assert torch.equal(loss, loss_)
            assert list(more) == list(more_)
            assert all(map(torch.equal, more.values(), more_.values()))
    whole = graph.state_dict()
    for name, value in two.state_dict()["model"].items():
        assert torch.equal(value, whole["model"][name])
        assert value.dtype != torch.float32 or not torch.equal(value, weights[name])
    assert two.state_dict()["graph.step"] == 6
    with pytest.raises(ValueError, match=r"input 'x' has shape \[4, 6\], \[8, 6\] expected"):
        two(batches[0][0][:4], y=batches[0][1])


def test_expanded_inputs(tmp_path: Path) -> None:
    class Twice(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return 2 * x

    graph, x = Twice(), torch.randn(1, 4).expand(3, 4)
    graph(x)
    flow.save(graph, tmp_path / "expanded")
    loaded = flow.load(tmp_path / "expanded")
    assert torch.equal(loaded(x), 2 * x)
    with pytest.raises(ValueError, match=r"'x' has strides \[4, 1\], .* strides \[0, 1\]; save a"):
        loaded(torch.randn(3, 4))
    graph(torch.randn(3, 4))
    flow.save(graph, tmp_path / "both")
    y = torch.randn(3, 4)
    assert torch.equal(flow.load(tmp_path / "both")(y), 2 * y)


class InPlace(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.BatchNorm1d(6, affine=False)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.running_mean.add_(y)
        x.add_(y)
        return y * 2 + self.model.running_mean


def test_inputs_that_share_memory_with_what_is_updated(tmp_path: Path) -> None:
    """A program reads values from before its updates, which those of shared memory would not be."""
    graph = InPlace()
    graph(torch.ones(6), torch.ones(6))
    flow.save(graph, tmp_path / "x")
    loaded = flow.load(tmp_path / "x")
    total = loaded.state_dict()["model"]["running_mean"]
    memory = torch.arange(12.0)
    for x, y, text in (
        (memory[:6], memory[:6], "input 'x' shares memory with input 'y'"),
        (memory[:6], memory[3:9], "input 'x' shares memory with input 'y'"),
        (total, memory[:6], "input 'x' shares memory with a tensor of the graph's state"),
        (memory[:6], total, "input 'y' shares memory with a tensor of the graph's state"),
        (memory[:1].expand(6), memory[6:], "input 'x' is updated, and its own elements"),
    ):
        with pytest.raises(ValueError, match=text):
            loaded(x, y)
    torch.testing.assert_close(total, torch.ones(6))
    torch.testing.assert_close(memory, torch.arange(12.0))
    x, y = memory[::2], memory[1::2]
    want, updated = y * 3 + total, x + y
    torch.testing.assert_close(loaded(x, y), want)
    torch.testing.assert_close(x, updated)
