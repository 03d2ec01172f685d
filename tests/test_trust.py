"""What is loaded is trusted only where it may be: owners, keys, and programs that are checked whole."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fuzz_artifacts
import pytest
import torch
from launched import command
from torch import Tensor, nn

import gflow as flow
from gflow.dialects.extents import Extent
from gflow.dialects.program import (
    Argument,
    AtenStep,
    KernelGroup,
    KernelStep,
    Place,
    Program,
    Result,
    TensorRef,
    environment,
)
from gflow.dialects.program.form import ProgramError, check_value, decode, encode, seal
from gflow.dialects.types import TensorType
from gflow.runtime import numbers
from gflow.runtime.cpu import objects
from gflow.runtime.stored import atomic, bundle, cache, loaded_graph, program_io, trust
from gflow.runtime.stored.program_check import check_program

needs_posix = pytest.mark.skipif(os.name != "posix", reason="modes and owners")
KEY = b"sixteen bytes or more"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is turned on, and a key apart from it."""
    monkeypatch.setenv("GFLOW_CACHE", "1")
    monkeypatch.setenv("GFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GFLOW_KEY_FILE", str(tmp_path / "keys" / "key"))
    monkeypatch.delenv("GFLOW_CACHE_SIZE", raising=False)
    cache._say_once.cache_clear()
    cache._complained.clear()
    return tmp_path / "cache"


# -- owners and keys


@needs_posix
def test_the_key_is_the_users_own(folder: Path) -> None:
    cache.write("programs", "a", b"data")
    key = trust.key_file()
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert (folder / "programs" / "a").stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    assert cache.read("programs", "a") == b"data"
    assert not list(key.parent.glob(".*"))
    key.write_bytes(os.urandom(32))  # another user's entry: of another key
    assert cache.read("programs", "a") is None
    assert not (folder / "programs" / "a").exists()


def test_processes_agree_on_a_key(folder: Path, tmp_path: Path) -> None:
    """All of those that make one at the same time get the same."""
    script = tmp_path / "key.py"
    script.write_text("from gflow.runtime.stored import trust; print(trust.own_key().hex())")
    running = [subprocess.Popen(command(str(script)), stdout=subprocess.PIPE) for _ in range(4)]
    assert {process.communicate()[0] for process in running} == {
        b"%s\n" % trust.own_key().hex().encode()
    }


def test_an_entry_stands_for_its_name(folder: Path) -> None:
    cache.write("programs", "a", b"data")
    (folder / "programs" / "a").rename(folder / "programs" / "b")
    assert cache.read("programs", "b") is None


@needs_posix
@pytest.mark.parametrize(
    "what", ["folder", "kind", "file", "link", "folder is a link", "pipe", "above", "key"]
)
def test_what_others_may_write_is_not_used(
    what: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write("programs", "a", b"data")
    entry = folder / "programs" / "a"
    if what == "folder":
        folder.chmod(0o770)
    elif what == "kind":
        entry.parent.chmod(0o777)
    elif what == "file":
        entry.chmod(0o666)
    elif what == "link":
        entry.rename(folder / "elsewhere")
        entry.symlink_to(folder / "elsewhere")
    elif what == "folder is a link":
        entry.parent.rename(folder / "elsewhere")
        entry.parent.symlink_to(folder / "elsewhere")
    elif what == "pipe":
        entry.unlink()
        os.mkfifo(entry)
    elif what == "above":
        folder.parent.chmod(0o777)
    else:
        trust.key_file().chmod(0o644)
    try:
        assert cache.read("programs", "a") is None
        assert cache.read("programs", "a") is None
        if what not in ("file", "link", "pipe"):
            cache.write("programs", "new", b"data")
            assert not (folder / "programs" / "new").exists()
    finally:
        folder.parent.chmod(0o755)
    told = [r for r in caplog.records if "is not used" in r.message]
    assert len(told) == (0 if what == "link" else 1)


@needs_posix
def test_sticky_folders_above_are_fine(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    try:
        cache.write("programs", "a", b"data")
        assert cache.read("programs", "a") == b"data"
    finally:
        folder.parent.chmod(0o755)


@needs_posix
def test_files_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("programs", "a", b"data")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(trust.TrustError, match=f"belongs to user {user}"):
        trust.check_folder(folder)
    with pytest.raises(trust.TrustError, match=f"belongs to user {user}"):
        trust.read_file(folder / "programs" / "a")


# -- switches and disks


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1G", "9" * 30, "²"])
def test_a_size_that_is_none(
    value: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GFLOW_CACHE_SIZE", value)
    for _ in range(2):
        cache.write("programs", "a", b"data")
    assert cache.read("programs", "a") == b"data"
    assert [r.message for r in caplog.records if "no number of bytes" in r.message] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GFLOW_CACHE", "/tmp/cache"),
        ("GFLOW_CACHE", "2"),
        ("GFLOW_CACHE_DIR", "cache"),
        ("GFLOW_CACHE_DIR", "./a"),
    ],
)
def test_switches_that_say_nothing_sensible(
    name: str,
    value: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    for _ in range(2):
        assert cache.directory() is None
        cache.write("programs", "a", b"data")
    assert len(caplog.records) == 1
    assert repr(value) in caplog.text
    assert "nothing is cached" in caplog.text


@pytest.mark.parametrize("value", ["yes please", "full of errors", "-3"])
@pytest.mark.parametrize("name", ["GFLOW_PROGRESS", "GFLOW_CUDA_SYNC", "GFLOW_TRACEBACKS"])
def test_values_of_switches_that_are_none(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    environment._say_once.cache_clear()
    for _ in range(2):
        if name == "GFLOW_TRACEBACKS":
            assert environment.chosen(name, "full") == ""
        else:
            assert environment.switch(name, name == "GFLOW_PROGRESS") == (name == "GFLOW_PROGRESS")
    assert [r.message for r in caplog.records] == [caplog.records[0].message]
    assert f"{name}={value!r}" in caplog.text


@pytest.mark.parametrize("given", ["key", "./keys/key", ".", "folder"])
def test_paths_of_keys_that_are_none(
    given: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative one would be another key in another directory."""
    cache.write("programs", "a", b"data")
    path = str(folder / "programs") if given == "folder" else given
    monkeypatch.setenv("GFLOW_KEY_FILE", path)
    for _ in range(2):
        assert cache.read("programs", "a") is None
        cache.write("programs", "b", b"data")
    said = f"{path} is not a file" if given == "folder" else "is no absolute path"
    assert len(caplog.records) == 2
    assert all(said in r.message for r in caplog.records)
    assert not (folder / "programs" / "b").exists()


@needs_posix
def test_processes_that_write_one_entry(folder: Path) -> None:
    """Some are killed while they write, and the entry is cut off by others: a read gives one of them whole, or none."""
    bodies = [bytes([n]) * 50_000 * (n + 1) for n in range(3)]
    cache.write("programs", "a", bodies[0])
    writers = []
    for body in bodies:
        pid = os.fork()
        if not pid:
            while True:
                cache.write("programs", "a", body)
        writers.append(pid)
    found = set()
    try:
        for n in range(400):
            body = cache.read("programs", "a")
            assert body is None or body in bodies
            found.add(body)
            if n == 200:
                os.kill(writers[0], signal.SIGKILL)
            if n % 10 == 0:
                with contextlib.suppress(OSError):
                    os.truncate(folder / "programs" / "a", n * 100)
    finally:
        for pid in writers:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert len(found - {None}) > 1


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved = tmp_path / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", _full)
        cache.write("programs", "a", b"data")
        cache.write("programs", "b", b"data")
        assert caplog.text.count(f"nothing is cached in {folder}: No space left on device") == 1
    assert not list((folder / "programs").iterdir())
    for there in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic, "sync", _full)
            said = "the one that was there is unchanged" if there else "nothing is there"
            with pytest.raises(
                OSError, match=f"{saved} was not saved, {said}: No space left on device"
            ):
                flow.save({"a": torch.ones(3)}, saved)
        assert saved.exists() == there
        assert not list(tmp_path.glob(".state*"))
        flow.save({"a": torch.zeros(3)}, saved)
    assert flow.load(saved)["a"].equal(torch.zeros(3))


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Within, no file of more than 4 KiB can be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = (
        True  # Python would leave parts of files, which no later import can read
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = bytecode
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_for_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes by itself, and has errors of its own."""
    with small_files(), pytest.raises(OSError, match="was not saved, nothing is there"):
        flow.save({"a": torch.ones(100_000)}, tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not objects.supported(), reason="no files in memory")
def test_a_process_that_may_write_no_files(folder: Path) -> None:
    """LLVM would end the process where it cannot write an object file."""
    with small_files():
        x = torch.randn(3)
        graph = flow.nn.Graph.trace(lambda x: (x * 7.25).sin().cumsum(0) + 3)
        torch.testing.assert_close(graph(x), (x * 7.25).sin().cumsum(0) + 3)
        with pytest.raises(OSError, match=r"ulimit -f|not saved"):
            flow.save(graph, folder.parent / "saved")
    assert not (folder.parent / "saved").exists()


def test_an_interrupt_says_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def interrupted() -> None:
        with atomic.new_file(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert f"{target} was not saved, the one that was there is unchanged" in caplog.text


# -- memory


@pytest.mark.skipif(not objects.supported(), reason="no loader for this machine")
def test_nothing_is_writable_and_executable(tmp_path: Path) -> None:
    """Neither what LLVM has compiled nor what was loaded from the cache."""
    script = """
import torch, gflow as flow
class G(flow.nn.Graph):
    def build(self, x):
        return (x @ x).exp().sum(-1)
G()(torch.ones(4, 4))
print([line for line in open("/proc/self/maps") if "wx" in line.split()[1]])
"""
    environment = {
        **os.environ,
        "GFLOW_CACHE": "1",
        "GFLOW_CACHE_DIR": str(tmp_path / "cache"),
        "GFLOW_KEY_FILE": str(tmp_path / "keys" / "key"),
    }
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "[]\n"
    assert list((tmp_path / "cache" / "objects").iterdir())


# -- programs


class Net(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.add_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))

    def build(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.model(x)
        loss = y.square().mean() + torch.tensor([1.0, 3.0, 2.0]).mul(2).sum()
        loss.backward()
        return loss, y.sort(-1).values


@pytest.fixture(scope="module")
def program() -> Program:
    graph = Net()
    graph(torch.ones(5, 4))
    found: Program = graph._latest().compiled.program
    return found


def changed(program: Program, **fields: Any) -> Program:
    """The program with other fields and a seal that fits."""
    other = replace(program, **fields)
    return replace(other, seal=seal(other))


def test_whole_programs_pass(program: Program) -> None:
    assert program_io.from_bytes(program_io.to_bytes(program)) == program
    assert program_io.from_bytes(program_io.to_bytes(changed(program))) == program


def test_a_seal_that_does_not_fit(program: Program) -> None:
    with pytest.raises(ProgramError, match="its seal does not fit"):
        check_program(replace(program, arena_bytes=program.arena_bytes + 64))


def _steps(program: Program, kind: type, **fields: Any) -> list[Any]:
    """The steps, the first of a kind changed."""
    steps = list(program.steps)
    n = next(n for n, s in enumerate(steps) if isinstance(s, kind))
    steps[n] = replace(steps[n], **fields)
    return steps


def _first(program: Program, kind: type) -> Any:
    return next(s for s in program.steps if isinstance(s, kind))


def _input(program: Program, place: Any, strides: Any) -> list[Any]:
    """The steps, the first ATen call reading a tensor from somewhere else."""
    return _steps(program, AtenStep, inputs=(TensorRef(place, X.type, strides),))


def _output(program: Program, strides: Any) -> list[Any]:
    """The steps, the first ATen call writing to memory of other strides."""
    outputs = _first(program, AtenStep).outputs
    return _steps(program, AtenStep, outputs=(replace(outputs[0], strides=strides), *outputs[1:]))


_LARGE = TensorType((1 << 30,), "f32")
X = Argument("input", "x", TensorType((5, 4), "f32"), (4, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (lambda p: {"arena_bytes": 0}, "of arena 0, which has 0"),
        (lambda p: {"arena_bytes": -1}, "its arena has -1 bytes"),
        (lambda p: {"arena_bytes": 1 << 60}, "its arena has"),
        (lambda p: {"arena_bytes": True}, "arena_bytes is True; int was expected"),
        (lambda p: {"max_threads": 0}, "it is for 0 threads"),
        (lambda p: {"target": "tpu"}, "its target is 'tpu'"),
        (lambda p: {"target": "cuda:90"}, "it is for a GPU and has code for the CPU"),
        (lambda p: {"arguments": p.arguments[:-1]}, "there is no arg|is argument"),
        (lambda p: {"arguments": [*p.arguments[:-1], "x"]}, "Argument was expected"),
        (lambda p: {"arguments": [replace(X, strides=(4,)), *p.arguments[1:]]}, "strides"),
        (lambda p: {"arguments": [replace(X, strides=(-4, 1)), *p.arguments[1:]]}, "strides"),
        (lambda p: {"arguments": [replace(X, type=TensorType((5, -4), "f32")), *p.arguments[1:]]}, "shape"),
        (lambda p: {"arguments": [replace(X, type=TensorType((5, 4), "os"))]}, "TensorType was expected"),
        (lambda p: {"arguments": [replace(X, type=TensorType((1 << 40, 1 << 40), "f32")), *p.arguments[1:]]}, "shape"),
        (lambda p: {"results": [Result("y", X.type, 99)]}, "is argument 99"),
        (lambda p: {"results": [Result("y", X.type, -1)]}, "is argument -1"),
        (lambda p: {"results": [Result("y", X.type, 0)] * 2}, "two results|its argument"),
        (
            lambda p: {"results": [replace(r, type=_LARGE) if r.alias is None else r for r in p.results]},
            "of which steps reach",
        ),
        (lambda p: {"steps": [*p.steps, 7]}, "was expected"),
        (lambda p: {"kernels": {}}, "there is no kernel"),
        (lambda p: {"kernels": {**p.kernels, "a": "func @b("}}, "is of something else"),
        (lambda p: {"kernels": {**p.kernels, "a": "@a(" + "(" * 5000}}, "nest more than"),
        (lambda p: {"steps": _steps(p, KernelStep, kernel="x")}, "there is no kernel 'x'"),
        (lambda p: {"steps": _steps(p, KernelStep, words=())}, "reads .* words, and gets 0"),
        (lambda p: {"steps": _steps(p, KernelStep, reach=())}, "addresses, and the reach of 0"),
        (lambda p: {"steps": _steps(p, KernelStep, parallel=1)}, "parallel is 1; bool"),
        (
            lambda p: {"steps": _steps(p, KernelStep, words=tuple(0 for _ in _first(p, KernelStep).words))},
            "is 0, read as !llvm.ptr",
        ),
        (
            lambda p: {"steps": [KernelGroup((), "nothing"), *p.steps]},
            "a group without members",
        ),
        (lambda p: {"steps": _steps(p, AtenStep, overload="os.system.default")}, "no such overload"),
        (lambda p: {"steps": _steps(p, AtenStep, overload="aten.from_file.default")}, "none of the overloads"),
        (lambda p: {"steps": _steps(p, AtenStep, overload="aten.add_.Tensor")}, "changes its arguments"),
        (lambda p: {"steps": _steps(p, AtenStep, args="[[], {}]")}, "needs 'self'"),
        (lambda p: {"steps": _steps(p, AtenStep, args="[[{\"t\": 9}], {}]")}, "operand 9 does not exist"),
        (lambda p: {"steps": _steps(p, AtenStep, args="[" * 3000)}, "is not JSON"),
        (lambda p: {"steps": _steps(p, AtenStep, args="[[{\"t\": 0}, \"a\"], {}]")}, "'a', no"),
        (lambda p: {"steps": _output(p, (0, 0))}, "elements of a result share memory"),
        (lambda p: {"steps": _input(p, Place("arena", 0, 1 << 40), (4, 1))}, "bytes"),
        (lambda p: {"steps": _input(p, Place("arena", 1, 0), (4, 1))}, "no arena 1"),
        (lambda p: {"steps": _input(p, Place("disk", 0, 0), (4, 1))}, "was expected"),  # type: ignore[arg-type]
        (lambda p: {"steps": _input(p, Place("arena", 0, 1), (4, 1))}, "at byte 1"),
        (lambda p: {"steps": _input(p, Place("arena", 0, 0), (Extent((1,)), 1))}, "was expected"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_programs_that_are_not_whole(program: Program, fields: Any, message: str) -> None:
    """Each with a seal and checksums that fit."""
    broken = replace(program, **fields(program))
    with pytest.raises(ProgramError, match=message):
        check_program(replace(broken, seal=seal(broken)) if _sealable(broken) else broken)
    if _sealable(broken):
        broken = replace(broken, seal=seal(broken))
        with pytest.raises(ProgramError):
            program_io.from_bytes(program_io.to_bytes(broken))


def _sealable(program: Program) -> bool:
    try:
        seal(program)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("space", ["arena", "arg", "result", "constant"])
def test_every_place_lies_in_its_memory(program: Program, space: str) -> None:
    """Moved beyond the end, before the beginning, to memory that there is none of: for each step."""
    moved = 0
    for n, step in enumerate(program.steps):
        text = json.dumps(encode(step))
        for place in {json.dumps(encode(p)) for p in _places(step) if p.space == space}:
            kind, _, index, offset = json.loads(place)
            for other in ((index, 1 << 40), (index, -64), (99, offset), (-1, offset)):
                steps = list(program.steps)
                steps[n] = decode(
                    json.loads(text.replace(place, json.dumps([kind, space, *other])))
                )
                with pytest.raises(ProgramError, match=f"step {n} "):
                    check_program(changed(program, steps=steps))
                moved += 1
    assert moved > 0 or not any(p.space == space for s in program.steps for p in _places(s))


def _places(step: Any) -> list[Place]:
    if isinstance(step, KernelGroup):
        return [p for member in step.members for p in _places(member)]
    if isinstance(step, AtenStep):
        refs = [*step.inputs, *(r for r in step.outputs if r is not None)]
        return [r.place for r in refs]
    return [w for w in step.words if isinstance(w, Place)]


def test_fields_are_what_their_dataclasses_declare() -> None:
    step = KernelStep("k", (1, Place("arena", 0, 0)), True, "op", reach=(4,))
    assert decode(encode(step)) == step
    check_value(step, KernelStep, "step")
    for n in range(1, 8):
        values = encode(step)
        del values[n]
        with pytest.raises(ProgramError, match="a KernelStep has 7 fields, found 6"):
            decode(values)
    with pytest.raises(ProgramError, match=r"step\.words\.1\.offset is 0\.5; int was expected"):
        check_value(replace(step, words=(1, Place("arena", 0, 0.5))), KernelStep, "step")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="there is no kind 'system'"):
        decode(["system", "ls"])


def test_bad_entries_are_compiled_anew_with_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class G(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return (x * 0.72519).exp() @ x  # code that no other test has loaded

    x = torch.randn(4, 4)
    wanted = G()(x)
    for kind in ("programs", "objects"):
        for path in (folder / kind).iterdir():
            cache.write(kind, path.name, b"signed, and nonsense")
    cache._complained.clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gflow"):
        again = G()
        assert again(x).equal(wanted)
    assert len([r for r in caplog.records if "compiled anew" in r.message]) == 1
    assert "codegen" in again.timings
    third = G()
    assert third(x).equal(wanted)
    assert "cache" in third.timings


# -- saved graphs


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    graph, path = Net(), tmp_path_factory.mktemp("signed") / "model"
    graph(torch.ones(5, 4))
    flow.save(graph, path, key=KEY)
    return path, [graph(torch.ones(5, 4))[0].clone() for _ in range(2)]


def test_signed_graphs(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    path, wanted = saved
    file = tmp_path / "key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    for key in (KEY, file, str(file), None):
        model = flow.load(path, key=key)
        assert [model(torch.ones(5, 4))[0] for _ in range(2)] == wanted
    with pytest.raises(bundle.ArtifactError, match="not signed with this key"):
        flow.load(path, key=KEY + b"!")
    with pytest.raises(ValueError, match="at least 16 bytes"):
        flow.load(path, key=b"short")
    flow.save(model, tmp_path / "unsigned")
    with pytest.raises(bundle.ArtifactError, match="is not signed; a key was given"):
        flow.load(tmp_path / "unsigned", key=KEY)
    flow.save(flow.load(path), tmp_path / "again", key=file)
    flow.load(tmp_path / "again", key=KEY)
    file.chmod(0o644)
    with pytest.raises(trust.TrustError, match="others may read"):
        flow.load(path, key=file)
    with pytest.raises(TypeError, match="key is for graphs"):
        flow.save({"a": torch.ones(1)}, tmp_path / "state", key=KEY)
    flow.save({"a": torch.ones(1)}, tmp_path / "state")
    with pytest.raises(
        flow.CheckpointError if hasattr(flow, "CheckpointError") else ValueError, match="refused"
    ):
        flow.load(tmp_path / "state", key=KEY)


def test_a_signature_covers_every_file(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    """With the checksums and the seal made anew."""
    path = tmp_path / "model"
    shutil.copytree(saved[0], path)
    program = path / "programs" / "0.json"
    data = program.read_bytes().replace(b" ", b"  ", 1)
    program.write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    entry = manifest["files"]["programs/0.json"]
    entry["size"], entry["sha256"] = len(data), bundle._file_digest(program)
    manifest["seal"] = bundle.seal(manifest)
    manifest["sha256"] = bundle._checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    flow.load(path)
    with pytest.raises(bundle.ArtifactError, match="not signed with this key, or was changed"):
        flow.load(path, key=KEY)


def test_without_stored_code(
    saved: tuple[Path, list[Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled from the IR: with kernels, machine code and steps that are nonsense, the results are right."""
    path = tmp_path / "model"
    shutil.copytree(saved[0], path)
    read = loaded_graph.read_program

    def poisoned(*args: Any) -> Program:
        found = read(*args)
        return replace(found, kernels=dict.fromkeys(found.kernels, "nonsense"), steps=[])

    monkeypatch.setattr(loaded_graph, "read_program", poisoned)
    monkeypatch.setattr(
        loaded_graph.jit, "adopt_object", lambda *a: pytest.fail("stored code was taken")
    )
    model = flow.load(path, native=False)
    assert [model(torch.ones(5, 4))[0] for _ in range(2)] == saved[1]


def test_ir_that_is_not_sound(
    saved: tuple[Path, list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = loaded_graph.read_program
    for old, new in (
        ("gflow.arena_size = ", "gflow.arena_size = -"),
        ('"gflow.', '"gflux.'),
        ("tensor<", "tensor<" * 3000),
        ("module", "nodule"),
    ):
        monkeypatch.setattr(
            loaded_graph,
            "read_program",
            lambda *a, o=old, n=new: replace(read(*a), ir=read(*a).ir.replace(o, n)),
        )
        with pytest.raises(bundle.ArtifactError, match="cannot be compiled"):
            flow.load(saved[0], native=False)


@needs_posix
def test_graphs_that_others_may_write_to(
    saved: tuple[Path, list[Tensor]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model"
    shutil.copytree(saved[0], path)
    flow.load(path)
    assert not caplog.records
    (path / "kernels").chmod(0o777)
    flow.load(path, key=KEY)
    assert not caplog.records
    flow.load(path)
    assert "others may write to" in caplog.text


def test_guards_end() -> None:
    """No expression in a manifest computes for ever."""
    for call, args in (
        ("operator.pow", (10, 10**9)),
        ("math.factorial", (10**7,)),
        ("builtins.pow", (3, 1 << 40)),
    ):
        expr = {"call": call, "args": [{"value": a} for a in args]}
        assert not numbers.holds({"expr": expr, "expected": 1}, [])
    assert numbers.holds(
        {"expr": {"call": "operator.pow", "args": [{"number": 0}, {"value": 2}]}, "expected": 9.0},
        [3.0],
    )


# -- mutants


def test_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of `python -m tests.fuzz_artifacts`, in a process without threads."""
    monkeypatch.setenv("GFLOW_FUZZ_CUDA", "0")
    options = ["--count", "24", "--seed", "3", "--half-resealed"]
    root = Path(fuzz_artifacts.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_artifacts", *options],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = Counter(
        {
            kind: int(n)
            for n, kind in (part.split() for part in done.stdout.splitlines()[-1].split(", "))
        }
    )
    assert counts["refused"] > 14


def test_mutations_depend_on_the_seed_alone() -> None:
    import random

    tree = {"a": [1, 2, {"b": "c", "d": [1.5, None, True]}], "e": ["", 1, 2]}
    made = [
        [
            repr(fuzz_artifacts.mutate(tree, random.Random(n), fuzz_artifacts._nothing))
            for n in range(100)
        ]
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert sum(m != repr(tree) for m in made[0]) > 90
    assert io.StringIO(repr(tree)).read() == repr(tree)
