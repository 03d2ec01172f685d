"""The events of a pipeline: its action lists, with what each stage takes and sends, for the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gflow.compiler.distribution.network import Group, seconds
from gflow.compiler.distribution.pipeline import Action, needs
from gflow.compiler.distribution.simulator import COMPUTE, START, WAIT, Event
from gflow.compiler.targets.links import Network


@dataclass(frozen=True)
class Stage:
    """What one micro-batch costs in a stage.

    Attributes:
        seconds: by kind of action: "F", "B", or its halves "I" and "W".
        sent: bytes of the activations that go to the next stage; their gradients come back with as many.
    """

    seconds: Mapping[str, float]
    sent: int = 0


def stage_events(
    lists: Sequence[Sequence[Action]], stages: Sequence[Stage], network: Network, between: Group
) -> dict[str, list[Event]]:
    """The events of each rank of a pipeline; ranks are called "rank 0", "rank 1", …

    Args:
        lists: the actions of each rank, of `pipeline.schedule`.
        stages: of the whole pipeline, in order.
        between: two neighbouring ranks, as a group of two.
    """
    rank_of = {a.stage: r for r, actions in enumerate(lists) for a in actions}
    found: dict[str, list[Event]] = {}
    for rank, actions in enumerate(lists):
        events: list[Event] = []
        for action in actions:
            for source in needs(action, len(stages)):
                if rank_of[source.stage] != rank:
                    events.append(Event(WAIT, f"{source}", collective=_message(source, action)))
            events.append(Event(COMPUTE, str(action), stages[action.stage].seconds[action.kind]))
            target = _receiver(action, len(stages))
            if target is not None and rank_of[target.stage] != rank:
                nbytes = stages[min(action.stage, target.stage)].sent
                took = seconds("send", between, nbytes, network)
                links = "forward" if action.kind == "F" else "back"
                name = _message(action, target)
                events.append(Event(START, f"{action}", took, name, links=links, nbytes=nbytes))
        found[f"rank {rank}"] = events
    return found


def _message(source: Action, target: Action) -> str:
    """The name of what a stage sends to a neighbour, whose buffer is planned, so that it may come at any time."""
    return f"{source} to {target}"


def _receiver(action: Action, stages: int) -> Action | None:
    """The action of another stage that waits for this one."""
    step = {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
    stage = action.stage + step
    return Action(action.kind, stage, action.microbatch) if step and 0 <= stage < stages else None
