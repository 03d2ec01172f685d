"""`graph.state_dict()`, `gflow.save` and `gflow.load`: interrupted runs go on as if they were not."""

from __future__ import annotations

import copy
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow
from gflow.runtime.stored.bundle import Bundle, read_bundle, write_bundle

RUN = """
import hashlib, json, sys, torch
from torch import nn
import gflow as flow

def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(288, 4)
    )
    head = nn.Linear(4, 4)

    class Train(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model, self.head = model, head
            adam = torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True)
            sgd = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
            warm = torch.optim.lr_scheduler.LinearLR(adam, 0.1, total_iters=3)
            rest = torch.optim.lr_scheduler.MultiStepLR(adam, [2, 4], 0.5)
            self.add_optimizer(adam, torch.optim.lr_scheduler.SequentialLR(adam, [warm, rest], [3]))
            self.add_optimizer(sgd, torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 10))
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**10, growth_interval=2))

        def build(self, x, y):
            loss = nn.functional.cross_entropy(self.head(self.model(x)), y)
            loss.backward()
            return loss

    return Train()

def steps(graph, first, last):
    losses = []
    for n in range(first, last):
        torch.manual_seed(1000 + n)
        losses.append(graph(torch.randn(4, 3, 8, 8), torch.randint(4, (4,))).item())
    return losses

def digest(graph):
    found = hashlib.sha256()
    def walk(value):
        if isinstance(value, torch.Tensor):
            found.update(value.detach().numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode()); walk(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value: walk(item)
        else:
            found.update(repr(value).encode())
    walk(graph.state_dict())
    return found.hexdigest()

if __name__ == "__main__":
    graph = make(seed=99)  # other weights, all of which come from the file
    graph.load_state_dict(flow.load(sys.argv[1]))
    print(json.dumps([steps(graph, 5, 9), digest(graph)]))
"""


class Small(flow.nn.Graph):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.model = nn.Linear(4, size)
        self.add_optimizer(torch.optim.Adam(self.model.parameters(), 0.1))

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    run = runpy.run_path(str(script), run_name="run")
    whole = run["make"](seed=0)
    losses = run["steps"](whole, 0, 9)
    part = run["make"](seed=0)
    assert run["steps"](part, 0, 5) == losses[:5]
    flow.save(part.state_dict(), tmp_path / "checkpoint")
    command = [sys.executable, str(script), str(tmp_path / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [losses[5:], run["digest"](whole)]


def test_keys() -> None:
    graph = Small()
    before = graph.state_dict()
    assert list(before) == ["model", "graph.optimizer.0", "graph.rng", "graph.step"]
    assert list(before["model"]) == ["weight", "bias"]
    assert before["graph.step"] == 0
    graph(torch.ones(2, 4))
    assert graph.state_dict()["graph.step"] == 1
    assert graph.state_dict()["model"]["weight"].data_ptr() == graph.model.weight.data_ptr()


def test_only_before_the_first_call() -> None:
    graph = Small()
    state = graph.state_dict()
    graph.load_state_dict(state)
    graph.load_state_dict(state)
    graph(torch.ones(2, 4))
    with pytest.raises(flow.GraphError, match=r"test_state_dict\.py:\d+: .*before the first call"):
        graph.load_state_dict(state)


def test_the_given_state_stays_as_it_is() -> None:
    graph, other = Small(), Small()
    graph(torch.ones(2, 4))
    state = copy.deepcopy(graph.state_dict())
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    other(torch.ones(2, 4))
    torch.testing.assert_close(state, kept, rtol=0, atol=0)
    graph(torch.ones(2, 4))
    torch.testing.assert_close(other.state_dict(), graph.state_dict(), rtol=0, atol=0)


def test_strict() -> None:
    graph = Small()
    state = graph.state_dict()
    lacking = {k: v for k, v in state.items() if k != "graph.optimizer.0"}
    lacking["model"] = {"weight": state["model"]["weight"]}
    with pytest.raises(flow.GraphError, match=r"missing model\.bias, graph\.optimizer\.0; strict="):
        graph.load_state_dict(lacking)
    graph.load_state_dict(lacking, strict=False)
    more = {**state, "other": {}, "model": {**state["model"], "scale": torch.ones(1)}}
    with pytest.raises(flow.GraphError, match=r"unexpected other, model\.scale"):
        graph.load_state_dict(more)
    graph.load_state_dict(more, strict=False)
    weight = graph.model.weight.detach().clone()
    with pytest.raises(flow.GraphError, match=r"model\.weight has shape \[5, 4\], the graph's has"):
        graph.load_state_dict(Small(5).state_dict(), strict=False)
    assert torch.equal(graph.model.weight, weight)
    groups = {**state, "graph.optimizer.0": torch.optim.SGD([nn.Parameter(weight)]).state_dict()}
    with pytest.raises(
        flow.GraphError, match=r"parameter groups of \[1\] parameters, .* has \[2\]"
    ):
        graph.load_state_dict(groups)
    with pytest.raises(flow.GraphError, match="takes what state_dict"):
        graph.load_state_dict([1])  # type: ignore[arg-type]


# files


def tree() -> dict[str, Any]:
    shared = torch.randn(3)
    return {
        "weights": OrderedDict(a=torch.randn(2, 3), b=torch.zeros(0, 4), c=torch.tensor(2.5)),
        "types": [
            torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            torch.tensor([True, False]),
            torch.randn(3, dtype=torch.complex128),
            torch.arange(4).to(torch.uint16),
        ],
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "view": torch.arange(12.0).reshape(3, 4)[:, 1:3],
        "shared": (shared, shared),
        3: {"lr": 0.1 + 0.2, "inf": float("-inf"), "none": None, ("a", 1): b"bytes"},
        "more": [Counter({5: 2}), {1, 2}, torch.float16, torch.Size([1, 2]), "name", 2**70],
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
    }


def same(a: Any, b: Any) -> None:
    if isinstance(b, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
    elif isinstance(b, dict):
        assert type(a) is type(b)
        assert list(a) == list(b)
        for key in b:
            same(a[key], b[key])
    elif isinstance(b, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert type(a) is type(b)
        assert a == b


def test_files(tmp_path: Path) -> None:
    before = tree()
    flow.save(before, tmp_path / "x")
    after = flow.load(tmp_path / "x")
    same(after, before)
    assert after["last"].stride() == before["last"].stride()
    assert after["shared"][0] is after["shared"][1]
    assert flow.load(str(tmp_path / "x"), map_location="meta")["weights"]["a"].is_meta
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    model = nn.BatchNorm1d(2)
    flow.save(model.state_dict(), tmp_path / "x")
    assert flow.load(tmp_path / "x")._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]


def test_lengths_of_headers(tmp_path: Path) -> None:
    """The first byte is part of a length, and may be any."""
    for n in range(0, 260, 4):
        flow.save({"n": "x" * n}, tmp_path / "x")
        assert flow.load(tmp_path / "x") == {"n": "x" * n}


def test_what_other_tools_write(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = nn.Linear(2, 3).state_dict()
    torch.save(state, tmp_path / "torch")
    same(flow.load(tmp_path / "torch"), state)
    save_file(state, tmp_path / "safetensors")
    flow.save(state, tmp_path / "ours.safetensors")
    ours = load_file(tmp_path / "ours.safetensors")
    for found in (flow.load(tmp_path / "safetensors"), ours):
        same({name: found[name] for name in state}, dict(state))
    torch.save(nn.Linear(2, 3), tmp_path / "pickled")
    with pytest.raises(flow.CheckpointError, match="holds pickled objects"):
        flow.load(tmp_path / "pickled")
    with pytest.raises(ValueError, match="never unpickles"):
        flow.load(tmp_path / "pickled", weights_only=False)


def test_what_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"'a\.1' is a builtins\.object; a checkpoint holds tensors"
    ):
        flow.save({"a": [1, object()]}, tmp_path / "x")
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        flow.save(nn.Linear(2, 2), tmp_path / "x")
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(IsADirectoryError, match=r"there is notes\.txt"):
        flow.save({}, tmp_path)
    flow.save({}, tmp_path / "new" / "x")
    assert flow.load(tmp_path / "new" / "x") == {}


def test_directories_as_in_oneflows_tutorial(tmp_path: Path) -> None:
    """`shutil.rmtree(DIR)` and `flow.save(graph.state_dict(), DIR)` in turn; a suffix makes a file."""
    place = tmp_path / "graph_model"
    for value in (1, 2):
        flow.save({"n": value}, place)
        assert place.is_dir()
        assert flow.load(place) == {"n": value}
    shutil.rmtree(place)
    flow.save({"n": 3}, place)
    assert flow.load(place) == {"n": 3}
    flow.save({"n": 4}, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").is_file()
    (tmp_path / "old").write_bytes((tmp_path / "model.pt").read_bytes())
    flow.save({"n": 5}, tmp_path / "old")  # a file stays one
    assert (tmp_path / "old").is_file()
    assert flow.load(tmp_path / "old") == {"n": 5}


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    flow.save(Small().state_dict(), path)
    data = path.read_bytes()
    for at in [*range(0, len(data), 41), len(data) - 1]:
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(flow.CheckpointError) as found:
            flow.load(path)
        assert "\n" not in str(found.value)
    for cut in (0, 3, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(flow.CheckpointError):
            flow.load(path)
    with pytest.raises(FileNotFoundError):
        flow.load(tmp_path / "none")


def test_a_later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("gflow.runtime.stored.checkpoint.VERSION", 7)
        flow.save({"a": torch.ones(1)}, tmp_path / "x")
    with pytest.raises(
        flow.CheckpointError, match="has format version 7; this gflow reads up to 1"
    ):
        flow.load(tmp_path / "x")


KILLED = """
import os, sys, torch, gflow
from pathlib import Path
from gflow.runtime.stored.bundle import Bundle, write_bundle
torch.set_num_threads(1)  # a forked process has no threads
value = torch.zeros(300_000)
gflow.save(value, sys.argv[1] + ".first")  # imports what it needs
print("ready", flush=True)
sys.stdin.readline()
for n in range(1, 10**6):
    pid = os.fork()
    if pid == 0:
        for m in range(10**6):
            if n % 2:
                gflow.save({"n": m, "a": value + m, "b": value - m}, sys.argv[1])
                continue
            files = {"a": str(m).encode(), "b/c": str(-m).encode()}
            write_bundle(Path(sys.argv[1] + ".graph"), Bundle({"n": m}, files), {})
    print(pid, flush=True)
    if not sys.stdin.readline().strip():
        os.kill(pid, 9)
        break
    os.waitpid(pid, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """One process starts savers, this one kills them and looks at what they leave."""
    path = tmp_path / "x"
    flow.save({"n": -1, "a": torch.full((5,), -1.0), "b": torch.full((5,), 1.0)}, path)
    folder = tmp_path / "x.graph"
    write_bundle(folder, Bundle({"n": -1}, {"a": b"-1", "b/c": b"1"}), {})
    command = [sys.executable, "-c", KILLED, str(path)]
    seen, rounds = set(), 0
    graphs = set()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        end = time.monotonic() + 5
        while rounds < 200 and (time.monotonic() < end or not (seen - {-1} and graphs - {-1})):
            pid = int(process.stdout.readline())
            time.sleep(0.0011 * (rounds % 60) * (1 + rounds // 60))  # longer where it is slow
            os.kill(pid, signal.SIGKILL)
            found = flow.load(path)
            assert bool((found["a"] == found["n"]).all())
            assert bool((found["b"] == -found["n"]).all())
            seen.add(found["n"])
            saved = read_bundle(folder)
            n = saved.manifest["n"]
            assert saved.files == {"a": str(n).encode(), "b/c": str(-n).encode()}
            graphs.add(n)
            rounds += 1
            process.stdin.write("go\n")
            process.stdin.flush()
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdin.close()
    assert rounds >= 10
    assert seen - {-1}
    assert graphs - {-1}
