"""Pipeline schedules as lists of actions for each rank.

A pipeline of `ranks × v` stages assigns stage `s` to rank `s % ranks` (v virtual stages for each rank). A step has
`microbatches` micro-batches. All schedules have the same form: a warm-up of forwards, then forwards and backwards in
turn, then the remaining backwards. They differ in the length of the warm-up:

================  =======================================================================  ===========================
schedule          warm-up of rank r                                                        source
================  =======================================================================  ===========================
gpipe             all forwards                                                             Huang et al., 2019
1f1b              ranks - 1 - r                                                            Narayanan et al., 2019
interleaved       (v - 1) · round + 2 · (ranks - 1 - r)                                    Narayanan et al., 2021
zero-bubble       (v - 1) · round + ranks - 1 - r, weight gradients later by r backwards   Qi et al., 2023 (ZB-H1)
================  =======================================================================  ===========================

where a round is the number of micro-batches that a rank runs through one stage before it continues with its next stage:
`ranks`, or fewer if there are fewer micro-batches.

"zero-bubble" splits a backward into the gradient of the stage's input, `I`, which the previous stage needs, and the
gradients of its weights, `W`, which no other stage needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gflow.dialects.records import record

#: names of `schedule`
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


@record
class Action:
    """An action of a rank: a stage and a micro-batch.

    kind: "F": forward; "B": backward; or the parts of a backward: "I": the gradient of the input, "W": the gradients of
    the weights.
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """PyTorch's format of an action: `1F0` is the forward of micro-batch 0 in stage 1."""
        return f"{self.stage}{self.kind}{self.microbatch}"


def schedule(name: str, ranks: int, microbatches: int, per_rank: int = 1) -> list[list[Action]]:
    """The list of actions of each rank.

    Args:
        name: one of `SCHEDULES`.
        ranks: the number of ranks of the pipeline.
        microbatches: the number of micro-batches of a step.
        per_rank: the number of stages of a rank.

    Raises:
        ValueError: there is no such schedule, or it does not support these numbers.
    """
    _check(name, ranks, microbatches, per_rank)
    rounds = max(1, microbatches // ranks)
    return [
        _actions(name, r, ranks, microbatches, per_rank, microbatches // rounds)
        for r in range(ranks)
    ]


def _check(name: str, ranks: int, microbatches: int, per_rank: int) -> None:
    if name not in SCHEDULES:
        raise ValueError(f"no pipeline schedule {name!r}; known: {', '.join(SCHEDULES)}")
    if min(ranks, microbatches, per_rank) < 1:
        raise ValueError(
            f"a pipeline has at least one rank, micro-batch and stage a rank; got {ranks}, {microbatches}, {per_rank}"
        )
    if name in ("gpipe", "1f1b") and per_rank > 1:
        raise ValueError(
            f"{name!r} has one stage a rank, got {per_rank}; use 'interleaved' or 'zero-bubble' for more"
        )
    rounds = max(1, microbatches // ranks)
    if per_rank > 1 and microbatches % rounds:
        raise ValueError(
            f"{name!r} with {per_rank} stages a rank takes micro-batches in rounds of one length: {microbatches} "
            f"cannot be divided into {rounds}; use a multiple of {ranks}, the ranks of the pipeline"
        )


def _actions(
    name: str, rank: int, ranks: int, microbatches: int, per_rank: int, per_round: int
) -> list[Action]:
    units = microbatches * per_rank
    behind = ranks - 1 - rank
    rounds = (per_rank - 1) * per_round
    warmup = {
        "gpipe": units,
        "1f1b": behind,
        "interleaved": rounds + 2 * behind,
        "zero-bubble": rounds + behind,
    }[name]
    warmup = min(warmup, units)
    locals_ = [(k // per_round) % per_rank for k in range(units)]
    forwards = _numbered([local * ranks + rank for local in locals_])
    backwards = _numbered([(per_rank - 1 - local) * ranks + rank for local in locals_])
    split = name == "zero-bubble"
    found = [Action("F", *unit) for unit in forwards[:warmup]]
    for k in range(units):
        if warmup + k < units:
            found.append(Action("F", *forwards[warmup + k]))
        found.append(Action("I" if split else "B", *backwards[k]))
        if split and k >= rank:
            found.append(Action("W", *backwards[k - rank]))
    if split:
        found += [Action("W", *unit) for unit in backwards[max(0, units - rank) :]]
    return found


def _numbered(stages: Sequence[int]) -> list[tuple[int, int]]:
    """Each stage with the number of its earlier occurrences, which is the micro-batch."""
    seen: Counter[int] = Counter()
    found = []
    for stage in stages:
        found.append((stage, seen[stage]))
        seen[stage] += 1
    return found


def needs(action: Action, stages: int) -> list[Action]:
    """The actions that must have run before an action, on any rank. Schedules contain either "B", or "I" and "W"."""
    stage, mb = action.stage, action.microbatch
    match action.kind:
        case "F":
            return [Action("F", stage - 1, mb)] if stage else []
        case "W":
            return [Action("I", stage, mb)]
        case _:
            before = [Action("F", stage, mb)]
            return [*before, Action(action.kind, stage + 1, mb)] if stage + 1 < stages else before


def alive(actions: Sequence[Action]) -> int:
    """The greatest number of (stage, micro-batch) pairs whose activations a rank keeps at the same time."""
    now = most = 0
    for action in actions:
        now += {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
        most = max(most, now)
    return most
