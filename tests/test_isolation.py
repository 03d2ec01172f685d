"""Other software runs as if gflow were not there."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gflow as flow
from gflow import nn
from gflow.call.modes import Modes

_CHECK = Path(__file__).with_name("isolation_check.py")
Module = torch.nn.Module
Tensor = torch.Tensor


def _run(*arguments: str) -> str:
    root = _CHECK.parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(_CHECK), *arguments],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_a_process_is_as_before() -> None:
    assert _run() == "same"


@pytest.mark.sweep
def test_libraries_compute_the_same() -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("lightning")
    assert _run("--libraries") == "same"


def test_a_class_with_a_config_of_its_own() -> None:
    class Mixin:
        @property
        def config(self) -> dict[str, int]:
            return {"a": 1}

    class Model(Module, Mixin):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.config["a"]

    model = Model()
    graph = nn.Graph.trace(lambda x: model(x))
    assert torch.equal(graph(torch.ones(1)), model(torch.ones(1)))
    with pytest.raises(TypeError):
        torch.nn.Linear(2, 2).to(torch.nn.Module)  # type: ignore[call-overload]


# -- threads


class Block(Module):
    """What a trace has to be careful with: PyTorch's own parts that it replaces for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16, momentum=None)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.last(self.norm(x.relu()))


def _train(
    model: Module,
    steps: int,
    until: threading.Event | None = None,
    made: threading.Semaphore | None = None,
) -> int:
    """Train until told to stop; returns how many steps that were. made: is released at each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(8, 16, generator=generator)
        optimizer.zero_grad()
        loss = model(x).square().mean() + Block()(x).mean() * 0  # modules are made meanwhile
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert all(type(p) is torch.nn.Parameter for p in model.parameters())
        if made is not None:
            made.release()
        if until is not None and until.is_set():
            return step + 1
    return steps


def _beside(work: Callable[[], Any], busy: Callable[[], Any]) -> Any:
    """What `busy` gives in another thread, while `work` is done here."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(busy())
        except BaseException as error:
            found.append(error)

    before = Modes.current()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        work()
    finally:
        thread.join()
        # PyTorch keeps these flags once for all threads: what one sets back, another may have set in between.
        dataclasses.replace(Modes.current(), flags=before.flags).restore()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_model_that_trains_in_another_thread() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(), Block())
    twin = copy.deepcopy(model)
    done, made = threading.Event(), threading.Semaphore(0)

    def traced(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # a step that began before, and one that began while this is traced
            assert made.acquire(timeout=60)
        return model(x)

    def compile_graphs() -> None:
        try:
            for _ in range(3):
                while made.acquire(blocking=False):
                    pass
                nn.Graph.trace(traced)._compile(torch.randn(4, 16))
        finally:
            done.set()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = _beside(compile_graphs, lambda: _train(model, 100_000, done, made))
    assert steps >= 6
    _train(twin, steps)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values()):
        assert torch.equal(a, b), name


def test_dynamo_in_another_thread() -> None:
    torch.manual_seed(0)
    model, done = Block(), threading.Event()
    x = torch.randn(8, 16)

    def compile_graphs() -> None:
        try:
            graph = nn.Graph.trace(lambda x: model(x))
            graph._compile(torch.randn(4, 16))
        finally:
            done.set()

    def dynamo() -> bool:
        for _ in range(20):
            other = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).eval()
            compiled = torch.compile(other, backend="eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), other(x))
            torch._dynamo.reset()
            if done.is_set():
                break
        return True

    assert _beside(compile_graphs, dynamo)


def test_graphs_in_two_threads() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16)

    def work() -> bool:
        model = Block().eval()
        compiled = flow.compile(model)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        return True

    assert _beside(work, work)


_DYNAMO = """
import sys
import torch
import gflow as flow
from gflow.errors import GraphTraceError

if "loaded" in sys.argv:
    import torch._dynamo

class Plain(flow.nn.Graph):
    def build(self, x):
        return x.sin()

Plain()(torch.ones(3))
assert ("torch._dynamo.convert_frame" in sys.modules) == ("loaded" in sys.argv)

class Branch(flow.nn.Graph):
    def build(self, x):
        import gflow_late_module  # keeps what it finds
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

try:
    Branch()(torch.ones(3))
except GraphTraceError as error:
    assert "control flow" in str(error)

import gflow_late_module

def asks(x):
    return x + 1 if torch.compiler.is_compiling() else x

assert not gflow_late_module.is_compiling()
assert torch.compile(asks, backend="eager", fullgraph=True)(torch.zeros(2)).tolist() == [1.0, 1.0]
"""


@pytest.mark.parametrize("dynamo", ["loaded", "not loaded"])
def test_dynamo_that_is_first_used_while_a_graph_is_traced(dynamo: str, tmp_path: Path) -> None:
    """Neither it nor a module that is imported then keeps a function that was replaced for the trace. A program that
    needs none of it does not load it, while its progress is shown."""
    (tmp_path / "gflow_late_module.py").write_text("from torch.compiler import is_compiling\n")
    root = _CHECK.parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _DYNAMO, dynamo],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}", "GFLOW_PROGRESS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
