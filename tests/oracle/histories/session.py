"""A session as data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..settings import OPTIMIZERS, SCHEDULES
from .nets import BLOCKS, RARE
from .programs import REACH, READS, RETURNS

Json = Any

#: entry point → weight. train: an nn.Graph with optimizers; graph: one without; compile: gflow.compile, with the user's
#: own backward and optimizer; dynamo: torch.compile(backend="gflow")
ENTRIES = {"train": 45, "graph": 20, "compile": 30, "dynamo": 2}


@dataclass(frozen=True)
class Action:
    """A key of `KINDS` with its arguments."""

    name: str
    args: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """blocks: of the network. reach, reads, returns: see `programs`. optimizers: names in `torch.optim` with keyword
    arguments; several share the parameters among each other. clip: `clip_grad_max_norm` of the groups, or None."""

    seed: int
    entry: str = "graph"
    blocks: tuple[str, ...] = ("linear",)
    reach: str = "closure"
    reads: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    dtype: str = "float64"
    optimizers: tuple[tuple[str, Mapping[str, Json]], ...] = ()
    schedule: tuple[str, Mapping[str, Json]] | None = None
    scaler: bool = False
    clip: float | None = None
    actions: tuple[Action, ...] = ()


def to_json(session: Session) -> str:
    return json.dumps(asdict(session))


def from_json(text: str) -> Session:
    data = json.loads(text)
    for name in ("blocks", "reads", "returns"):
        data[name] = tuple(data[name])
    data["optimizers"] = tuple((n, k) for n, k in data["optimizers"])
    data["schedule"] = data["schedule"] and tuple(data["schedule"])
    data["actions"] = tuple(Action(**a) for a in data["actions"])
    return Session(**data)


def text(session: Session) -> str:
    """The session to be read: its settings, then an action a line."""
    own = {k: v for k, v in vars(session).items() if k != "actions" and v not in ((), None, False)}
    lines = [", ".join(f"{k}={v!r}" for k, v in own.items())]
    for i, a in enumerate(session.actions):
        lines.append(f"{i:3}: {a.name}({', '.join(f'{k}={v!r}' for k, v in a.args.items())})")
    return "\n".join(lines)


# -- kinds of actions

Draw = Callable[[random.Random], Json]


@dataclass(frozen=True)
class Kind:
    """do: what the action does to a world. draws: argument → what it is chosen from, or what draws it."""

    do: Callable[..., None]
    draws: Mapping[str, tuple[Json, ...] | Draw]
    weight: float

    def drawn(self, rng: random.Random) -> dict[str, Json]:
        return {k: d(rng) if callable(d) else rng.choice(d) for k, d in self.draws.items()}


KINDS: dict[str, Kind] = {}


def action(
    name: str, weight: float = 1.0, **draws: tuple[Json, ...] | Draw
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a kind of action."""

    def register(do: Callable[..., None]) -> Callable[..., None]:
        KINDS[name] = Kind(do, draws, weight)
        return do

    return register


def number(rng: random.Random) -> int:
    """Which one, of as many as there are when the action takes place; also a seed."""
    return rng.randrange(10_000)


# -- drawing


def _few(rng: random.Random, names: tuple[str, ...], chance: float) -> tuple[str, ...]:
    return tuple(n for n in names if rng.random() < chance)


def draw(seed: int) -> Session:
    """The session of a seed."""
    from . import actions, calls, settings  # noqa: F401  (they register the kinds)

    rng = random.Random(seed)
    entry = rng.choices(list(ENTRIES), list(ENTRIES.values()))[0]
    names = [b for b in BLOCKS if b not in RARE or rng.random() < 0.2]
    blocks = tuple(rng.choice(names) for _ in range(rng.choice((1, 2, 2, 3))))
    optimizers: list[tuple[str, dict[str, Any]]] = []
    schedule = None
    if entry == "train" or (entry in ("compile", "dynamo") and rng.random() < 0.6):
        for _ in range(1 if rng.random() < 0.85 else 2):
            name = rng.choice(("SGD", "Adam", "AdamW", *OPTIMIZERS))
            drawn = {k: rng.choice(v) for k, v in OPTIMIZERS[name].items() if rng.random() < 0.6}
            if drawn.get("nesterov"):
                drawn["momentum"] = 0.9
            optimizers.append((name, drawn))
        schedule = rng.choice(SCHEDULES) if rng.random() < 0.4 else None
    others = [k for k in KINDS if k != "call"]
    weights = [KINDS[k].weight for k in others]
    steps: list[Action] = []
    base = KINDS["call"].drawn(rng)
    for _ in range(rng.choice((3, 4, 5, 6))):
        steps.append(Action("call", _like(base, rng)))
        for name in rng.choices(others, weights, k=rng.choice((1, 1, 2, 3))):
            steps.append(Action(name, KINDS[name].drawn(rng)))
    steps.append(Action("call", _like(base, rng)))
    return Session(
        seed,
        entry,
        blocks,
        rng.choice(REACH),
        _few(rng, READS, 0.12),
        _few(rng, RETURNS, 0.12),
        rng.choices(("float64", "float32", "bfloat16"), (64, 33, 3))[0],
        tuple(optimizers),
        schedule,
        entry == "train" and rng.random() < 0.1,
        rng.choice((0.1, 1.0)) if optimizers and rng.random() < 0.15 else None,
        tuple(steps),
    )


def _like(base: dict[str, Json], rng: random.Random) -> dict[str, Json]:
    """The session's usual call with other values, and seldom with something else besides."""
    drawn = KINDS["call"].drawn(rng)
    other = rng.sample(sorted(base), rng.choice((1, 2))) if rng.random() < 0.3 else ()
    return {**base, "values": drawn["values"], **{k: drawn[k] for k in other}}
