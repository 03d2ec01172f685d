"""The switches of `graph.config` and of a module's config."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gflow
from gflow import config as config_module
from gflow.blocks import settings_of
from gflow.compiler import resolve
from gflow.config import GraphConfig

DOCS = Path(__file__).parents[1] / "docs" / "config.md"

METHODS = [
    name
    for name, value in vars(GraphConfig).items()
    if not name.startswith("_") and callable(value)
]

#: what shows that a switch acts: how it is called, and what differs then
ACTS: dict[str, tuple[Any, ...]] = {
    "enable_amp": (True,),
    "allow_fuse_add_to_output": (False,),
    "allow_fuse_cast_scale": (False,),
    "allow_fuse_model_update_ops": (False,),
    "enable_multi_tensor_update": (True,),
    "enable_straighten_algorithm": ("MemoryFirst",),
    "enable_compress_memory": (False,),
    "enable_choose_best_memory_allocation": (True,),
    "set_memory_budget": ("1GB",),
}
ACTS_ELSEWHERE = {
    "set_gradient_accumulation_steps": "tests/test_gradient_accumulation.py",
    "set_cache_size": "tests of the cache of programs",
    "keep_gradients": "tests/test_gradient_accumulation.py",
    "set_outputs_buffer_size": "test_outputs_buffer_size",
    "enable_xla_jit": "test_other_compilers",
    "enable_tensorrt": "test_other_compilers",
    "enable_openvino": "test_other_compilers",
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
    known = {*ACTS, *ACTS_ELSEWHERE, *REASONS}
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
        ("enable_tensorrt", "yes", "takes True or False"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_wrong_values(name: str, value: Any, message: str) -> None:
    with pytest.raises(gflow.GraphError, match=re.escape(message)) as error:
        getattr(GraphConfig(), name)(value)
    assert "test_config.py" in str(error.value)


def test_zero(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "_warned", set())
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
    with pytest.warns(FutureWarning, match=r"older spelling of enable_zero\(stage=1\)"):
        config.set_zero_redundancy_optimizer_mode("distributed_split")
    with pytest.warns(FutureWarning, match="shard_min_size=value"):
        config.set_zero_redundancy_optimizer_min_size_after_split(32)
    assert config.switches()["zero"] == (1, 32, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.set_zero_redundancy_optimizer_mode("non_distributed")
    assert config.switches()["zero"] is None


@pytest.mark.parametrize("name", ["xla_jit", "tensorrt", "openvino"])
def test_other_compilers(name: str) -> None:
    config = GraphConfig()
    with pytest.raises(NotImplementedError, match=rf"gflow\[{name.removesuffix('_jit')}\]"):
        getattr(config, f"enable_{name}")()
    getattr(config, f"enable_{name}")(False)


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
    (pool,) = plan.compiled.run._pools
    assert len(pool._buffers) == size
    assert len({a.data_ptr() for a in again} & places) >= size


def test_stages_by_both_spellings() -> None:
    graph = Doubled()
    graph.model.config.stage_id = 0
    assert settings_of(graph.model).stage_id == 0
    graph.model.to(gflow.nn.graph.GraphModule).set_stage(1, "cpu")
    assert (graph.model.config.stage_id, graph.model.config.placement) == (1, "cpu")
    graph.model.config.set_stage(2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(graph(x), graph.model(x))
    for wrong in (-1, "first", True):
        with pytest.raises(gflow.GraphError, match="stage_id is a stage's number, from 0"):
            graph.model.config.stage_id = wrong
