"""How a program is run: entry point, switches, optimizer, AMP. All data."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: entry point → weight. graph: an nn.Graph without an optimizer; graph_grad: with
#: `torch.autograd.grad` in `build()`; compile: gflow.compile without gradients; compile_grad: with a
#: backward; train: an nn.Graph with an optimizer; dynamo, dynamo_grad: torch.compile(backend="gflow").
MODES = {
    "graph": 40, "graph_grad": 16, "compile": 10, "compile_grad": 12, "train": 18, "dynamo": 0.6,
    "dynamo_grad": 0.6,
}  # fmt: skip
#: the same for programs with what surrounds ops
MODES_OF_STRUCTURES = {
    "graph": 10, "graph_grad": 30, "compile": 5, "compile_grad": 20, "train": 15, "dynamo": 5, "dynamo_grad": 15,
}  # fmt: skip
WITH_GRADIENTS = ("graph_grad", "compile_grad", "train", "dynamo_grad")


@dataclass(frozen=True)
class Settings:
    """mode: a key of MODES. calls: how many calls, each with other values. switches: methods of
    `graph.config` with their arguments. optimizer, schedule: names in `torch.optim` with keyword arguments.
    autocast: a dtype, or "". checkpoint: activation checkpointing of the module. threads: of kernels.
    pipeline: a name in PIPELINES. sizes: by call, the size of inputs that is the first of these in the first call.
    others: the same of another size, that varies on its own."""

    mode: str = "graph"
    calls: int = 2
    switches: Mapping[str, Any] = field(default_factory=dict)
    optimizer: tuple[str, Mapping[str, Any]] = ("SGD", {"lr": 0.1})
    schedule: tuple[str, Mapping[str, Any]] | None = None
    autocast: str = ""
    amp: str = ""
    checkpoint: bool = False
    threads: int = 2
    pipeline: str = ""
    sizes: tuple[int, ...] = ()
    others: tuple[int, ...] = ()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Settings:
        schedule = data["schedule"]
        return Settings(
            **{
                **data,
                "optimizer": tuple(data["optimizer"]),
                "schedule": schedule and tuple(schedule),
                "sizes": tuple(data.get("sizes", ())),
                "others": tuple(data.get("others", ())),
            }
        )

    @property
    def grad(self) -> bool:
        return self.mode in WITH_GRADIENTS


#: pipelines by name; "" is the default
PIPELINES = {
    "as written": "builtin.module(func.func(gflow-fuse{max-ops=1 epilogues=false},"
    "gflow-materialize,gflow-select-kernels,gflow-plan-memory))",
    "fuse": "builtin.module(func.func(gflow-fuse,gflow-schedule,gflow-materialize,"
    "gflow-select-kernels,gflow-plan-memory))",
    "simplify, fuse": "builtin.module(func.func(gflow-simplify,cse,gflow-fuse,gflow-schedule,"
    "gflow-materialize,gflow-select-kernels,gflow-plan-memory))",
    "layout": "builtin.module(func.func(gflow-assign-layout,gflow-fuse,gflow-schedule,"
    "gflow-materialize,gflow-select-kernels,gflow-plan-memory))",
}

#: switch of `graph.config` → arguments to choose from
SWITCHES: dict[str, tuple[Any, ...]] = {
    "enable_straighten_algorithm": (
        "MemoryFirst", "SpeedFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu",
    ),
    "allow_fuse_add_to_output": (True, False),
    "allow_fuse_cast_scale": (True, False),
    "allow_fuse_model_update_ops": (True, False),
    "enable_multi_tensor_update": (True, False),
    "enable_attention_recognition": (True, False),
    "enable_compress_memory": (True, False),
    "enable_choose_best_memory_allocation": (True,),
    "set_memory_budget": (1.0,),
    "set_outputs_buffer_size": (0, 1),
}  # fmt: skip

#: optimizer → draws of its arguments
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"lr": (0.1, 0.01), "momentum": (0.0, 0.9), "nesterov": (False, True),
            "weight_decay": (0.0, 0.01), "maximize": (False, True), "foreach": (None, False)},
    "Adam": {"lr": (0.01,), "weight_decay": (0.0, 0.01), "amsgrad": (False, True),
             "betas": ([0.9, 0.999], [0.5, 0.9]), "foreach": (None, False)},
    "AdamW": {"lr": (0.01,), "weight_decay": (0.0, 0.1), "amsgrad": (False, True),
              "foreach": (None, False)},
    "RMSprop": {"lr": (0.01,), "momentum": (0.0, 0.9), "centered": (False, True)},
    "Adagrad": {"lr": (0.05,), "lr_decay": (0.0, 0.1), "weight_decay": (0.0, 0.01)},
    "Adadelta": {"rho": (0.9, 0.5), "weight_decay": (0.0, 0.01)},
    "Adamax": {"lr": (0.01,), "weight_decay": (0.0, 0.01)},
    "NAdam": {"lr": (0.01,), "momentum_decay": (0.004, 0.1), "decoupled_weight_decay": (False, True)},
    "RAdam": {"lr": (0.01,), "weight_decay": (0.0, 0.01), "decoupled_weight_decay": (False, True)},
    "ASGD": {"lr": (0.05,), "lambd": (0.0001, 0.01)},
    "Rprop": {"lr": (0.01,)},
}  # fmt: skip

#: schedule of `torch.optim.lr_scheduler` → its arguments
SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("StepLR", {"step_size": 2, "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.8}),
    ("CosineAnnealingLR", {"T_max": 5}),
    ("LinearLR", {"start_factor": 0.25, "total_iters": 3}),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 20}),
    ("ConstantLR", {"factor": 0.3, "total_iters": 2}),
    ("PolynomialLR", {"total_iters": 4, "power": 2.0}),
)


def random_settings(rng: random.Random, modes: Mapping[str, float] = MODES) -> Settings:
    """A draw. modes: entry point → weight. Most programs have few switches, so that a find has few suspects."""
    mode = rng.choices(list(modes), list(modes.values()))[0]
    graph = mode in ("graph", "graph_grad", "train")
    switches = {}
    if graph and rng.random() < 0.4:
        for name in rng.sample(list(SWITCHES), rng.randint(1, 3)):
            if name != "set_memory_budget" or rng.random() < 0.3:
                switches[name] = rng.choice(SWITCHES[name])
    optimizer: tuple[str, dict[str, Any]] = ("SGD", {"lr": 0.1})
    schedule = None
    if mode == "train":
        name = rng.choice(list(OPTIMIZERS))
        drawn = {k: rng.choice(v) for k, v in OPTIMIZERS[name].items() if rng.random() < 0.7}
        if drawn.get("nesterov"):
            drawn["momentum"] = 0.9
        optimizer = (name, drawn)
        if rng.random() < 0.3:
            schedule = rng.choice(SCHEDULES)
    pipeline = ""
    if mode in ("graph", "compile") and not switches and rng.random() < 0.25:
        pipeline = rng.choice(list(PIPELINES))
    return Settings(
        mode=mode,
        calls=rng.choice((2, 3, 4)) if mode == "train" else rng.choice((1, 2, 2, 3)),
        switches=switches,
        optimizer=optimizer,
        schedule=schedule,
        autocast=rng.choice(("bfloat16", "float16")) if rng.random() < 0.04 else "",
        amp=rng.choice(("bfloat16", "float16")) if graph and rng.random() < 0.04 else "",
        checkpoint=mode == "train" and rng.random() < 0.15,
        threads=rng.choice((1, 2)),
        pipeline=pipeline,
    )
