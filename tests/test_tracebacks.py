"""Tracebacks and warnings show the author's lines: frames of gflow and PyTorch are left out, but for one."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn
from gflow.tracing.context import location
from gflow.tracing.context.location import is_installed, is_user_code


class Wrong(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)  # wrong


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x)  # words


class ByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())  # by-value


class Losing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(x, x[:, 0])  # losing


class Copying(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x)  # copying


class Predict(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


def lines_of(*markers: str) -> list[int]:
    lines = Path(__file__).read_text().splitlines()
    return [next(i for i, x in enumerate(lines, 1) if x.endswith(f"# {m}")) for m in markers]


def frames(error: BaseException) -> list[str]:
    """Names of functions, from the call on."""
    return [f.name for f in traceback.extract_tb(error.__traceback__)][1:]


def raised(graph: Any, *args: Any) -> BaseException:
    with pytest.raises(Exception, match=r".") as caught:
        graph(*args)
    return caught.value


def test_a_shape_error() -> None:
    error = raised(Predict(nn.Sequential(nn.ReLU(), Wrong())), torch.ones(1, 3))
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, flow.GraphError)
    assert frames(error) == ["__call__", "build", "forward"]
    (line,) = lines_of("wrong")
    note = f"{__file__}:{line}: raised in build() while the graph was traced, in module 'model.1' (Wrong)"
    assert note in "".join(traceback.format_exception(error))
    linear = raised(Predict(nn.Sequential(nn.Linear(4, 4))), torch.ones(1, 3))
    assert frames(linear) == ["__call__", "build"]
    assert "in module 'model.0' (Linear)" in "".join(traceback.format_exception(linear))


def test_an_index_beyond_at_run_time() -> None:
    graph = Predict(Words())
    graph(torch.tensor([0]))
    error = raised(graph, torch.tensor([5]))
    assert isinstance(error, IndexError)
    assert frames(error) == ["__call__"]
    (line,) = lines_of("words")
    assert f"at {__file__}:{line} (forward of model.embed)" in str(error)


def test_errors_of_gflow() -> None:
    error = raised(Predict(ByValue()), torch.ones(1))
    assert frames(error) == ["__call__", "build", "forward"]
    assert frames(raised(Predict(nn.ReLU()), {1, 2})) == ["__call__"]
    cause: BaseException | None = error.__cause__ or error.__context__
    while cause is not None:
        assert not [f for f in frames(cause) if f == "run_build"]
        cause = cause.__cause__ or cause.__context__


def test_all_frames_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOW_TRACEBACKS", "full")
    error = raised(Predict(Wrong()), torch.ones(1, 3))
    assert "run_build" in frames(error)


def test_errors_inside_of_gflow_keep_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gflow.execution.executor.compile_trace", int)
    assert "compile_plan" in frames(raised(Predict(nn.ReLU()), torch.ones(1)))


def test_warnings_of_pytorch_are_at_the_authors_line() -> None:
    with pytest.warns(UserWarning, match="Using a target size") as seen:
        Predict(Losing())(torch.ones(3, 3))
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, *lines_of("losing"))]
    with pytest.warns(UserWarning, match="copy construct") as seen:  # of PyTorch's C++ code
        Predict(Copying())(torch.ones(3))
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, *lines_of("copying"))]


def test_a_copy_of_a_librarys_file_is_the_authors_code(tmp_path: Path) -> None:
    """Code objects that read alike are equal, whatever files they stand in."""
    source = "def forward(self, x):\n    return x + x[:, :2]\n"
    names: list[dict[str, Any]] = [{}, {}]
    for own, file in zip(
        names, (Path(torch.__file__).parent / "copied.py", tmp_path / "copied.py")
    ):
        exec(compile(source, str(file), "exec"), own)
    library, mine = (n["forward"].__code__ for n in names)
    assert library == mine
    assert not is_user_code(library)
    assert is_user_code(mine)
    assert is_installed(library.co_filename) != is_installed(mine.co_filename)


def test_packages_whose_files_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code belongs to a package by where its files lie, as an installation may be a folder of links."""
    real, linked = tmp_path / "store" / "some_package", tmp_path / "view" / "some_package"
    real.mkdir(parents=True)
    linked.mkdir(parents=True)
    (real / "__init__.py").write_text("")
    (linked / "__init__.py").symlink_to(real / "__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path / "view"))
    assert location._folder("some_package") == real


def test_what_pytorch_refuses_is_a_cause_without_its_frames() -> None:
    graph = nn.Graph.trace(lambda x: torch.equal(torch.rand(3), torch.rand(3)) * x)
    with pytest.raises(flow.errors.GraphTraceError, match="asks for the value") as caught:
        graph(torch.ones(3))
    cause = caught.value.__cause__ or caught.value.__context__
    assert cause is not None
    assert traceback.extract_tb(cause.__traceback__) == []
