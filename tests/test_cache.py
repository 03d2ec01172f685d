"""The on-disk cache: programs and machine code, found again, never trusted when damaged."""

from __future__ import annotations

import gc
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_trace import trace_graph
from launched import command
from torch import Tensor, nn
from torch._decomp import decomposition_table

import gflow as flow
from gflow.compiler import CompileOptions
from gflow.compiler.driver.pipelines import PipelineOptions
from gflow.dialects.dialect import forget_contexts
from gflow.dialects.mlir import ir
from gflow.dialects.program import Program, processor
from gflow.execution import executor
from gflow.execution.trace_text import text_of
from gflow.runtime import Executable
from gflow.runtime.cpu import jit, llvm, objects
from gflow.runtime.stored import cache, program_io

needs_objects = pytest.mark.skipif(not objects.supported(), reason="no loader for this machine")

STEP = """
import json, sys, torch
import gflow as flow

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

class Step(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))

    def build(self, x):
        loss = torch.nn.functional.dropout(self.model(x), 0.0).square().mean()
        loss.backward()
        return loss

graph = Step()
losses = [graph(torch.ones(4, 8)).item() for _ in range(3)]
compiler = [m for m in sys.modules if m.startswith(("torch_mlir", "gflow.lowering", "gflow.compiler.passes"))]
print(json.dumps({
    "losses": losses, "phases": sorted(graph.timings), "compiler": compiler, "ir": graph.ir(generic=True),
}))
"""


def run(folder: Path, *, alone: bool = False, **environment: str) -> dict[str, object]:
    """alone: in a process that has imported nothing before."""
    env = {**os.environ, "GFLOW_CACHE": "1", "GFLOW_CACHE_DIR": str(folder), **environment}
    script = folder.parent / "step.py"
    script.write_text(STEP)
    line = [sys.executable, str(script)] if alone else command(str(script))
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*/*") if p.is_file())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A cache that one process has filled, and what that process printed."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    return folder, run(folder)


class Again(flow.nn.Graph):
    def __init__(self, steps: int = 1) -> None:
        super().__init__()
        self.model = nn.Linear(4, 3)
        self.add_optimizer(torch.optim.Adam(self.model.parameters(), 0.1))
        self.config.set_gradient_accumulation_steps(steps)

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("steps", [1, 2])
def test_another_graph_of_the_same_kind_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Neither its number nor the line that calls it is a part of its program."""
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    first, second = Again(steps), Again(steps)
    first(torch.ones(4, 4))
    assert "cache" not in first.timings
    written = entries(tmp_path)
    second(torch.ones(4, 4))
    assert "cache" in second.timings
    assert "codegen" not in second.timings
    assert entries(tmp_path) == written
    assert "@Again(" in second.ir(generic=True)
    lines, start = inspect.getsourcelines(Again)
    added = start + next(n for n, text in enumerate(lines) if "add_optimizer" in text)
    if steps == 1:
        assert f'test_cache.py":{added}:' in second.ir(
            "traced", generic=True
        )  # where an update's ops come from


@needs_objects
def test_second_process_compiles_nothing(
    tmp_path: Path, filled: tuple[Path, dict[str, object]]
) -> None:
    folder, first = filled
    second = run(folder, alone=True)
    assert "gflow-fuse" in first["phases"]
    assert not {"lower", "gflow-fuse"} & set(second["phases"])
    assert "cache" in second["phases"]
    assert not second["compiler"]
    assert second["losses"] == first["losses"]
    assert second["ir"] == first["ir"]
    assert {p.parent.name for p in entries(folder)} == {"programs", "objects"}
    off = run(tmp_path / "none", GFLOW_CACHE="0")
    assert off["losses"] == first["losses"]
    assert not (tmp_path / "none").exists()


def name_of(
    build: Any, *args: Any, modules: dict[str, nn.Module] | None = None, **options: Any
) -> str | None:
    trace = trace_graph("g", build, args, {}, modules or {})
    return executor._name(trace, replace(CompileOptions(), **options))


def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    return F.softmax(x * by, dim=-1).sum(0)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))


def test_the_name_of_a_trace_has_all_that_its_program_depends_on(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 6)
    given = name_of(scaled, x)
    assert given is not None
    assert name_of(scaled, torch.randn(4, 6)) == given
    batch_norm = nn.BatchNorm1d(6)
    norms = []
    for training, affine in ((True, True), (False, True), (True, False)):
        batch_norm = nn.BatchNorm1d(6, affine=affine).train(training)
        norms.append(name_of(batch_norm.forward, x, modules={"norm": batch_norm}))
    names = [
        given,
        *norms,
        name_of(lambda x: scaled(x, 3.0), x),
        name_of(scaled, torch.randn(4, 7)),
        name_of(scaled, x.double()),
        name_of(scaled, torch.randn(6, 4).t()),
        name_of(lambda x: F.softmax(x * 2.0, dim=-1).sum(0), x),  # the same ops, from another line
        name_of(scaled, x, target="cuda:90"),
        name_of(scaled, x, threads=1),
        name_of(scaled, x, blas=False),
        name_of(scaled, x, race_products=False),
        name_of(scaled, x, passes=PipelineOptions(amp="bf16")),
        name_of(scaled, x, passes=PipelineOptions(straighten="memory")),
        name_of(scaled, x, passes=PipelineOptions(memory_budget=1 << 20)),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        names.append(name_of(scaled, x))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        names.append(name_of(scaled, x))
    finally:
        torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(cache, "fingerprint", lambda: "other sources, processor or libraries")
    names.append(name_of(scaled, x))
    assert None not in names
    assert len(set(names)) == len(names)


def test_traces_whose_text_does_not_tell_all_are_lowered(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 6)
    custom = torch.library.custom_op(
        "test_cache::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    custom.register_fake(torch.empty_like)
    assert name_of(lambda x: torch.ops.test_cache.twice(x), x) is None

    class Dynamic(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return x * 2

    named = []
    monkeypatch.setattr(executor, "text_of", lambda trace: named.append(text_of(trace)))
    Dynamic()(flow.dynamic_dim(x, 0, max=8))
    assert named == [None]
    monkeypatch.setattr(executor, "text_of", text_of)
    monkeypatch.setitem(decomposition_table, torch.ops.aten.softmax.int, scaled)
    assert name_of(scaled, torch.randn(4, 6)) is None


@needs_objects
@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_damaged_entries_are_compiled_anew(
    tmp_path: Path, damage: str, filled: tuple[Path, dict[str, object]]
) -> None:
    folder, first = tmp_path / "cache", filled[1]
    shutil.copytree(filled[0], folder)
    for path in entries(folder):
        data = bytearray(path.read_bytes())
        if damage == "flipped":
            data[len(data) // 2] ^= 0x40
        path.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    second = run(folder)
    assert second["losses"] == first["losses"]
    assert "gflow-fuse" in second["phases"]
    assert "is damaged" in str(second["stderr"])


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path / "file" / "cache"))
    cache.write("programs", "x", b"data")
    cache.write("programs", "x", b"data")
    assert cache.read("programs", "x") is None
    assert len([r for r in caplog.records if "nothing is cached" in r.message]) == 1


@pytest.mark.parametrize("data", [b"", b"x" * 500, b"gflow cache 1\n"])
def test_files_that_are_no_entries(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    cache.write("objects", "a", b"code")
    (tmp_path / "objects" / "a").write_bytes(data)
    assert cache.read("objects", "a") is None
    assert not (tmp_path / "objects" / "a").exists()


def test_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    assert cache.read("programs", "a") is None
    cache.write("programs", "a", b"one")
    cache.write("programs", "a", b"two")
    assert cache.read("programs", "a") == b"two"
    monkeypatch.setenv("GFLOW_CACHE_SIZE", "3000")
    for n in range(10):
        cache.write("objects", str(n), bytes(1000))
        os.utime(tmp_path / "objects" / str(n), (n, n))
    left = {p.name for p in (tmp_path / "objects").iterdir()}
    assert len(left) <= 3
    assert "9" in left
    assert cache.key("a", "b") != cache.key("ab", "")
    monkeypatch.setenv("GFLOW_CACHE", "off")
    assert cache.directory() is None
    assert cache.read("objects", "9") is None


class Net(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2))
        self.table = torch.arange(5.0)
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), 0.01))
        self.config.enable_multi_tensor_update(True)

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean() + (torch.tensor([1.0, 3.0, 2.0]) * 2).sum()
        loss.backward()
        return loss


def program() -> tuple[Program, Net, Tensor]:
    graph = Net()
    x = torch.randn(2, 3, 8, 8)
    graph(x)
    graph(x)
    executable = graph._latest().compiled.run
    assert isinstance(executable, Executable)
    return executable.program, graph, x


def test_programs_as_bytes() -> None:
    before, _, _ = program()
    data = program_io.to_bytes(before)
    assert program_io.from_bytes(data) == before
    for cut in (0, 4, 8, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(program_io.ProgramError):
            program_io.from_bytes(data[:cut])
    with pytest.raises(program_io.ProgramError):
        program_io.from_bytes(data + b"more")


@needs_objects
def test_machine_code_without_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object that LLVM made, loaded by ours, computes the same."""
    found, graph, x = program()
    engine = llvm.engine_of(found.kernels, found.declarations, processor.limit(), dump=True)
    engine.raw_lookup("gflow_addresses")
    loaded = objects.load_object(llvm.object_of(engine), llvm.symbol_address)
    assert set(found.kernels) <= set(loaded.symbols)
    ours = {(processor.limit(), name): loaded.symbols[name] for name in found.kernels}
    monkeypatch.setattr(jit, "_addresses", {**jit._addresses, **ours})
    again = Executable(found)
    plan = graph._latest()
    arguments = [x if t is None else t.clone() for t in plan.arguments]
    theirs = [t.clone() for t in arguments]
    for got, want in zip(again(arguments), plan.compiled.run(theirs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@needs_objects
def test_compilation_keeps_nothing_of_mlir_and_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of MLIR and engines of LLVM take megabytes; a first call frees them, and keeps machine code only."""
    monkeypatch.setenv("GFLOW_CACHE", "0")
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.setattr(jit, "_engines", [])
    forget_contexts()
    llvm.release_contexts()
    gc.collect()
    contexts, loaded = ir.Context._get_live_count(), len(jit._loaded)
    program()
    assert ir.Context._get_live_count() <= contexts
    assert len(jit._loaded) > loaded
    assert not jit._engines


@needs_objects
@pytest.mark.parametrize("cached", [False, True])
def test_code_that_cannot_be_loaded_runs_in_the_engine(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that the engine stays, and speaks of the cache only where there is one."""
    monkeypatch.setenv("GFLOW_CACHE", str(int(cached)))
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.setattr(jit, "_engines", [])

    def fail(code: bytes, address: object) -> None:
        raise objects.ObjectError("no such section")

    monkeypatch.setattr(jit, "load_object", fail)
    program()
    assert jit._engines
    logged = "\n".join(r.getMessage() for r in caplog.records if "LLVM's engine" in r.getMessage())
    assert "no such section" in logged
    assert ("not cached" in logged) == cached


@needs_objects
def test_kernels_that_were_compiled_apart_are_found_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race, or another program, has compiled some of a program's kernels; the next process compiles none."""
    found, _, _ = program()
    one = dict([*found.kernels.items()][:1])
    assert len(found.kernels) > 1
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path))
    for kernels in (one, found.kernels):
        monkeypatch.setattr(jit, "_addresses", {})
        monkeypatch.setattr(jit, "_stored_in", {})
        jit.compile_kernels(one, found.declarations)
        jit.compile_kernels(kernels, found.declarations)
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.delattr(llvm, "engine_of")
    assert set(jit.compile_kernels(found.kernels, found.declarations)) == set(found.kernels)
    part = next(p for p in entries(tmp_path) if p.stat().st_size > 2000)
    part.unlink()
    monkeypatch.setattr(jit, "_addresses", {})
    with pytest.raises(AttributeError, match="engine_of"):
        jit.compile_kernels(found.kernels, found.declarations)


@needs_objects
def test_damaged_objects_are_refused() -> None:
    found, _, _ = program()
    engine = llvm.engine_of(found.kernels, found.declarations, processor.limit(), dump=True)
    engine.raw_lookup("gflow_addresses")
    data = llvm.object_of(engine)
    for cut in (0, 3, 63, 64, 200, len(data) // 2, len(data) - 10):
        with pytest.raises(objects.ObjectError):
            objects.load_object(data[:cut], llvm.symbol_address)
    with pytest.raises(objects.ObjectError, match="not an x86-64 object"):
        objects.load_object(b"\x7fELF" + bytes(100), llvm.symbol_address)
    with pytest.raises(objects.ObjectError, match="which is not there"):
        objects.load_object(data, lambda name: None)


def test_machine_code_needs_no_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def dump_to_object_file(self, path: str) -> None:
            Path(path).write_bytes(b"code")

    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert llvm.object_of(Engine()) == b"code"  # type: ignore[arg-type]
