"""`print(graph)`, `debug()` and the progress bar, in the form that OneFlow's users know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gflow as flow
from examples.mobilenet_v2 import MobileNetV2
from gflow.nn.graph import GraphModule
from gflow.report.progress import ProgressLines


class GraphMobileNetV2(flow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = nn.CrossEntropyLoss()
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=1e-3))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        return loss


def _lines(graph: flow.nn.Graph) -> list[str]:
    """The listing with the graph's number as 0."""
    return re.sub(r"(GraphMobileNetV2|Small|Listed|Twice)_\d+", r"\1_0", repr(graph)).splitlines()


def test_listing_before_the_first_call() -> None:
    """The lines of the tutorial's listing of MobileNetV2, on the CPU and with PyTorch's names."""
    lines = _lines(GraphMobileNetV2(MobileNetV2(10)))
    assert lines[:8] == [
        "(GRAPH:GraphMobileNetV2_0:GraphMobileNetV2): (",
        "  (CONFIG:config:GraphConfig(training=True, ))",
        "  (MODULE:model:MobileNetV2()): (",
        "    (MODULE:model.features:Sequential()): (",
        "      (MODULE:model.features.0:ConvBNReLU()): (",
        "        (MODULE:model.features.0.0:Conv2d(3, 32, kernel_size=(3, 3), stride=(2, 2), "
        "padding=(1, 1), bias=False)): (",
        "          (PARAMETER:model.features.0.0.weight:tensor(..., size=(32, 3, 3, 3), "
        "dtype=torch.float32, requires_grad=True)): ()",
        "        )",
    ]
    assert "          (BUFFER:model.features.0.1.running_mean:tensor(..., size=(32,), " in "".join(
        lines
    )
    assert lines[-10:] == [
        "    (MODULE:model.classifier:Sequential()): (",
        "      (MODULE:model.classifier.0:Dropout(p=0.2, inplace=False)): ()",
        "      (MODULE:model.classifier.1:Linear(in_features=1280, out_features=10, bias=True)): (",
        "        (PARAMETER:model.classifier.1.weight:tensor(..., size=(10, 1280), "
        "dtype=torch.float32, requires_grad=True)): ()",
        "        (PARAMETER:model.classifier.1.bias:tensor(..., size=(10,), dtype=torch.float32, "
        "requires_grad=True)): ()",
        "      )",
        "    )",
        "  )",
        "  (MODULE:loss_fn:CrossEntropyLoss()): ()",
        ")",
    ]


def test_listing_after_the_first_call() -> None:
    """The tutorial's second listing, as far as it goes: it ends after the first convolution."""
    model = MobileNetV2(10)
    model.features = model.features[:1]
    model.classifier = nn.Linear(32, 10)
    graph = GraphMobileNetV2(model)
    graph(torch.randn(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64))
    everything = _lines(graph)
    lines = [line for line in everything if "(OPERATOR" not in line]
    x = "size=(8, 3, 32, 32), dtype=torch.float32))"
    assert lines[:15] == [
        "(GRAPH:GraphMobileNetV2_0:GraphMobileNetV2): (",
        "  (CONFIG:config:GraphConfig(training=True, ))",
        f"  (INPUT:_GraphMobileNetV2_0-input_0:tensor(..., {x}",
        "  (INPUT:_GraphMobileNetV2_0-input_1:tensor(..., size=(8,), dtype=torch.int64))",
        "  (MODULE:model:MobileNetV2()): (",
        f"    (INPUT:_model-input_0:tensor(..., is_lazy='True', {x}",
        "    (MODULE:model.features:Sequential()): (",
        f"      (INPUT:_model.features-input_0:tensor(..., is_lazy='True', {x}",
        "      (MODULE:model.features.0:ConvBNReLU()): (",
        f"        (INPUT:_model.features.0-input_0:tensor(..., is_lazy='True', {x}",
        "        (MODULE:model.features.0.0:Conv2d(3, 32, kernel_size=(3, 3), stride=(2, 2), "
        "padding=(1, 1), bias=False)): (",
        f"          (INPUT:_model.features.0.0-input_0:tensor(..., is_lazy='True', {x}",
        "          (PARAMETER:model.features.0.0.weight:tensor(..., size=(32, 3, 3, 3), "
        "dtype=torch.float32, requires_grad=True)): ()",
        "          (OUTPUT:_model.features.0.0-output_0:tensor(..., is_lazy='True', "
        "size=(8, 32, 16, 16), dtype=torch.float32))",
        "        )",
    ]
    assert lines[-2:] == [
        "  (OUTPUT:_GraphMobileNetV2_0-output_0:tensor(..., is_lazy='True', size=(), "
        "dtype=torch.float32))",
        ")",
    ]
    at = everything.index(lines[12])
    inside = [line.strip().partition("-")[0] for line in everything[at : at + 5]]
    assert inside[
        1:
    ] == [  # as in the tutorial: its ops, those of its backward, its weight's update
        "(OPERATOR: model.features.0.0",
        "(OPERATOR: backward:model.features.0.0",
        "(OPERATOR: optimizer",
        "(OUTPUT:_model.features.0.0",
    ]
    assert everything[at + 1] == (
        "          (OPERATOR: model.features.0.0-convolution-0(_GraphMobileNetV2_0-input_0:"
        "(size=(8, 3, 32, 32), dtype=torch.float32), model.features.0.0.weight:(size=(32, 3, 3, 3), "
        "dtype=torch.float32), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1) -> "
        "(model.features.0.0-convolution-0/out_0:(size=(8, 32, 16, 16), dtype=torch.float32)))"
    )
    assert not any("location" in line for line in everything)


def test_listing_of_ops_and_where_they_come_from() -> None:
    class Listed(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = nn.Linear(2, 2), nn.ReLU()
            self.act_too = self.act
            self.add_optimizer(torch.optim.Adam(self.fc.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = (self.act(self.fc(x)) + self.act_too(x)).sum()
            loss.backward()
            return loss

    graph = Listed()
    graph.config.enable_dynamic_shapes(False)
    graph.debug(0, op_repr_with_py_stack=True, max_py_stack_depth=1)
    graph(torch.ones(3, 2))
    indents = {}
    for line in _lines(graph):
        found = re.match(r"( *)\(OPERATOR: ([\w.:-]+)-\d+\(.*\) -> \(.*\)(, location=.*)\)$", line)
        if found:
            indents.setdefault(found[2], []).append(len(found[1]))
            here = "" if "optimizer" in found[2] or found[2] == "ones_like" else "'build' "
            if "backward" not in found[2]:
                assert re.fullmatch(
                    rf", location=\(Python Stack\[-1\]: .*{here}at '.*printing.py': line \d+.*\)",
                    found[3],
                )
    assert indents["fc-addmm"] == [4]
    assert indents["act-relu"] == [4, 4]  # both calls, listed once
    assert indents["add"] == indents["sum"] == [2]  # the graph's own
    assert indents["backward:fc-mm"] == [4]
    assert 4 in indents["optimizer-addcmul"]  # of one parameter: in its module
    lines = len(_lines(graph))
    graph.debug(-1)
    graph(torch.ones(4, 2))
    assert "location" not in repr(graph)
    assert len(_lines(graph)) == lines


def test_listing_of_switches_shared_modules_and_lists() -> None:
    class Twice(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.layers = [self.first, nn.ReLU()]

        def build(self, x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, None]:
            return self.layers[1](self.first(x["a"])), None

    graph = Twice()
    graph.config.enable_amp(dtype=torch.bfloat16)
    graph({"a": torch.ones(3, 2)})
    lines = _lines(graph)
    assert lines[1] == "  (CONFIG:config:GraphConfig(training=False, amp='bf16', ))"
    assert "  (MODULE:first:Linear(in_features=2, out_features=2, bias=True)): (" in lines
    assert "  (MODULE:layers.0:Linear(in_features=2, out_features=2, bias=True)): (" in lines
    assert sum(":tensor(..., is_lazy='True', size=(3, 2)" in line for line in lines) == 7


class Small(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)))
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).sum()
        loss.backward()
        return loss


@pytest.fixture
def built(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Builds a graph after `prepare` and gives the lines that are printed."""

    def run(prepare: Callable[[Small], object]) -> list[str]:
        graph = Small()
        prepare(graph)
        graph(torch.ones(3, 2))
        first = capsys.readouterr()
        assert not first.err
        graph(torch.ones(3, 2))
        assert capsys.readouterr().out == ""  # built only once
        return re.sub(r"Small_\d+", "Small_0", first.out).splitlines()

    return run


def test_debug_by_level(built: Callable[..., list[str]]) -> None:
    assert built(lambda g: None) == []
    quiet = built(lambda g: (g.debug(3), g.debug(-1)))
    assert quiet == []
    level = [built(lambda g, n=n: g.debug(n)) for n in range(4)]
    for lines in level:  # the tutorial's lines
        said = [
            line for line in lines if re.fullmatch(r"\(GRAPH:Small_0:Small\) (start|end) .*", line)
        ]
        assert [line.partition(") ")[2] for line in said] == [
            "start building graph.",
            "end building graph.",
            "start compiling plan and init graph runtime.",
            "end compiling plan and init graph rumtime.",
        ]
        assert lines[0] == "(GRAPH:Small_0:Small) start building graph."
        assert re.fullmatch(
            r".*compiling plan and init graph runtime Done! Cost time: .*s\.", lines[-1]
        )
        assert [w for line in lines for w in re.findall(r"^\(GRAPH.*\)   (\w+): \d+\.\d\ds$", line)] == [
            "lower", "passes", "codegen", "JIT",
        ]  # fmt: skip
    assert not any("MODULE" in line for line in level[0])
    tags = [re.match(r" *\((\w+)", line).group(1) for line in level[1] if line.startswith("  ")]  # type: ignore[union-attr]
    linear = ["MODULE", "INPUT", "PARAMETER", "PARAMETER", "OUTPUT"]
    relu = ["MODULE", "INPUT", "OUTPUT"]
    expected = ["INPUT", "MODULE", "INPUT", *linear, "MODULE", "INPUT", *relu, *linear]
    assert tags == [*expected, "OUTPUT", "OUTPUT", "OUTPUT"]
    ops = [line.strip() for line in level[2] if "OPERATOR" in line]
    assert any(
        line.startswith("(OPERATOR: model.1.0-relu-0(model.0-addmm-0/out_0:(size=(3, 4), dtype=")
        for line in ops
    )
    assert any(line.startswith("(OPERATOR: backward:model.1.1-mm-") for line in ops)
    assert any(line.startswith("(OPERATOR: optimizer-") for line in ops)
    assert not any("location" in line for line in ops)
    assert all(line.endswith(", device=cpu)") for line in ops)
    deep = [line for line in level[3] if "OPERATOR" in line]
    assert len(deep) == len(ops)
    assert all(re.search(r"location=\(.*test_printing\.py': line \d+", line) for line in deep)


def test_debug_shows_where_a_build_failed(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Small()
    graph.debug(1)
    with pytest.raises(RuntimeError):
        graph(torch.ones(3, 5))
    lines = re.sub(r"Small_\d+", "Small_0", capsys.readouterr().out).splitlines()
    assert lines[-1] == "[ERROR](GRAPH:Small_0:Small) building graph got error."
    assert [line.strip() for line in lines if "MODULE" in line][-1].startswith(
        "(MODULE:model.0:Linear("
    )
    assert not any("end building" in line for line in lines)


def test_debug_stack_depth(built: Callable[..., list[str]]) -> None:
    def places(**options: object) -> list[str]:
        lines = built(lambda g: g.debug(3, **options))
        relu = next(line for line in lines if "OPERATOR: model.1.0-relu" in line)
        found = re.search(r"location=\((.*)\)\)$", relu).group(1)  # type: ignore[union-attr]
        return found.removesuffix("; ... more").split("; ")

    assert len(places(max_py_stack_depth=1)) == 1
    assert len(places()) == 2
    assert re.fullmatch(
        r"Python Stack\[-1\]: 'build' at '.*test_printing\.py': line \d+", places()[-1]
    )
    library = places(max_py_stack_depth=30, only_user_py_stack=False)
    assert len(library) == 30
    assert any("torch" in place for place in library)


def test_debug_stack_at_level_2(built: Callable[..., list[str]]) -> None:
    lines = built(lambda g: g.debug(2, op_repr_with_py_stack=True))
    assert all("location=" in line for line in lines if "OPERATOR" in line)


def test_debug_of_one_process_of_several(
    built: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert built(lambda g: g.debug(0)) == []
    for ranks in (1, -1, [0, 1]):
        assert built(lambda g, ranks=ranks: g.debug(0, ranks=ranks))


def test_debug_goes_on_after_an_error_that_the_model_handles(
    built: Callable[..., list[str]],
) -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.bad(x)
            except Exception:
                return self.good(x)

    def prepare(graph: Small) -> None:
        graph.model = Careful()
        graph.debug(1)

    lines = [line for line in built(prepare) if re.search("MODULE|OUTPUT", line)]
    assert [re.search(r":_?([\w.]+)", line).group(1) for line in lines][1:5] == [  # type: ignore[union-attr]
        "model.bad", "model.good", "model.good", "model",
    ]  # fmt: skip
    assert lines[1].index("(") == lines[2].index("(")


def test_debug_of_modules(built: Callable[..., list[str]]) -> None:
    inner = built(lambda g: g.model[1].to(GraphModule).debug(2))
    assert all(re.search(r"model\.1", line) for line in inner)
    assert any("OPERATOR: model.1.0-relu" in line for line in inner)
    assert not any("GRAPH" in line for line in inner)
    outer = built(lambda g: (g.debug(1), g.model[1].to(GraphModule).debug(-1)))
    assert any("MODULE:model.0" in line for line in outer)
    assert not any("MODULE:model.1" in line for line in outer)


def test_debug_arguments(built: Callable[..., list[str]]) -> None:
    assert built(lambda g: g.debug(0, ranks=1)) == []
    assert built(lambda g: g.debug(0, ranks=[2, 3])) == []
    for ranks in (None, 0, -1, [0, 1]):
        assert built(lambda g, ranks=ranks: g.debug(0, ranks=ranks))
    graph = Small()
    with pytest.raises(
        flow.GraphError, match=r"test_printing.py:\d+: debug\(\) takes -1, 0, 1, 2 or 3"
    ):
        graph.debug(4)
    with pytest.raises(flow.GraphError, match="a rank or a list of ranks"):
        graph.debug(0, ranks="all")  # type: ignore[arg-type]
    with pytest.raises(flow.GraphError, match=r"test_printing.py:\d+: debug\(\) takes"):
        graph.model.to(GraphModule).debug("verbose")


def test_debug_of_a_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    """An optimizer that makes its state from gradients takes its first step while tracing."""

    class Shy(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                if p not in self.state:
                    self.state[p]["scale"] = 1 / (1 + p.grad.abs().mean())
                p.data.sub_(p.grad * self.state[p]["scale"])

    graph = Small()
    graph._state.optimizers[:] = [Shy(graph.model.parameters(), lr=0.1)]
    graph.debug(0)
    graph(torch.ones(3, 2))
    out = capsys.readouterr().out
    assert out.count("start building graph") == out.count("building graph Done") == 1


class Slow(flow.nn.Graph):
    """Building it takes as long as it says."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def build(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x + 1


_ON_TERMINAL = """
import os, sys, torch
from gflow.report.progress import ProgressBar
from tests.test_printing import Slow

# the first loads libraries; the second is done before patience ends, also on a busy machine
for seconds, wanted, patience in ((0, "0", 1), (0, "1", 600), (1.6, "1", 0.2), (1.2, "0", 0.2)):
    os.environ["GFLOW_PROGRESS"] = wanted
    ProgressBar.patience = patience
    Slow(seconds)(torch.zeros(2))
    os.write(2, b"|")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_progress_bar_on_a_terminal() -> None:
    import pty

    theirs, ours = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "GFLOW_CACHE": "0"}
    process = subprocess.Popen([sys.executable, "-c", _ON_TERMINAL], stderr=ours, env=env)
    os.close(ours)
    shown = b""
    while True:
        try:
            data = os.read(theirs, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(theirs)
    assert process.wait(60) == 0
    first, quick, slow, off, rest = shown.decode().split("|")
    assert (first, quick, off, rest) == ("", "", "", "")
    assert "compiling Slow_2" in slow
    assert "trace" in slow


def test_lines_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebooks and log files get a line now and then, and nothing of a quick build."""
    monkeypatch.setenv("GFLOW_PROGRESS", "1")
    monkeypatch.setattr("gflow.report.progress.ProgressLines.patience", 600)
    Slow(0.1)(torch.zeros(2))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("gflow.report.progress.ProgressLines.patience", 0.3)
    Slow(1.0)(torch.zeros(2))
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) >= 2
    assert all(
        re.fullmatch(r"gflow: compiling Slow_\d+: \w+.*, \d+ s, about \d+%", x) for x in lines
    )
    ProgressLines("of a build that was interrupted before it began")
    time.sleep(0.7)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("GFLOW_PROGRESS", "0")
    Slow(0.7)(torch.zeros(2))
    assert capfd.readouterr() == ("", "")
