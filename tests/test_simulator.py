"""The model of networks beside PyTorch's, and the event simulation on cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gflow.compiler.distribution.network import Group, group_of, seconds, sent
from gflow.compiler.distribution.simulator import COMPUTE, START, WAIT, Deadlock, Event, simulate
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.reports.timeline import step_on_ranks
from gflow.compiler.targets import DEVICES
from gflow.compiler.targets.links import NETWORKS
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_seconds_are_ncclss_within_a_node(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import comm_analysis as theirs

    monkeypatch.setattr(theirs, "get_gpu_type", lambda: theirs.NVIDIA_GPU_TYPE.HOPPER)
    monkeypatch.setattr(theirs, "_has_nvlink", lambda: True)
    for size in (2, 4, 8):
        for nbytes in (1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30):
            coll = theirs.NCCL_COLL[kind.upper()]
            expected = theirs.estimate_nccl_collective_runtime_impl(nbytes, size, coll) / 1e3
            found = seconds(kind, Group(size, size), nbytes, NETWORKS["h100"])
            assert found == pytest.approx(expected, rel=0.15), (kind, size, nbytes)


def test_bytes_of_a_ring() -> None:
    assert sent("all_reduce", 4, 400) == 600
    assert sent("reduce_scatter", 4, 400) == sent("all_gather", 4, 400) == 300
    assert sent("all_reduce", 1, 400) == sent("recv", 2, 400) == 0


def test_groups_of_a_mesh_know_their_nodes() -> None:
    h100 = NETWORKS["h100"]
    sizes = (16, 4, 8)  # 16 × 4 × 8 ranks, 8 a node: the last axis is a node
    assert group_of(sizes, [2], h100) == Group(8, 8)
    assert group_of(sizes, [0], h100) == Group(16, 1)
    assert group_of(sizes, [0, 2], h100) == Group(128, 8)
    assert group_of((4, 2, 4), [1], h100) == Group(2, 2)
    assert group_of((1024,), [0], h100).nodes == 128


def test_groups_that_leave_a_node_together_share_its_cards() -> None:
    h100, nbytes = NETWORKS["h100"], 1 << 30
    alone, together = Group(16, 1), Group(128, 8)
    assert seconds("all_gather", together, nbytes, h100) < seconds(
        "all_gather", alone, nbytes, h100
    )


def _work(seconds: float) -> Event:
    return Event(COMPUTE, "work", seconds)


def test_a_collective_runs_beside_work() -> None:
    program = [
        Event(START, "a", 3.0, "a"),
        _work(2.0),
        Event(WAIT, "a", collective="a"),
        _work(1.0),
    ]
    line = simulate({"all": program})
    assert line.seconds == 4.0
    assert line.exposed("all") == 1.0
    assert line.idle("all") == pytest.approx(0.25)


def test_collectives_share_links() -> None:
    start = [Event(START, n, 2.0, n, links="intra") for n in "ab"]
    waits = [Event(WAIT, n, collective=n) for n in "ab"]
    assert simulate({"all": [*start, *waits]}).seconds == 4.0
    other = [start[0], Event(START, "b", 2.0, "b", links="inter")]
    assert simulate({"all": [*other, *waits]}).seconds == 2.0


def test_the_slowest_class_decides() -> None:
    both = ("x", "y")

    def program(work: float) -> list[Event]:
        return [_work(work), Event(START, "a", 1.0, "a", both), Event(WAIT, "a", collective="a")]

    line = simulate({"x": program(1.0), "y": program(5.0)})
    assert line.seconds == 6.0
    assert line.exposed("x") == 5.0


def test_ranks_in_another_order_are_a_deadlock() -> None:
    both = ("x", "y")

    def program(*names: str) -> list[Event]:
        return [
            e for n in names
            for e in (Event(START, n, 1.0, n, both), Event(WAIT, n, collective=n))
        ]  # fmt: skip

    with pytest.raises(Deadlock, match="x waits for a, which y did not start"):
        simulate({"x": program("a", "b"), "y": program("b", "a")})


def test_links_are_found_again() -> None:
    """Times that follow the model give its start, bandwidth and shares."""
    from benchmarks.distributed.links import network_of

    rates = {"all_reduce": 2e9, "all_gather": 1e9, "reduce_scatter": 0.5e9, "send": 3e9}
    sizes = (1 << 12, 1 << 18, 1 << 24)
    times = {k: {n: 1e-3 + sent(k, 2, n) / rate for n in sizes} for k, rate in rates.items()}
    found = network_of(times, 2)
    for kind, by_size in times.items():
        for nbytes, wanted in by_size.items():
            assert seconds(kind, Group(2, 2), nbytes, found) == pytest.approx(wanted, rel=0.01)


_STEP = """
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
  func.func @step(%g: tensor<1024x1024xf32>) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
    %0, %t = "gflow.collective_start"(%g) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64,
        sequence = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>}
        : (tensor<1024x1024xf32>) -> (tensor<1024x1024xf32>, tensor<i8>)
    %m = "gflow.matmul"(%g, %g) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %1 = "gflow.collective_wait"(%0, %g) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %1, %m : tensor<1024x1024xf32>, tensor<1024x1024xf32>
  }
}
"""


@pytest.mark.parametrize("beside", [True, False])
def test_collectives_that_need_the_cores_are_not_covered(beside: bool) -> None:
    with make_context():
        module = ir.Module.parse(_STEP)
        network = replace(NETWORKS["gloo"], beside=beside)
        line = step_on_ranks(entry_function(module), DEVICES["cpu"], network)
    (started,) = (e for e in line.events if e.kind == START)
    (product,) = (e for e in line.events if e.kind == COMPUTE)
    both = started.seconds + product.seconds
    assert line.seconds == (max(started.seconds, product.seconds) if beside else both)


@pytest.mark.sweep
@pytest.mark.parametrize("stage", [2, 3])
def test_work_covers_the_collectives_of_gpt2(stage: int) -> None:
    """On 8 x H100, of the bytes that a rank sends."""
    from benchmarks.distributed.plans import planned

    assert planned(stage).covered >= 0.9
