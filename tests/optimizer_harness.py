"""Optimizers of PyTorch, timm, schedulefree, torch_optimizer and pytorch_optimizer, in a graph and eagerly in float64.

`scripts/optimizer_report.py` runs all of them; `tests/test_third_party_optimizers.py` a share.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn, optim

import gflow

LIBRARIES = ("torch.optim", "timm", "schedulefree", "torch_optimizer", "pytorch_optimizer")
STEPS = 30
Make = Callable[[list[dict[str, Any]]], Any]


@dataclass(frozen=True)
class Case:
    """name: as people write it; make: the optimizer of some parameter groups; schedule: of `SCHEDULES`;
    narrow: why it computes in less than float64, so that results agree to less."""

    library: str
    name: str
    make: Make
    schedule: str = "warm-up, cosine"
    narrow: str = ""
    matrices: bool = False  # for parameters of two dimensions only
    embedding: bool = False

    @property
    def id(self) -> str:
        return f"{self.library}: {self.name}"


@dataclass(frozen=True)
class Result:
    """error: the greatest difference to eager, relative to the largest value of the tensor; None where it
    was refused, or cannot be made here, for `reason`. variants: programs that were compiled. noise: the error of eager
    itself with gradients that are rounded otherwise, of an optimizer that computes in bfloat16."""

    error: float | None
    variants: int = 0
    refused: str = ""
    absent: str = ""
    noise: float = 0.0


class Model(nn.Module):
    """Parameters of one, two and four dimensions; the gradient of none is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.tanh(self.conv(x))).mean((2, 3))) * self.scale


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(9, 3, sparse=True), nn.Embedding(5, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table(x) + self.other(x % 5)).sum(1)


class Train(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any, schedule: Any = None) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss


def _cosine(optimizer: Any) -> Any:
    schedulers = optim.lr_scheduler
    return schedulers.SequentialLR(
        optimizer,
        [
            schedulers.LinearLR(optimizer, 0.1, total_iters=5),
            schedulers.CosineAnnealingLR(optimizer, 20),
        ],
        [5],
    )


def _timm(optimizer: Any) -> Any:
    from timm.scheduler import CosineLRScheduler

    return CosineLRScheduler(optimizer, 30, warmup_t=5, warmup_lr_init=1e-4, t_in_epochs=False)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "warm-up, cosine": _cosine,
    "steps": lambda o: optim.lr_scheduler.StepLR(o, 7, 0.5),
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=40),
    "timm's warm-up, cosine": _timm,
    "its own": lambda o: None,
}


def groups(case: Case, model: Any) -> list[dict[str, Any]]:
    """Two parameter groups with different learning rates."""
    if case.embedding:
        return [{"params": [model.table.weight]}, {"params": [model.other.weight], "lr": 0.003}]
    if case.matrices:
        return [{"params": [model.head.weight]}]
    some = [model.conv.weight, model.head.weight]
    rest = [p for p in model.parameters() if all(p is not q for q in some)]
    return [{"params": some}, {"params": rest, "lr": 0.004}]


def run(case: Case, steps: int = STEPS) -> Result:
    """Train both ways."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(case, steps)
    finally:
        torch.set_default_dtype(default)


def _run(case: Case, steps: int) -> Result:
    torch.manual_seed(0)
    model: Any = Words() if case.embedding else Model()
    other = copy.deepcopy(model)
    try:
        optimizer, reference = case.make(groups(case, model)), case.make(groups(case, other))
    except (AssertionError, ImportError, RuntimeError, ValueError) as error:
        return Result(None, absent=str(error))
    for o in (optimizer, reference):
        getattr(o, "train", lambda: None)()
    by_hand = case.schedule.startswith("timm")
    try:
        mine, theirs = (SCHEDULES[case.schedule](o) for o in (optimizer, reference))
        graph = Train(model, optimizer, None if by_hand else mine)
        generator = torch.Generator().manual_seed(1)
        for i in range(steps):
            if case.embedding:
                x = torch.randint(0, 9, (4, 3), generator=generator)
            else:
                x = torch.randn(4, 2, 5, 5, generator=generator)
            y = torch.randn(4, 3, generator=generator)
            graph(x, y)
            reference.zero_grad()
            ((other(x) - y) ** 2).mean().backward()
            reference.step()
            if by_hand:
                mine.step_update(i + 1)
            if theirs is not None:
                theirs.step_update(i + 1) if by_hand else theirs.step()
    except gflow.GraphError as error:
        return Result(None, refused=reason(error))
    except Exception as error:
        if _eager_error(case) is type(error):
            return Result(
                None, absent=f"PyTorch itself raises {type(error).__name__}: {reason(error)}"
            )
        raise
    noise = 0.0
    if case.narrow == _ORTHOGONAL:
        noise = max(_distance(_rounded(case, steps, seed), (other, reference)) for seed in (1, 2))
    error = _distance((model, optimizer), (other, reference))
    return Result(error, len(graph._state.plans), noise=noise)


def _distance(found: tuple[Any, Any], wanted: tuple[Any, Any]) -> float:
    """The greatest difference of parameters and states, of a model and its optimizer."""
    pairs = []
    for p, q in zip(found[0].parameters(), wanted[0].parameters()):
        pairs.append((p, q))
        entry, expected = found[1].state.get(p, {}), wanted[1].state.get(q, {})
        pairs += [
            (entry[k], v)
            for k, v in expected.items()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
        ]
    return max(difference(a, b) for a, b in pairs)


def _rounded(case: Case, steps: int, seed: int) -> tuple[Any, Any]:
    """A model trained eagerly, whose gradients are off by half a unit in the last place of bfloat16."""
    torch.manual_seed(0)
    model = Model()
    optimizer = case.make(groups(case, model))
    schedule = SCHEDULES[case.schedule](optimizer)
    generator, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(seed)
    for i in range(steps):
        x = torch.randn(4, 2, 5, 5, generator=generator)
        y = torch.randn(4, 3, generator=generator)
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        for p in model.parameters():
            assert p.grad is not None
            sign = 2 * torch.randint(0, 2, p.shape, generator=noise) - 1
            p.grad.mul_(1 + sign * torch.finfo(torch.bfloat16).eps / 4)
        optimizer.step()
        schedule.step_update(i + 1) if case.schedule.startswith("timm") else schedule.step()
    return model, optimizer


def _eager_error(case: Case) -> type | None:
    """What one eager step raises."""
    torch.manual_seed(0)
    model: Any = Words() if case.embedding else Model()
    optimizer = case.make(groups(case, model))
    x = torch.randint(0, 9, (4, 3)) if case.embedding else torch.randn(4, 2, 5, 5)
    model(x).sum().backward()
    try:
        optimizer.step()
    except Exception as error:
        return type(error)
    return None


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    with torch.no_grad():
        if expected.numel() == 0 or torch.equal(found, expected):
            return 0.0
        return ((found - expected).abs().max() / expected.abs().max()).item()


def reason(error: Exception) -> str:
    """A refusal without the place that it comes from."""
    text = re.sub(r"^\S+:\d+: ", "", str(error).splitlines()[0])
    text = re.sub(r"/\S+/site-packages/", "", text)
    return re.sub(r"optimizer\.0 \(\w+\): ", "", text).split(". ")[0].rstrip(".")


def cases() -> list[Case]:
    """All of them."""
    return [*_torch(), *_timm_cases(), *_schedulefree(), *_torch_optimizer(), *_pytorch_optimizer()]


_ORTHOGONAL = "its orthogonalization is in bfloat16"
#: gradients that differ by 1e-17 change eager's parameters by 5e-9
_CANCELS = "its factor is a difference of like sums"
_ADAM: list[dict[str, Any]] = [
    {}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True}, {"foreach": True}, {"fused": True},
    {"capturable": True, "foreach": True}, {"amsgrad": True, "weight_decay": 0.1, "maximize": True},
]  # fmt: skip
_DECOUPLED = {"weight_decay": 0.1, "decoupled_weight_decay": True}
_DECAY, _EACH, _UP = {"weight_decay": 0.1}, {"foreach": True}, {"maximize": True}
_MOMENTUM: dict[str, Any] = {"momentum": 0.9}
#: the options of PyTorch's optimizers that are tried
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adam": [*_ADAM, _DECOUPLED, {"differentiable": True}],
    "AdamW": _ADAM,
    "SGD": [
        {}, _MOMENTUM, _MOMENTUM | {"nesterov": True}, _MOMENTUM | {"dampening": 0.5}, _DECAY, _UP,
        _MOMENTUM | _EACH, _MOMENTUM | {"fused": True},
    ],
    "NAdam": [{}, _DECOUPLED, _EACH, _UP],
    "RAdam": [{}, _DECOUPLED, _EACH, _UP],
    "Adamax": [{}, _DECAY, _EACH, _UP],
    "Adagrad": [{}, {"lr_decay": 0.1} | _DECAY, _EACH, {"initial_accumulator_value": 0.1}],
    "Adadelta": [{}, _DECAY, _EACH, _UP],
    "RMSprop": [{}, {"centered": True} | _MOMENTUM, _EACH, _DECAY, _UP],
    "Rprop": [{}, _EACH, _UP],
    "ASGD": [{}, {"t0": 3} | _DECAY, _EACH, _UP],
    "Adafactor": [{}, _EACH, _DECAY | _UP],
}  # fmt: skip


def _torch() -> list[Case]:
    def case(name: str, words: str, options: dict[str, Any], **kind: Any) -> Case:
        def make(groups: list[dict[str, Any]]) -> Any:
            return getattr(optim, name)(groups, **({"lr": 0.01} | copy.deepcopy(options)))

        return Case("torch.optim", f"{name}({words})" if words else name, make, **kind)

    found = [
        case(name, ", ".join(f"{k}={v}" for k, v in options.items()), options)
        for name, every in _OPTIONS.items()
        for options in every
    ]
    found += [
        case(n, "tensor lr", {"lr": torch.tensor(0.01)}, schedule="steps")
        for n in ("Adam", "AdamW")
    ]
    for name, options in (("Adam", {}), ("SGD", _MOMENTUM)):
        found.append(
            case(name, "OneCycleLR, which changes momentum", options, schedule="one cycle")
        )
    found.append(case("SparseAdam", "", {}, embedding=True))
    found.append(Case("torch.optim", "LBFGS", lambda g: optim.LBFGS(g[0]["params"])))
    if hasattr(optim, "Muon"):
        found.append(case("Muon", "", {}, matrices=True, narrow=_ORTHOGONAL))
    return found


def _timm_cases() -> list[Case]:
    import timm.optim

    names = [
        *timm.optim.list_optimizers(),
        *(f"lookahead_{n}" for n in ("sgd", "adam", "adamw", "radam", "radamlegacy")),
    ]
    return [
        Case(
            "timm",
            name,
            lambda g, name=name: timm.optim.create_optimizer_v2(g, opt=name, lr=0.01),
            "timm's warm-up, cosine",
            _narrow_timm(name),
        )
        for name in names
    ]  # fmt: skip


def _narrow_timm(name: str) -> str:
    if name.endswith("radamlegacy"):
        return "it computes in float32"
    return _ORTHOGONAL if "muon" in name else ""


def _schedulefree() -> list[Case]:
    import schedulefree

    found = []
    for name in sorted(n for n in dir(schedulefree) if "ScheduleFree" in n):
        kind = getattr(schedulefree, name)
        if "Wrapper" in name:
            make: Make = lambda g, kind=kind: kind(optim.SGD(g, lr=0.01))  # noqa: E731
        elif "RAdam" in name:
            make = lambda g, kind=kind: kind(g, lr=0.01)  # noqa: E731
        else:
            make = lambda g, kind=kind: kind(g, lr=0.01, warmup_steps=6)  # noqa: E731
        found.append(Case("schedulefree", name, make, "its own"))
    return found


def _torch_optimizer() -> list[Case]:
    import torch_optimizer

    narrow = ("RAdam", "Ranger", "RangerVA")
    found = []
    for name in torch_optimizer.__all__:
        if name == "get":
            continue
        kind = getattr(torch_optimizer, name)
        make: Make = lambda g, kind=kind: kind(g, lr=0.01)  # noqa: E731
        if name == "Lookahead":
            make = lambda g, kind=kind: kind(optim.Adam(g, lr=0.01), k=4)  # noqa: E731
        reason = "it computes in float32" if name in narrow else ""
        found.append(Case("torch_optimizer", name, make, "steps", reason))
    return found


#: what optimizers of pytorch_optimizer need to be made
_NEEDED: dict[str, dict[str, Any]] = {"bsam": {"num_data": 100}, "ranger21": {"num_iterations": 30}}
#: those whose orthogonalization is in bfloat16
_IN_BFLOAT16 = (
    "adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon", "scion", "scionlight",
)  # fmt: skip
#: those that ask of a group whether they orthogonalize its updates
_ASKING = {"adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon"}
#: those that take a module, and those without a learning rate
_OF_MODULES, _RATELESS = {"adalomo", "adammini", "lomo"}, {"a2grad", "alig"}


def _pytorch_optimizer() -> list[Case]:
    import pytorch_optimizer

    def make(groups: list[dict[str, Any]], name: str) -> Any:
        kind = pytorch_optimizer.load_optimizer(name)
        if name in _ASKING:
            groups = [group | {"use_muon": n == 0} for n, group in enumerate(groups)]
        rate = {} if name in _RATELESS else {"lr": 0.01}
        return kind(groups, **rate, **_NEEDED.get(name, {}))

    return [
        Case(
            "pytorch_optimizer",
            name,
            partial(make, name=name),
            "its own" if name in _RATELESS else "steps",
            _ORTHOGONAL if name in _IN_BFLOAT16 else _CANCELS if name == "kate" else "",
        )
        for name in pytorch_optimizer.get_supported_optimizers()
        if name not in _OF_MODULES and name != "lbfgs"  # PyTorch's, above
    ]


TOLERANCE = {"": 1e-10, "it computes in float32": 1e-5, _CANCELS: 1e-7}


def tolerance(case: Case, result: Result) -> float:
    """How far a graph may be from eager. An iteration in bfloat16 amplifies rounding: as far as twice what eager is
    from itself when gradients are rounded otherwise."""
    return 2 * result.noise if case.narrow == _ORTHOGONAL else TOLERANCE[case.narrow]
