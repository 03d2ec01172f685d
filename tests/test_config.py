"""The switches of `graph.config` and of a module's config."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gflow
from gflow.compiler import resolve
from gflow.config import GraphConfig
from gflow.runtime.engines import packages
from gflow.tracing.context import deprecated_spellings
from gflow.tracing.program.module_config import settings_of

DOCS = Path(__file__).parents[1] / "docs" / "config.md"

METHODS = [
    name
    for name in dir(GraphConfig)
    if not name.startswith("_") and callable(getattr(GraphConfig, name))
]

#: what shows that a switch acts: how it is called, and what differs then
ACTS: dict[str, tuple[Any, ...]] = {
    "enable_amp": (True,),
    "freeze": (True,),
    "allow_fuse_add_to_output": (False,),
    "allow_fuse_cast_scale": (False,),
    "allow_fuse_model_update_ops": (False,),
    "enable_multi_tensor_update": (True,),
    "enable_straighten_algorithm": ("MemoryFirst",),
    "enable_compress_memory": (False,),
    "enable_choose_best_memory_allocation": (True,),
    "set_memory_budget": ("1GB",),
    "set_recomputation_time": (0,),
}
ACTS_ELSEWHERE = {
    "enable_attention_recognition": "tests/test_recognize_attention.py",
    "enable_eager_random": "tests/test_eager_random.py",
    "enable_winograd": "tests/test_winograd.py",
    "set_gradient_accumulation_steps": "tests/test_gradient_accumulation.py",
    "set_cache_size": "tests of the cache of programs",
    "keep_gradients": "tests/test_gradient_accumulation.py",
    "check_against_eager": "tests/test_against_eager.py",
    "set_pipeline_schedule": "tests/test_pipeline.py",
    "set_outputs_buffer_size": "test_outputs_buffer_size",
    "enable_dynamic_shapes": "tests/test_automatic_sizes.py",
    "enable_autotune": "tests/test_cuda_tuning.py",
    "enable_xla_jit": "test_engine_needs_its_package",
    "enable_tensorrt": "test_engine_needs_its_package",
    "enable_openvino": "test_engine_needs_its_package",
    "enable_onnxruntime": "test_engine_needs_its_package",
}
#: warn in one process, and raise in several: tests/test_oneflow_surface.py
ONEFLOWS = {
    "enable_fused_model_update_cast",
    "enable_auto_memory",
    "enable_auto_parallel",
    "enable_auto_parallel_ignore_user_sbp_config",
    "enable_auto_parallel_sbp_collector",
    "enable_auto_parallel_trunk_algo",
    "set_auto_parallel_computation_cost_ratio",
    "set_auto_parallel_wait_time",
}
REASONS = {
    "enable_zero": "needs more than one process; says so in the log",
    "set_zero_redundancy_optimizer_mode": "as enable_zero",
    "set_zero_redundancy_optimizer_min_size_after_split": "as enable_zero",
    "enable_cudnn_conv_heuristic_search_algo": "cuda target only; says so in the log",
    "switches": "reads",
    "resolved": "reads",
}


def test_every_switch_is_documented_and_acts() -> None:
    text = DOCS.read_text()
    for name in METHODS:
        assert f"`{name}(" in text, f"docs/config.md does not have {name}"
        assert getattr(GraphConfig, name).__doc__, name
    known = {*ACTS, *ACTS_ELSEWHERE, *ONEFLOWS, *REASONS}
    assert set(METHODS) <= known, set(METHODS) - known


@pytest.mark.parametrize("name", list(ACTS))
def test_pipeline_differs(name: str) -> None:
    changes: list[int] = []
    config = GraphConfig(lambda: changes.append(1))
    changes.clear()
    before = resolve(config.resolved()).pipeline
    getattr(config, name)(*ACTS[name])
    assert resolve(config.resolved()).pipeline != before
    assert changes == [1]
    getattr(config, name)(*ACTS[name])
    assert changes == [1]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("enable_amp", "yes", "takes True or False; got 'yes'"),
        ("set_gradient_accumulation_steps", 0, "takes an int, 1 or more; got 0"),
        ("set_gradient_accumulation_steps", 2.0, "takes an int, 1 or more; got 2.0"),
        ("set_outputs_buffer_size", -1, "takes an int, 0 or more; got -1"),
        ("set_outputs_buffer_size", True, "takes an int, 0 or more; got True"),
        ("enable_zero", 1, "takes True or False; got 1"),
        ("enable_cudnn_conv_heuristic_search_algo", None, "takes True or False"),
        ("set_zero_redundancy_optimizer_mode", "split", "'distributed_split' or 'non_distrib"),
        ("keep_gradients", 3, "names of parameters, or parameters; got"),
        ("enable_straighten_algorithm", "Fast", "takes one of 'SpeedFirst'"),
        ("set_memory_budget", "much", "takes bytes"),
        ("set_recomputation_time", 1.5, "takes a share from 0 to 1; got 1.5"),
        ("enable_tensorrt", "yes", "takes True or False"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_wrong_values(name: str, value: Any, message: str) -> None:
    with pytest.raises(gflow.GraphError, match=re.escape(message)) as error:
        getattr(GraphConfig(), name)(value)
    assert "test_config.py" in str(error.value)


def test_zero(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated_spellings, "_warned", set())
    config = GraphConfig()
    with caplog.at_level(logging.INFO, "gflow"):
        config.enable_zero(stage=3, shard_min_size=64)
    assert "more than one process" in caplog.text
    assert config.switches()["zero"] == (3, 64, 1)
    config.enable_zero(False)
    assert config.switches()["zero"] is None
    with pytest.raises(gflow.GraphError, match="stage=1, 2 or 3; got 4"):
        config.enable_zero(stage=4)
    with pytest.raises(gflow.GraphError, match="shard_restore_level=0, 1 or 2; got 5"):
        config.enable_zero(shard_restore_level=5)
    with pytest.warns(FutureWarning, match=r"deprecated, use enable_zero\(stage=1\)"):
        config.set_zero_redundancy_optimizer_mode("distributed_split")
    with pytest.warns(FutureWarning, match="shard_min_size=value"):
        config.set_zero_redundancy_optimizer_min_size_after_split(32)
    assert config.switches()["zero"] == (1, 32, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.set_zero_redundancy_optimizer_mode("non_distributed")
    assert config.switches()["zero"] is None


def test_engine_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GraphConfig()
    monkeypatch.setattr(packages, "_found", lambda module: module != "onnx")
    for name in ("ONNX Runtime", "OpenVINO"):
        with pytest.raises(gflow.GraphError, match=rf"{name} needs onnx, .*: pip install"):
            getattr(config, f"enable_{name.replace(' ', '').lower()}")()
    monkeypatch.setattr(packages, "_found", lambda module: False)
    with pytest.raises(gflow.GraphError, match=r"pip install 'gflow-compiler\[xla\]'"):
        config.enable_xla_jit()
    with pytest.raises(gflow.GraphError, match=r"pip install 'gflow-compiler\[onnx\]'"):
        config.enable_onnxruntime()
    with pytest.raises(gflow.GraphError, match=r"pip install 'gflow-compiler\[openvino\]'"):
        config.enable_openvino()
    with pytest.raises(gflow.GraphError, match=r"pip install 'gflow-compiler\[tensorrt\]'"):
        config.enable_tensorrt()
    monkeypatch.setattr(packages, "_found", lambda module: True)
    with pytest.raises(NotImplementedError, match=r"TensorRT does not run .* format='onnx'"):
        config.enable_tensorrt()
    config.enable_tensorrt(False)
    assert config.switches() == {}
    config.enable_xla_jit()
    assert config.switches() == {"engine": "xla"}
    config.enable_xla_jit(False)
    assert config.switches() == {"engine": ""}


def test_print() -> None:
    config = GraphConfig()
    assert repr(config) == "GraphConfig()"
    config.enable_amp(dtype=torch.bfloat16)
    config.set_gradient_accumulation_steps(4)
    config.keep_gradients("model.weight", nn.Parameter(torch.zeros(2, 3)))
    assert repr(config).splitlines() == [
        "GraphConfig(",
        "  amp: 'bf16',",
        "  gradient_accumulation_steps: 4,",
        "  kept_gradients: ('model.weight', '[2, 3]'),",
        ")",
    ]


class Doubled(gflow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(3, 3)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_outputs_buffer_size(size: int) -> None:
    """So many results are used again; those that the caller keeps are not."""
    graph = Doubled()
    graph.config.set_outputs_buffer_size(size)
    x = torch.randn(4, 3)
    held = [graph(x) for _ in range(5)]
    first = [h.clone() for h in held]
    assert len({h.data_ptr() for h in held}) == 5
    places = {h.data_ptr() for h in held}
    graph(torch.randn(4, 3))
    for h, value in zip(held, first):
        assert torch.equal(h, value)
    del held, h
    again = [graph(x) for _ in range(5)]
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    ((_, pool),) = plan.compiled.run._frame.pools
    assert len(pool.buffers) == size
    assert len({a.data_ptr() for a in again} & places) >= size


def test_older_spellings_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated_spellings, "_warned", set())
    graph, optimizer = Doubled(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            graph.model.config.activation_checkpointing = True
            graph.model.config.stage_id = 1
            graph.model.config.set_stage(2)
            graph.config.set_zero_redundancy_optimizer_mode("distributed_split")
            graph.config.set_zero_redundancy_optimizer_min_size_after_split(2)
            graph.add_optimizer("sgd", optimizer, schedule)
        getattr(graph.model, "config", None)  # as libraries ask
    texts = [str(w.message) for w in seen]
    assert len(texts) == 6
    assert all(issubclass(w.category, FutureWarning) for w in seen)
    assert {w.filename for w in seen} == {__file__}
    assert len({w.lineno for w in seen}) == 6
    assert texts[0].startswith("module.config.activation_checkpointing = … is deprecated, use ")
    assert settings_of(graph.model.to(nn.Module)).activation_checkpointing
    assert graph._state.optimizers == [optimizer] * 2
    assert graph._state.schedulers == [schedule] * 2


def test_modules_of_a_graph_outside_of_build() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))

    class Views(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.inner = nn.Sequential(self.model[0], self.model)  # views in other modules
            self.listed = [self.model]

        def build(self, x: torch.Tensor) -> torch.Tensor:
            assert self.model is model
            assert list(self.model.state_dict()) == ["0.weight", "0.bias"]
            return self.inner[1](x) + self.listed[0](x) + self.model(x)

    graph, x = Views(), torch.randn(4, 2)
    torch.testing.assert_close(graph(x), 3 * model(x))
    for seen, path in ((graph.model, "graph.model"), (graph.model[0], r"graph\.model\.0")):
        with pytest.raises(
            gflow.GraphError,
            match=rf"test_config.py:\d+: {path} is a module of a graph.*to\(nn.Module\)",
        ):
            seen.state_dict()
    assert graph.model.to(nn.Module) is model
    assert graph.model == model
    assert hash(graph.model) == hash(model)
    assert graph.model
    assert isinstance(graph.model, nn.Sequential)
    assert len(graph.model) == 2
    assert [m.__class__ for m in graph.model] == [nn.Linear, nn.Sequential]
    assert list(graph.model.parameters()) == list(model.parameters())
    assert repr(graph.model) == repr(model)
    assert "model" in dir(graph)
    assert hasattr(graph, "model")
    assert not hasattr(graph, "models")
    assert list(graph.state_dict())[:3] == ["model", "inner", "listed.0"]
    assert list(nn.Sequential(graph.model).state_dict()) == ["0.0.weight", "0.0.bias"]
    for copied in (copy.deepcopy(graph.model), pickle.loads(pickle.dumps(graph.model))):  # noqa: S301
        assert type(copied) is nn.Sequential
        assert torch.equal(copied[0].weight, model[0].weight)
    graph.model.training_note = "kept"
    assert model.training_note == "kept"
    assert graph.model.eval() is model
    graph.model[1] = nn.Tanh()  # the program follows
    torch.testing.assert_close(graph(x), 3 * model(x))
    graph.model = nn.Linear(2, 3)
    assert next(iter(graph.state_dict())) == "model"
    del graph.model
    with pytest.raises(AttributeError, match="'Views' object has no attribute 'model'"):
        graph(x)


def test_stages_by_both_spellings() -> None:
    graph = Doubled()
    graph.model.config.stage_id = 0
    assert settings_of(graph.model.to(torch.nn.Module)).stage_id == 0
    graph.model.to(gflow.nn.graph.GraphModule).set_stage(1, "cpu")
    assert (graph.model.config.stage_id, graph.model.config.placement) == (1, "cpu")
    graph.model.config.set_stage(2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(graph(x), graph.model(x))
    for wrong in (-1, "first", True):
        with pytest.raises(gflow.GraphError, match="stage_id is a stage's number, from 0"):
            graph.model.config.stage_id = wrong


def test_settings_of_modules_in_loops() -> None:
    class Looping(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(3, 3), nn.ModuleList([nn.Linear(3, 3)]))
            self.parts: Any = {"first": nn.Linear(3, 3), "rest": [nn.Linear(3, 3)]}
            found = [*self.model, *self.model.children(), *self.model[1]]
            found += [m for _, m in self.model.named_modules() if isinstance(m, nn.Linear)]
            found += [self.parts["first"], *self.parts["rest"], self.parts.get("first")]
            for module in found:
                module.config.stage_id = 1

        def build(self, x: torch.Tensor) -> torch.Tensor:
            assert type(self.parts) is dict
            return self.parts["rest"][0](self.parts["first"](self.model[0](x)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = Looping()
    x = torch.randn(2, 3)
    graph(x)
    for module in (graph.model[1][0], graph.parts["rest"][0], graph.parts["first"]):
        assert module.to(gflow.nn.graph.GraphModule).stage_id == 1
    assert isinstance(graph.parts, dict)
    assert list(graph.parts) == ["first", "rest"]
    graph.parts["rest"][0] = nn.Linear(3, 3)
    with torch.no_grad():
        want = graph.parts["rest"][0](graph.parts["first"](graph.model[0](x)))
        torch.testing.assert_close(graph(x), want)
