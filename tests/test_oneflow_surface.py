"""Every public name of OneFlow's graphs, optimizers and schedulers, and its state: works, warns, refuses.

`oneflow_names.json` is generated from OneFlow's sources (scripts/oneflow_names.py).
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn
from gflow.nn.graph import GraphModule, GraphTensor, Proxy
from gflow.optim import lr_scheduler as ours
from gflow.runtime.schedules import data as schedulers
from gflow.tracing.context import deprecated_spellings

NAMES: dict[str, Any] = json.loads((Path(__file__).parent / "oneflow_names.json").read_text())
WORKS, WARNS, REFUSES = "works", "warns", "refuses"


class Net(nn.Graph):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class Train(nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, **options)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


_HELD: list[Any] = []


def _saved() -> Any:
    graph = Net(enable_get_runtime_state_dict=True)
    graph(torch.ones(2, 3))
    return graph.runtime_state_dict(destination={}, with_eager=True)


def _block() -> Any:
    graph = Net()
    _HELD.append(graph)  # settings do not keep a module alive
    return graph.model[0].to(GraphModule)


def _tensor() -> Any:
    graph = Net()
    _HELD.append(graph)
    return graph.model[0].weight.to(GraphTensor)


def _sgd() -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def _set(value: Any, name: str, to: Any) -> None:
    setattr(value, name, to)


X = torch.ones(2, 3)
#: for each name its state, and a call that shows it
GRAPH: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, lambda: Net(enable_get_runtime_state_dict=True, debug_v_level=-1, debug_ranks=[0])),
    "__call__": (WORKS, lambda: Net()(X)),
    "_compile": (WORKS, lambda: Net()._compile(X).shape),
    "_graph_proto": (WORKS, lambda: _called()._graph_proto),
    "_full_graph_proto": (WORKS, lambda: _called()._full_graph_proto),
    "_compiled_graph_proto": (WORKS, lambda: _called()._compiled_graph_proto),
    "add_optimizer": (WORKS, lambda: Train(nn.Linear(3, 1), _sgd(), lr_sch=None)),
    "build": (WORKS, lambda: Net().build(X)),
    "build_graph": (WORKS, lambda: Net().build_graph(X)),
    "debug": (WORKS, lambda: Net().debug(-1, ranks=-1, max_py_stack_depth=1)),
    "enable_save_runtime_state_dict": (WORKS, lambda: Net().enable_save_runtime_state_dict(mode=True)),
    "enable_shared": (WORKS, lambda: Net().enable_shared(mode=True)),
    "finish_compile_and_init_runtime": (WORKS, lambda: _called().finish_compile_and_init_runtime()),
    "is_compiled": (WORKS, lambda: Net().is_compiled),
    "load_runtime_state_dict": (WORKS, lambda: nn.Graph().load_runtime_state_dict(_saved(), warmup_with_run=False)),
    "load_state_dict": (WORKS, lambda: Net().load_state_dict(Net().state_dict(), strict=True)),
    "name": (WORKS, lambda: Net().name),
    "runtime_state_dict": (WORKS, _saved),
    "runtime_state_dict_to": (WORKS, lambda: nn.Graph.runtime_state_dict_to(_saved(), "cpu")),
    "set_grad_scaler": (WORKS, lambda: Net().set_grad_scaler(grad_scaler=None)),
    "share_from": (WORKS, lambda: Net().share_from(shared_graph=Net())),
    "state_dict": (WORKS, lambda: Net().state_dict(destination={})["model"]),
    "trace": (WORKS, lambda: nn.Graph.trace(func=torch.relu)(X)),
    "training": (WORKS, lambda: Net().training),
    "with_dynamic_input_shape": (WORKS, lambda: nn.Graph.with_dynamic_input_shape(size=2, enable_shared=True)),
}  # fmt: skip
BLOCK: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, _block),
    "name": (WORKS, lambda: _block().name + _tensor().name),
    "name_prefix": (WORKS, lambda: _block().name_prefix + _tensor().name_prefix),
    "type": (WORKS, lambda: _block().type + _tensor().type),
    "prev_scope": (REFUSES, lambda: _block().prev_scope),
    "scope": (REFUSES, lambda: _block().scope),
    "scope_context": (REFUSES, lambda: _block().scope_context()),
}
MODULE: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, _block),
    "activation_checkpointing": (WORKS, lambda: _set(_block(), "activation_checkpointing", True)),
    "debug": (WORKS, lambda: _block().debug(-1, ranks=0, max_py_stack_depth=1)),
    "set_stage": (WORKS, lambda: _block().set_stage(stage_id=0, placement="cpu")),
    "stage_id": (WORKS, lambda: _set(_block(), "stage_id", 0)),
    "stage_placement": (WORKS, lambda: _block().stage_placement),
}
TENSOR: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, _tensor),
    "set_stage": (WORKS, lambda: _tensor().set_stage(stage_id=0, placement="cpu")),
    "stage_id": (WORKS, lambda: _tensor().stage_id),
    "stage_placement": (WORKS, lambda: _tensor().stage_placement),
}
PROXY: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, lambda: Net().model),
    "to": (WORKS, lambda: Net().model.to(nn.Module).to("cpu")),
}
PROXY_MODULE: dict[str, tuple[str, Callable[[], Any]]] = {
    "__init__": (WORKS, lambda: Net().model),
    "__call__": (WORKS, lambda: Net().model(X)),
    "add_module": (WORKS, lambda: Net().model.add_module(name="more", module=nn.ReLU())),
    "buffers": (WORKS, lambda: list(Net().model.buffers(recurse=True))),
    "modules": (WORKS, lambda: list(Net().model.modules())),
    "parameters": (WORKS, lambda: list(Net().model.parameters(recurse=True))),
    "register_parameter": (WORKS, lambda: Net().model.register_parameter(name="w", param=None)),
}
#: switches: their state, and arguments
CONFIG: dict[str, tuple[str, tuple[Any, ...]]] = {
    "__init__": (WORKS, ()),
    "training": (WORKS, ()),
    "allow_fuse_add_to_output": (WORKS, (True,)),
    "allow_fuse_cast_scale": (WORKS, (True,)),
    "allow_fuse_model_update_ops": (WORKS, (True,)),
    "enable_amp": (WORKS, (True,)),
    "enable_auto_memory": (WARNS, ("HeavyMemoryDown",)),
    "enable_auto_parallel": (WARNS, (True,)),
    "enable_auto_parallel_ignore_user_sbp_config": (WARNS, (True,)),
    "enable_auto_parallel_sbp_collector": (WARNS, (True,)),
    "enable_auto_parallel_trunk_algo": (WARNS, (True,)),
    "enable_choose_best_memory_allocation": (WORKS, (True,)),
    "enable_compress_memory": (WORKS, (True,)),
    "enable_cudnn_conv_heuristic_search_algo": (WORKS, (True,)),
    "enable_fused_model_update_cast": (WARNS, (True,)),
    "enable_multi_tensor_update": (WORKS, (True,)),
    "enable_straighten_algorithm": (WORKS, ("SpeedFirst",)),
    "enable_zero": (WORKS, (True,)),
    "set_auto_parallel_computation_cost_ratio": (WARNS, (0.5,)),
    "set_auto_parallel_wait_time": (WARNS, (1.5,)),
    "set_gradient_accumulation_steps": (WORKS, (2,)),
    "set_outputs_buffer_size": (WORKS, (2,)),
    "set_zero_redundancy_optimizer_mode": (WARNS, ("distributed_split",)),
}
#: functions that are refused; all others work
REFUSED_FUNCTIONS = {"nms", "roc_auc_score"}


def _called() -> Any:
    graph = Net()
    graph(X)
    return graph


def _shows(state: str, call: Callable[[], Any]) -> None:
    """A call works, warns or refuses, as its state says."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if state == REFUSES:
            with pytest.raises((flow.GraphError, AttributeError)) as error:
                call()
            assert len(str(error.value).split()) > 7, error
            return
        call()
    assert state == (WARNS if seen else WORKS), [str(w.message) for w in seen]
    for warning in seen:
        assert len(str(warning.message).split()) > 7
        assert warning.filename == __file__


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("Graph", GRAPH),
        ("GraphBlock", BLOCK),
        ("GraphModule", MODULE),
        ("GraphTensor", TENSOR),
        ("Proxy", PROXY),
        ("ProxyModule", PROXY_MODULE),
    ],
)
def test_graphs_and_blocks(kind: str, table: dict[str, tuple[str, Any]]) -> None:
    assert set(NAMES[kind]) == set(table)
    for state, call in table.values():
        _shows(state, call)


def test_parameters_of_methods() -> None:
    for kind, cls in {
        "Graph": nn.Graph,
        "GraphConfig": nn.graph.GraphConfig,
        "GraphModule": GraphModule,
    }.items():
        for name, wanted in NAMES[kind].items():
            method = inspect.getattr_static(cls, name)
            function = getattr(method, "__func__", method)
            if (name == "__init__" and kind != "Graph") or not inspect.isfunction(function):
                continue
            assert set(wanted) <= set(inspect.signature(function).parameters), (kind, name)


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated_spellings, "_warned", set())
    assert set(NAMES["GraphConfig"]) == set(CONFIG)
    for name, (state, arguments) in CONFIG.items():
        if arguments:
            _shows(state, lambda n=name, a=arguments: getattr(Net().config, n)(*a))
    _shows(REFUSES, lambda: Net().config.proto)
    assert Net().config.training is False
    assert Train(nn.Linear(3, 1), _sgd()).config.training
    for name in CONFIG:
        if CONFIG[name][0] == WARNS and isinstance(CONFIG[name][1][0], bool):
            _shows(WORKS, lambda n=name: getattr(Net().config, n)(False))
    _shows(WORKS, lambda: Net().config.enable_auto_memory("Disable"))
    _shows(REFUSES, lambda: Net().config.enable_auto_memory("much"))


def test_switches_for_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gflow.oneflow.switches.world_size", lambda: 4)
    for name, (_, arguments) in CONFIG.items():
        if "auto_" in name:
            with pytest.raises(flow.GraphError, match="for 4 ranks, which gflow does not do"):
                getattr(Net().config, name)(*arguments)


def test_functions() -> None:
    for name in NAMES["functions"]:
        if name in REFUSED_FUNCTIONS:
            _shows(REFUSES, lambda n=name: getattr(flow, n))
        else:
            assert hasattr(flow, name), name
            assert name in dir(flow), name


def test_names_around_graphs() -> None:
    """What has no place says what to use."""
    for place, names in {
        flow: ("comm", "one_embedding"),
        flow.env: ("init_rdma",),
        flow.nn: ("FusedBatchNorm1d", "OFRecordReader", "Quantization"),
        Net(): {n for n in dir(nn.Module) if n[0] != "_"} - set(dir(Net())),
    }.items():
        for name in names:
            assert not hasattr(place, name)
            _shows(REFUSES, lambda p=place, n=name: getattr(p, n))
    assert isinstance(Net().model, Proxy)


ARGUMENTS: dict[str, Any] = {
    "lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": False, "momentum": 0.9,
    "do_bias_correction": False, "contiguous_params": True, "fused": False, "adam_w_mode": False, "rho": 0.8,
    "maximize": True, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "alpha": 0.9, "centered": True,
    "dampening": 0.0, "nesterov": False,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(NAMES["optim"]) - {"Optimizer", "LBFGS"}))
def test_optimizers_take_their_arguments_and_train_as_in_eager(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    other = nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    kind = getattr(flow.optim, name)
    chosen = {n: ARGUMENTS[n] for n in NAMES["optim"][name] if n != "params"}
    with pytest.warns(UserWarning, match=r"contiguous_params=True\) has no effect"):
        made, reference = (kind(m.parameters(), **chosen) for m in (model, other))
    graph = Train(model, made)
    for _ in range(3):
        graph(x)
        reference.zero_grad()
        other(x).square().mean().backward()
        reference.step()
        torch.testing.assert_close(model.weight, other.weight)


@pytest.mark.parametrize("decoupled", [False, True])
def test_moments_without_correction(decoupled: bool) -> None:
    """Against the formulas."""
    torch.manual_seed(0)
    w = torch.randn(3, 2)
    p = torch.nn.Parameter(w.clone())
    kind = flow.optim.AdamW if decoupled else flow.optim.Adam
    optimizer = kind([p], lr=0.1, betas=(0.8, 0.9), weight_decay=0.2, do_bias_correction=False)
    m = v = torch.zeros(3, 2)
    for _ in range(3):
        p.grad = torch.randn(3, 2)
        optimizer.step()
        g = p.grad if decoupled else p.grad + 0.2 * w
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        w = (w * (1 - 0.1 * 0.2) if decoupled else w) - 0.1 * m / (v.sqrt() + 1e-8)
        torch.testing.assert_close(p.detach(), w)


@pytest.mark.parametrize("decoupled", [False, True])
def test_lamb(decoupled: bool) -> None:
    """Against the formulas of OneFlow's kernel."""
    torch.manual_seed(0)
    w = torch.randn(3, 2)
    p = torch.nn.Parameter(w.clone())
    optimizer = flow.optim.LAMB(
        [p], lr=0.1, betas=(0.8, 0.9), weight_decay=0.2, adam_w_mode=decoupled
    )
    m = v = torch.zeros(3, 2)
    for step in range(1, 4):
        p.grad = torch.randn(3, 2)
        optimizer.step()
        g = p.grad if decoupled else p.grad + 0.2 * w
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        u = m / (1 - 0.8**step) / ((v / (1 - 0.9**step)).sqrt() + 1e-8)
        w = w - 0.1 * (w.norm() / u.norm()) * (u + (0.2 * w if decoupled else 0))
        torch.testing.assert_close(p.detach(), w)
    with pytest.raises(RuntimeError, match="no AMSGrad"):
        flow.optim.LAMB([p], amsgrad=True)


def test_clip_grad_of_optimizers() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 3.0)
    flow.optim.SGD(
        [{"params": [p], "clip_grad_max_norm": 3.0, "clip_grad_norm_type": -math.inf}], lr=0.1
    ).clip_grad()
    torch.testing.assert_close(p.grad, torch.full((2,), 3.0))
    flow.optim.SGD(
        [{"params": [p], "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 0}], lr=0.1
    ).clip_grad()
    torch.testing.assert_close(p.grad, torch.full((2,), 3.0))  # one tensor is not zero
    with pytest.warns(UserWarning, match="no parameter group has the key"):
        flow.optim.SGD([p], lr=0.1).clip_grad()


SCHEDULES: dict[str, dict[str, Any]] = {
    "ConstantLR": {"factor": 0.5, "total_iters": 3},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2, "eta_min": 0.01, "decay_rate": 0.5, "restart_limit": 2},
    "CosineDecayLR": {"decay_steps": 5, "alpha": 0.1},
    "ExponentialLR": {"gamma": 0.9},
    "LambdaLR": {"lr_lambda": lambda step: 1 / (step + 1)},
    "LinearLR": {"start_factor": 0.5, "end_factor": 1.0, "total_iters": 3},
    "MultiStepLR": {"milestones": [2, 4], "gamma": 0.5},
    "MultiplicativeLR": {"lr_lambda": lambda step: 0.9},
    "PolynomialLR": {"decay_batch": 5, "end_learning_rate": 0.01, "power": 2.0, "cycle": True},
    "ReduceLROnPlateau": {
        "mode": "min", "factor": 0.5, "patience": 2, "threshold": 1e-3, "threshold_mode": "rel", "cooldown": 0,
        "min_lr": 0.0, "eps": 1e-8,
    },
    "StepLR": {"step_size": 2, "gamma": 0.5},
}  # fmt: skip


def _rates(make: Callable[[Any], Any], count: int = 12) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler, found = make(optimizer), []
    for _ in range(count):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedulers_take_their_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, chosen = getattr(ours, name), SCHEDULES[name]
    assert set(NAMES["lr_scheduler"][name]) <= {
        *chosen,
        "optimizer",
        "last_step",
        "verbose",
        "steps",
    }
    if name == "ReduceLROnPlateau":
        kind(_sgd(), verbose=True, **chosen)
        return
    plain = _rates(lambda o: kind(o, **chosen))
    assert _rates(lambda o: kind(o, last_step=-1, verbose=True, **chosen)) == plain
    assert f"{name}: step 3, learning rate" in capsys.readouterr().out
    theirs = getattr(torch.optim.lr_scheduler, name, None)
    if theirs is not None and name not in ("PolynomialLR", "CosineAnnealingWarmRestarts"):
        assert _rates(lambda o: theirs(o, **chosen)) == plain

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["initial_lr"] = 0.1
    assert kind(optimizer, last_step=3, **chosen).last_epoch == 4


def test_schedulers_of_the_list_are_all_tested() -> None:
    others = {"ChainedScheduler", "SequentialLR", "WarmUpLR", "WarmupLR"}
    assert set(NAMES["lr_scheduler"]) == {*SCHEDULES, *others}
    for name in NAMES["lr_scheduler"]:
        assert getattr(ours, name)


def test_warm_restarts_that_decay() -> None:
    rates = _rates(
        lambda o: ours.CosineAnnealingWarmRestarts(o, 2, 2, 0.01, decay_rate=0.5, restart_limit=2)
    )
    wanted = []
    for step in range(12):
        cycle, at, length = (
            (0, step, 2) if step < 2 else (1, step - 2, 4) if step < 6 else (2, 0, 8)
        )
        peak = 0.1 * 0.5**cycle
        wanted.append(
            0.01 + (peak - 0.01) * 0.5 * (1 + math.cos(math.pi * at / length))
            if cycle < 2
            else 0.01
        )
    assert rates == pytest.approx(wanted)


@pytest.mark.parametrize("rescaling", [False, True, [True, False]])
def test_sequences_with_shared_steps(rescaling: Any) -> None:
    def make(optimizer: Any) -> Any:
        parts = [
            ours.ConstantLR(optimizer, 0.5, 2),
            ours.ExponentialLR(optimizer, 0.9),
            ours.StepLR(optimizer, 3),
        ]
        made = ours.SequentialLR(optimizer, parts, [3, 7], interval_rescaling=rescaling)
        described = schedulers.describe(made)
        assert described is not None
        return made

    first, second = (rescaling, rescaling) if isinstance(rescaling, bool) else rescaling
    wanted = [
        (0.05 if s < 2 else 0.1)
        if s < 3
        else 0.1 * 0.9 ** (s - 3 * first)
        if s < 7
        else 0.1 * 0.1 ** ((s - 7 * second) // 3)
        for s in range(12)
    ]
    assert _rates(make) == pytest.approx(wanted)


def test_arguments_whose_order_differs() -> None:
    optimizer = _sgd()
    parts = [ours.StepLR(optimizer, 1), ours.StepLR(optimizer, 2)]
    for call in (
        lambda: ours.SequentialLR(optimizer, parts, [1], True),
        lambda: ours.CosineAnnealingWarmRestarts(optimizer, 2, 1, 0.0, 0.5),
        lambda: flow.optim.Adadelta([torch.nn.Parameter(X)], 0.1, 0.9, 1e-6, 0.0, True),
        lambda: flow.optim.Adam([torch.nn.Parameter(X)], 0.1, (0.9, 0.99), 1e-8, 0.0, False, True),
    ):
        with pytest.raises(TypeError, match="by name"):
            call()


def test_attributes_never_collide() -> None:
    for name in ("memory", "profile", "grad", "config", "name", "training", "build", "_state"):
        for value, other in ((nn.Linear(2, 2), f"{name.strip('_')}_module"), (3.0, "my_")):
            with pytest.raises(
                flow.GraphError,
                match=rf"test_oneflow_surface.py:\d+: Net\.{name} is a name.*another one, {other}",
            ):
                setattr(Net(), name, value)

    class Own(Net):
        memory = property(lambda self: "mine")

        def profile(self) -> str:
            return "mine"

    graph = Own()
    graph.step = nn.Linear(4, 2)
    assert (graph.memory, graph.profile()) == ("mine", "mine")
    assert graph(X).shape == (2, 4)
    with pytest.raises(flow.GraphError, match=r"Own\.__call__ is a name of gflow's graphs"):
        graph.__call__ = nn.Linear(2, 2)
    for name, value in (("memory", 3), ("config", property(lambda self: {}))):
        with pytest.raises(flow.GraphError, match=rf"Bad\.{name} is a name of gflow's graphs"):
            type("Bad", (Net,), {name: value})


def test_wrong_parameters_are_named() -> None:
    other = nn.Linear(3, 4)
    graph = Train(nn.Linear(3, 4), torch.optim.SGD(other.parameters(), 0.1))
    with pytest.warns(
        UserWarning,
        match=r"gave gradients to model\.weight, model\.bias; the optimizer has .*\[4, 3\]",
    ):
        graph(X)
    graph = Train(
        nn.ModuleList([nn.Linear(3, 4), other])[0], torch.optim.SGD(other.parameters(), 0.1)
    )
    graph.other = other
    with pytest.warns(
        UserWarning, match=r"the optimizer has other\.weight, other\.bias, which the loss does not"
    ):
        graph(X)


def test_names_of_blocks() -> None:
    graph = Net()
    block, tensor = graph.model[0].to(GraphModule), graph.model[0].weight.to(GraphTensor)
    assert (block.name_prefix, block.name, block.type) == ("model.", "0", "MODULE")
    assert (tensor.name_prefix, tensor.name, tensor.type) == ("model.0.", "weight", "PARAMETER")
    assert graph.model[1].running_mean.to(GraphTensor).type == "BUFFER"
    with pytest.raises(flow.GraphError, match="access through the graph's attribute"):
        _ = nn.Linear(1, 1).to(GraphModule).name
    block.set_stage(1, "cpu")
    assert block.stage_placement == "cpu"


def test_runtime_state_goes_on_with_the_modules_values(tmp_path: Path) -> None:
    graph = Net(enable_get_runtime_state_dict=True)
    x = torch.randn(5, 3)
    wanted = graph(x)
    flow.save(graph.runtime_state_dict(), tmp_path / "runtime")
    saved = flow.load(tmp_path / "runtime")
    bare = nn.Graph()
    bare.load_runtime_state_dict(saved)
    assert bare.is_compiled
    assert torch.equal(bare(x), wanted)
    other = Net()
    other.load_runtime_state_dict(saved)
    torch.testing.assert_close(other(x), other.model(x))
    other.model[0].weight.data.mul_(2)
    torch.testing.assert_close(other(x), other.model(x))
    assert not torch.allclose(other(x), wanted)
    for call, message in (
        (lambda: Net().runtime_state_dict(), "needs enable_save_runtime_state_dict"),
        (
            lambda: Net().load_runtime_state_dict(graph.state_dict()),
            "takes what runtime_state_dict",
        ),
        (lambda: graph.load_runtime_state_dict(saved), "not called yet"),
        (lambda: nn.Graph.runtime_state_dict_to(saved, "cuda:0"), "compiled for cpu"),
        (
            lambda: Net().load_runtime_state_dict({"files": {"../x": X}}),
            "takes what runtime_state_dict",
        ),
    ):
        with pytest.raises(flow.GraphError, match=message):
            call()


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_compile_returns_results(kind: str) -> None:
    model = nn.Linear(3, 2)
    graph = Train(model, getattr(torch.optim, kind)(model.parameters(), lr=0.1))
    graph.config.set_gradient_accumulation_steps(2, stack_scalars=True)
    assert graph._compile(torch.ones(4, 3)).shape == (2,)
    found = Net().build_graph(X)
    assert [t.shape for t in found] == [(2, 4), (2, 4)]


def test_stacked_losses(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    graph = Train(model, torch.optim.SGD(model.parameters(), lr=0.0))
    graph.config.set_gradient_accumulation_steps(2, stack_scalars=True)
    parts = torch.stack([model(part).square().mean() for part in x.split(2)])
    torch.testing.assert_close(graph(x), parts.detach())
    flow.save(graph, tmp_path / "graph")
    torch.testing.assert_close(flow.load(tmp_path / "graph")(x), parts.detach())
    graph.config.set_gradient_accumulation_steps(2)
    torch.testing.assert_close(graph(x), parts.mean().detach())


LOOK_UPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda w, i: w.gather(0, i[:, None].expand(-1, 3)),
    "index_select": lambda w, i: w.index_select(0, i),
    "w[i]": lambda w, i: w[i],
    "w[-i]": lambda w, i: w[-i - 1],
    "w[3]": lambda w, i: w[3],
    "w[i, j]": lambda w, i: w[i, i % 3],
    "two": lambda w, i: w[i] + 2 * w.index_select(0, i + 1),
}


class Table(nn.Module):
    def __init__(self, look: Any) -> None:
        super().__init__()
        self.weight, self.look = torch.nn.Parameter(torch.randn(6, 3)), look

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.look(self.weight, i)


@pytest.mark.parametrize("name", list(LOOK_UPS))
def test_sparse_look_ups(name: str) -> None:
    """Rows that no call has looked up keep their values, though weight decay and momentum would change them."""
    table = Table(LOOK_UPS[name])
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    graph, before = Train(table, optimizer, is_sparse=True), table.weight.detach().clone()
    used = torch.zeros(6, dtype=torch.bool)
    for index in ([1, 3, 3], [0, 1, 1]):
        i = torch.tensor(index)
        ones = torch.ones(6, 3, requires_grad=True)
        table.look(ones, i).sum().backward()
        assert ones.grad is not None
        used |= (ones.grad != 0).any(1)
        graph(i)
    changed = (table.weight != before).any(1)
    assert changed.tolist() == used.tolist()


@pytest.mark.parametrize(
    "look", [lambda w, i: w.gather(1, i[:, None] % 3), lambda w, i: w * 2], ids=["dim 1", "dense"]
)
def test_what_is_no_look_up_of_rows(look: Any) -> None:
    table = Table(look)
    with pytest.raises(flow.GraphError, match="looked up"):
        Train(table, torch.optim.SGD(table.parameters(), lr=0.1), is_sparse=True)(
            torch.tensor([1, 2])
        )


def test_functions_that_pytorch_lacks() -> None:
    a = torch.arange(9.0).view(3, 3)

    class Calls(nn.Graph):
        def build(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return (
                flow.cast(flow.square_relu(x), torch.float64),
                flow.gather_nd(x, i),
                flow.batch_gather(x, torch.tensor([1, 0])),
                flow.in_top_k(torch.tensor([2, 1, 0]), x, 2),
                flow.slice(x, [[0, 3, 2], [1, None, None]]),
                flow.scatter_nd(i, x[:2, 1], (3, 3)),
                flow.tensor_scatter_nd_update(x, i, x[:2, 0]),
                flow.slice_update(flow.new_ones(x), x[:1], [[1, 2, 1]]),
                flow.broadcast_like(x[0], flow.new_ones(x, (3, 4, 5)), [1, 2]),
            )

    found = Calls()(a, torch.tensor([[0, 2], [2, 1]]))
    wanted = [
        (a * a).double(),
        torch.tensor([2.0, 7.0]),
        a[[1, 0]],
        torch.tensor([True, True, False]),
        torch.tensor([[1.0, 2.0], [7.0, 8.0]]),
        torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 4, 0]]),
        torch.tensor([[0.0, 1, 0], [3, 4, 5], [6, 3, 8]]),
        torch.tensor([[1.0, 1, 1], [0, 1, 2], [1, 1, 1]]),
        torch.arange(3.0).view(3, 1, 1).expand(3, 4, 5),
    ]
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    nested = torch.arange(12.0).view(2, 2, 3)
    picked = flow.batch_gather(nested, torch.tensor([[1, 0], [0, 0]]))
    assert torch.equal(picked, torch.stack([nested[0, [1, 0]], nested[1, [0, 0]]]))
    x = torch.randn(2, 4)
    torch.testing.assert_close(nn.QuickGELU()(x), x * torch.sigmoid(1.702 * x))
    torch.testing.assert_close(nn.SquareReLU()(x), x.clamp(min=0) ** 2)
    torch.testing.assert_close(
        nn.RMSLayerNorm(4)(x), torch.nn.functional.rms_norm(x, (4,), eps=1e-6)
    )


def test_names_of_modules_in_build() -> None:
    """In `forward()`, `self.to(GraphModule)` knows the module's name in the graph that is traced, as in OneFlow."""
    seen = []

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            block = self.to(GraphModule)
            seen.append((block.name_prefix, block.name))  # type: ignore[attr-defined]
            return x + 1

    class Outer(nn.Graph):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.m = nn.Sequential(inner, nn.ReLU())

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.m(x)

    inner = Inner()
    graph = Outer(inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # build() changes `seen`
        graph(torch.ones(2))
    assert set(seen) == {("m.", "0")}
    with pytest.raises(flow.GraphAttributeError, match="outside of build"):
        inner.to(GraphModule).name  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (
            lambda x: x.to_global(None, None),
            "to_global is a function here: flow.to_global(x, placement, sbp)",
        ),
        (lambda x: x.cast(torch.float64), "cast is a function here: flow.cast(x, ...)"),
        (lambda x: x.is_lazy, "is_lazy is not there"),
        (lambda x: nn.Identity().to_global(), "to_global is a function here"),
        (lambda x: nn.functional.depend(x, x), "depend is not needed"),
        (lambda x: flow._C.matmul(x, x), "matmul is internal there: write flow.matmul"),
    ],
)
def test_missing_names_of_tensors_and_functions(wrong: Any, advice: str) -> None:
    """Tensors, modules and functions are PyTorch's: their AttributeError in `build()` says what to write instead."""

    class Wrong(nn.Graph):
        def build(self, x: torch.Tensor) -> Any:
            return wrong(x)

    with pytest.raises(AttributeError) as caught:
        Wrong()(torch.ones(2, 2))
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"OneFlow's {advice}" in said
