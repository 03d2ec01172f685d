"""Pipeline schedules beside PyTorch's, and their bubbles and activations beside the papers' formulas."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.distributed.stage_events import Stage, stage_events
from gflow.compiler.distribution.network import Group
from gflow.compiler.distribution.pipeline import SCHEDULES, Action, alive, needs, schedule
from gflow.compiler.distribution.simulator import simulate
from gflow.compiler.targets.links import NETWORKS

_THEIRS = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}


def _cases() -> list[tuple[str, int, int, int]]:
    found = []
    for name, ranks, microbatches, per_rank in product(
        SCHEDULES, (1, 2, 3, 4, 8), (1, 2, 4, 6, 8, 16), (1, 2, 3)
    ):
        try:
            schedule(name, ranks, microbatches, per_rank)
        except ValueError:
            continue
        found.append((name, ranks, microbatches, per_rank))
    return found


def test_as_pytorch_has_them() -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    compared = 0
    for name, ranks, microbatches, per_rank in _cases():
        if ranks == 1 or microbatches < ranks or (per_rank == 1) != (name in ("gpipe", "1f1b")):
            continue  # PyTorch has none for these
        theirs = get_schedule_ops(
            _THEIRS[name], ranks, microbatches, num_stages_per_rank=per_rank, with_comms=False
        )
        ours = schedule(name, ranks, microbatches, per_rank)
        # PyTorch's last rank of 1F1B begins with micro-batch 1 in this list, which it does not when it runs
        for rank in range(ranks - (name == "1f1b")):
            shown = [str(a) for a in theirs[rank] if a is not None]
            assert [str(a) for a in ours[rank]] == [a for a in shown if "REDUCE" not in a]
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_unit_runs_once_and_after_what_it_needs(name: str) -> None:
    for case in _cases():
        if case[0] != name:
            continue
        _, ranks, microbatches, per_rank = case
        lists = schedule(*case)
        stages = ranks * per_rank
        kinds = "FIW" if name == "zero-bubble" else "FB"
        assert sorted(str(a) for actions in lists for a in actions) == sorted(
            f"{s}{k}{m}" for s in range(stages) for k in kinds for m in range(microbatches)
        )
        done: set[Action] = set()
        left = [list(actions) for actions in lists]
        while any(left):
            ready = [x for x in left if x and done.issuperset(needs(x[0], stages))]
            assert ready, f"{case}: deadlock"
            done.update(x.pop(0) for x in ready)


def _simulated(name: str, ranks: int, microbatches: int, per_rank: int = 1, sent: int = 0):
    lists = schedule(name, ranks, microbatches, per_rank)
    share = 1.0 / per_rank
    stage = Stage({"F": share, "B": 2 * share, "I": share, "W": share}, sent)
    network = NETWORKS["h100"].calibrated(0.0, 370e9)
    return simulate(stage_events(lists, [stage] * (ranks * per_rank), network, Group(2, 2)))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 8), (8, 32)])
def test_bubbles_are_the_formulas(ranks: int, microbatches: int) -> None:
    bubble = (ranks - 1) / (microbatches + ranks - 1)
    for name in ("gpipe", "1f1b"):
        line = _simulated(name, ranks, microbatches)
        assert line.idle("rank 0") == pytest.approx(bubble)
        assert line.idle(f"rank {ranks - 1}") == pytest.approx(bubble)
    for v in (2, 3):
        interleaved = (ranks - 1) / (v * microbatches + ranks - 1)
        assert _simulated("interleaved", ranks, microbatches, v).idle("rank 0") == pytest.approx(
            interleaved
        )
    zero = _simulated("zero-bubble", ranks, microbatches)
    assert zero.idle("rank 0") <= bubble / 2 + 1e-9


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 8), (8, 32)])
def test_1f1b_keeps_as_many_microbatches_as_ranks(ranks: int, microbatches: int) -> None:
    lists = schedule("1f1b", ranks, microbatches)
    assert [alive(actions) for actions in lists] == [ranks - r for r in range(ranks)]
    assert [alive(a) for a in schedule("gpipe", ranks, microbatches)] == [microbatches] * ranks
    split = schedule("zero-bubble", ranks, microbatches)
    assert max(alive(actions) for actions in split) <= ranks


def test_messages_take_time_and_are_counted() -> None:
    slow = _simulated("1f1b", 4, 8, sent=37 * 10**9)  # 0.1 s each
    assert slow.seconds > _simulated("1f1b", 4, 8).seconds + 0.5
    assert slow.sent == {f"rank {r}": 37 * 10**9 * 8 * (1 if r in (0, 3) else 2) for r in range(4)}


def test_errors_say_what_would_do() -> None:
    with pytest.raises(ValueError, match="known: gpipe, 1f1b"):
        schedule("one-forward", 2, 2)
    with pytest.raises(ValueError, match="one stage a rank, got 2; use 'interleaved'"):
        schedule("1f1b", 2, 2, 2)
    with pytest.raises(ValueError, match="use a multiple of 4"):
        schedule("interleaved", 4, 9, 2)
