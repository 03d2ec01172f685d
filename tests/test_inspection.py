"""What a compiled graph shows: its IR, kernels, memory, times, and what the compiler did."""

from __future__ import annotations

import json
import re
import xml.dom.minidom
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import gflow as flow
from gflow.compiler.driver.pass_manager import Pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.driver.stages import STAGES, stages_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.nn.functional.gelu(self.norm(self.fc(x))).cummax(1).values)


class Step(flow.nn.Graph):
    def __init__(self, train: bool) -> None:
        super().__init__()
        self.model = Net()
        self.train = train
        if train:
            self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=0.1))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        y = self.model(x).pow(2).mean()
        if self.train:
            y.backward()
        return y


@pytest.fixture(scope="module", params=["training", "inference", "training from the cache"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Step:
    """A graph that was called once; the cached one gets its program from an earlier one's files."""
    with pytest.MonkeyPatch.context() as patch:
        if "cache" in request.param:
            patch.setenv("GFLOW_CACHE", "1")
            patch.setenv("GFLOW_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for _ in range(2 if "cache" in request.param else 1):
            made = Step("training" in request.param)
            made(torch.ones(4, 6))
        assert ("cache" in made.timings) == ("cache" in request.param)
    return made


def test_not_compiled_yet() -> None:
    graph = Step(False)
    for method in ("ir", "kernels", "memory", "explain"):
        with pytest.raises(flow.GraphError, match=r"test_inspection.py:\d+: .*not compiled yet"):
            getattr(graph, method)()


def test_ir_and_timings(graph: Step) -> None:
    texts = {}
    for stage in ("traced", "checkpointed", "laid-out", "simplified", "fused", "scheduled",
                  "materialized", "planned"):  # fmt: skip
        text = texts[stage] = graph.ir(stage, generic=True)
        assert "func.func @" in text
        assert "model.fc.weight" in text
        fused = stage in ("fused", "scheduled", "materialized", "planned")
        assert ("gflow.fused" in text) == fused
        assert ("gflow.arena_size" in text) == (stage == "planned")
    assert graph.ir(generic=True) == texts["planned"]
    assert {"trace", "load", "cache" if "cache" in graph.timings else "lower"} <= set(graph.timings)
    assert all(seconds >= 0 for seconds in graph.timings.values())
    with pytest.raises(
        flow.GraphError, match=r"test_inspection.py:\d+: ir\(\) takes a stage: .*'fused'"
    ):
        graph.ir("optimized", generic=True)
    with pytest.raises(flow.GraphError, match="gflow-amp is not among this graph's passes"):
        graph.ir("mixed", generic=True)


def test_ir_is_that_of_the_latest_signature() -> None:
    graph = Step(False)
    graph.config.enable_dynamic_shapes(False)
    graph(torch.ones(4, 6))
    graph(torch.ones(5, 6))
    assert "tensor<5x6xf32>" in graph.ir(generic=True)
    assert "tensor<5x6xf32>" in graph.ir("fused", generic=True)


def test_stages_of_pipelines() -> None:
    met: set[str] = set()
    for own in ({"engine": "xla"}, {"freeze": True}):  # an engine freezes what it compiles itself
        options = PipelineOptions(amp="bf16", memory_fraction=0.5, **own)
        found = stages_of(Pipeline(pipeline_for("cpu", options)))
        assert list(found) == [stage for stage in STAGES if stage in found]
        counts = list(found.values())
        assert counts == sorted(counts)  # stages are in the pipeline's order
        assert len(set(counts)) == len(counts)
        met |= {*found}
    assert met == {*STAGES}
    assert list(stages_of(Pipeline("builtin.module(func.func(cse))"))) == [
        "traced", "simplified", "planned",
    ]  # fmt: skip


def test_kernels(graph: Step) -> None:
    kernels = graph.kernels()
    assert [k.uses for k in kernels] == sorted((k.uses for k in kernels), reverse=True)
    for kernel in kernels:
        assert kernel.name in kernel.source
        assert kernel.uses >= 1
        assert kernel.ops
        assert f"used {kernel.uses} ×" in str(kernel)
    row = next(k for k in kernels if k.name.startswith("row_"))
    assert any("reduce" in op or "rsqrt" in op for op in row.ops)
    assert any(s.module == "model.norm" and s.line for k in kernels for s in k.sources)


def test_memory(graph: Step, tmp_path: Path) -> None:
    memory = graph.memory()
    numbers = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3
    assert memory.name == graph.explain().name == graph.name
    assert memory.parameters == 4 * numbers
    if graph.train:
        assert memory.optimizer_state == 2 * 4 * numbers + 6 * 4  # two moments, and step counts
    assert memory.arguments["input"] == 4 * 6 * 4
    assert memory.arena >= memory.lower_bound > 0
    assert memory.total > memory.arena + memory.parameters
    sizes = [v.size for v in memory.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert any(v.source.module == "model.fc" and v.source.line for v in memory.largest)
    text = str(memory)
    for part in ("arena", "least possible", "parameters", "largest", "test_inspection.py:"):
        assert part in text
    page = memory.html(tmp_path / "memory.html").read_text()
    assert "<svg" in page
    assert "model.fc" in page


def test_profile(graph: Step, tmp_path: Path) -> None:
    x = torch.ones(4, 6)
    before = graph.model.head.weight.clone()
    profile = graph.profile(x, rounds=3)
    assert torch.equal(before, graph.model.head.weight) != graph.train
    assert profile.rounds == 3
    assert len(profile.timeline) == 3
    assert profile.seconds > 0
    assert all(share.file for step in profile.steps for share, _ in step.shares)  # none unknown
    inside = sum(s.seconds for s in profile.steps)
    for found in (profile.by_kernel(), profile.by_module(), profile.by_phase()):
        assert sum(found.values()) == pytest.approx(inside)
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert {"model.fc", "model.norm", "model.head"} <= set(profile.by_module())
    assert "model" in profile.by_module(1)
    assert {"forward", "backward", "optimizer"} <= set(profile.by_phase()) or not graph.train
    assert "aten.cummax.default" in profile.by_kernel()
    text = str(profile)
    assert "a call (median of 3)" in text
    assert "model.norm" in text
    trace = json.loads(profile.chrome_trace(tmp_path / "trace.json").read_text())
    host = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    assert {e["name"] for e in host} >= {
        "signature, guards, state",
        "arguments",
        "steps",
        "results",
    }
    for n in range(3):  # the host's parts of a call follow each other without gaps
        parts = [e for e in host if e["args"]["round"] == n]
        for before, after in pairwise(parts):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    assert "clock" not in profile.parts
    assert profile.parts["steps"] >= 0.5 * inside
    assert "signature, guards, state" in text
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert len(events) == 3 * len(profile.steps)
    starts = [e["ts"] for e in events]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert all(e["dur"] >= 0 and isinstance(e["pid"], int) and "name" in e for e in events)
    assert any(e["args"]["module"] == "model.norm" and e["cat"] == "forward" for e in events)


def test_profile_of_micro_batches() -> None:
    """Parts of a call are there for all micro-batches and the optimizers, and make up the call."""
    graph = Step(True)
    graph.config.set_gradient_accumulation_steps(2)
    profile = graph.profile(torch.ones(4, 6), rounds=2)
    assert {"earlier micro-batches", "optimizers, joining"} <= set(profile.parts)
    for spans in profile.calls:
        assert sum(b - a for _, a, b in spans) == pytest.approx(spans[-1][2] - spans[0][1])


def test_pages(graph: Step, tmp_path: Path) -> None:
    """A graph with the least and with measured times, and a call over time."""
    profile = graph.profile(torch.ones(4, 6), rounds=3)
    files = [
        graph.explain().html(tmp_path / "least.html"),
        profile.graph_html(tmp_path / "measured.html"),
        profile.html(tmp_path / "timeline.html"),
    ]
    least, measured, line = (
        json.loads(re.search(r'id="data">(.*?)</script>', file.read_text())[1])  # type: ignore[index]
        for file in files
    )
    assert (least["measured"], measured["measured"]) == (False, True)
    assert [n[0] for n in least["nodes"]] == [n[0] for n in measured["nodes"]]
    seconds = sum(n[7] for n in measured["nodes"]) / 1e6
    assert seconds == pytest.approx(sum(s.seconds for s in profile.steps), rel=1e-2)
    assert line["rows"][0] == "host"
    assert "steps: forward" in line["rows"]
    assert len(line["spans"]) == len(profile.steps) + len(profile.calls[0])
    for _, begin, length, *_ in line["spans"]:
        assert -1e-9 <= begin <= begin + length <= line["seconds"] + 1e-9


def test_notebooks(graph: Step) -> None:
    """What a notebook shows is escaped and loads nothing."""
    x = torch.ones(4, 6)
    shown = [graph._repr_html_(), graph.explain()._repr_html_(), graph.memory()._repr_html_()]
    shown.append(graph.profile(x, rounds=1)._repr_html_())
    for page in shown:
        document = xml.dom.minidom.parseString(
            f"<body>{page.replace(' open>', '>').replace(' open ', ' ')}</body>"
        )
        assert not document.getElementsByTagName("script")
        assert "http" not in page
    assert "(MODULE:model" in shown[0]
    tree = xml.dom.minidom.parseString(shown[0].replace(" open ", " "))
    folds = [d.firstChild.firstChild.data for d in tree.getElementsByTagName("details")]
    modules = [f for f in folds if f.startswith("(MODULE:")]
    assert len(modules) == len(list(graph.model.modules()))
    assert len(folds) > len(modules)  # ops have folds of their own
    assert "arena" in shown[2]
    assert ("optimizer state: " in shown[2]) == graph.train
    assert "s a call" in shown[3]
    assert "&gt;" in shown[0]


def test_profile_counts_as_calls() -> None:
    """The steps are those of the unprofiled graph, schedulers and results included."""
    torch.manual_seed(0)
    graph = Step(True)
    twin = Step(True)
    twin.model.load_state_dict(graph.model.to(torch.nn.Module).state_dict())
    x = torch.randn(4, 6)
    graph.profile(x, rounds=2)
    for _ in range(3):
        twin(x)
    assert torch.equal(graph.model.fc.weight, twin.model.fc.weight)
    assert torch.equal(graph(x), twin(x))
    with pytest.raises(flow.GraphError, match=r"test_inspection.py:\d+: profile\(\) takes rounds"):
        graph.profile(x, rounds=0)


def test_explain(graph: Step) -> None:
    found = graph.explain()
    assert found.switches == {}
    assert "gflow-fuse" in found.pipeline
    assert all(len(f.ops) > 1 for f in found.fused)
    assert any("reduce" in f.ops and f.kind == "row" for f in found.fused)
    fallback = next(f for f in found.aten if f.overload == "aten.cummax.default")
    assert fallback.calls == 1
    assert fallback.why == "the dialect has no op for it"
    assert fallback.sources[0].module == "model"
    assert found.recomputed == []
    assert found.costs.after.bytes < found.costs.before.bytes
    text = str(found)
    for part in (
        "Fused: ",
        "Through PyTorch (ATen):",
        "aten.cummax",
        "Recomputed",
        "bytes moved",
    ):
        assert part in text


def test_explain_recomputation() -> None:
    graph = Step(True)
    graph.model.to(flow.nn.graph.GraphModule).activation_checkpointing = True
    graph.config.enable_multi_tensor_update()
    graph(torch.ones(4, 6))
    found = graph.explain()
    assert found.switches == {"multi_tensor_update": True}
    assert "multi_tensor_update=True" in str(found)
    assert {r.why for r in found.recomputed} == {"activation checkpointing"}
    assert any(r.source.module == "model.norm" for r in found.recomputed)


def test_explain_memory_budget() -> None:
    class Deep(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                *[m for _ in range(8) for m in (nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))]
            )
            self.add_optimizer(torch.optim.SGD(self.layers.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.layers(x).sum()
            loss.backward()
            return loss

    graph = Deep()
    graph.config.set_memory_budget(0.6)
    graph(torch.ones(256, 16))
    assert "gflow.rematerialized" in graph.ir("rematerialized", generic=True)
    found = graph.explain()
    assert {r.why for r in found.recomputed} == {"the memory budget"}
    assert "memory budget" in found.notes[0]
    assert found.notes[0] in str(found)
