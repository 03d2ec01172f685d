"""Sums and gathers of Gloo's groups by messages: beside exact sums, and bits beside each other, on three ranks."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs Gloo"
)
RANKS = 3


def test_ranks(tmp_path: Path) -> None:
    arguments = [sys.executable, __file__, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*arguments, str(r)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for r in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), b"\n".join(outputs).decode()


def test_sums_in_the_order_of_ranks() -> None:
    # only here: the processes of ranks import it after their group is there
    from gflow.runtime.distributed.exchange import add_in_order

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        terms = [torch.randn(70_001).to(dtype) for _ in range(4)]
        wide = [t.float() if dtype == torch.bfloat16 else t for t in terms]
        expected = (((wide[0] + wide[1]) + wide[2]) + wide[3]).to(dtype)
        add_in_order(terms, terms[2])
        assert torch.equal(terms[2], expected)


def check(rank: int) -> None:
    # only here: pytest's process imports no more of it than the test above
    from gflow.runtime.distributed import exchange, steps

    torch.manual_seed(rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        # at least one part, several parts of which the last is smaller, and more than are received at a time
        for n in (3000, 300_003, 1_200_003):
            x = torch.randn(n).to(dtype)
            every = [torch.empty_like(x) for _ in range(RANKS)]
            dist.all_gather(every, x)
            total = torch.empty_like(x)
            exchange.add_in_order(every, total)

            piece, whole, kept = x.new_empty(n // RANKS), x.clone(), x.clone()
            works = [
                exchange.Sum(x, piece, None),
                exchange.Sum(whole, None, None),
            ]  # both under way
            for work in reversed(works):
                work.wait()
            assert torch.equal(x, kept), "the operand changed"
            assert torch.equal(whole, total)
            assert torch.equal(piece, total.view(RANKS, -1)[rank])
            gathered = torch.empty_like(x)
            exchange.Gather(gathered, piece, None).wait()
            assert torch.equal(gathered, total)

            odd = kept[:-2].clone()  # the last rank has less than the others
            exchange.Sum(odd, None, None).wait()
            assert torch.equal(odd, total[:-2])
    group = dist.new_group([*range(RANKS)])
    gone, summed = weakref.ref(group), torch.ones(1 << 18)
    exchange.Sum(summed, None, group).wait()
    assert bool((summed == RANKS).all())
    kept = weakref.ref(summed)
    del summed
    gc.collect()
    assert kept() is None
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert gone() is None, "a group that is destroyed ends its threads when nothing refers to it"
    large = torch.zeros(1 << 20)
    assert exchange.carries(large, None)
    assert exchange.carries(large, None, "sum")
    assert not exchange.carries(large, None, "max")
    assert not exchange.carries(large[:100], None)
    assert exchange.carries(large[:100], None, "sum")
    assert not exchange.carries(torch.ones(100, dtype=torch.int64), None, "sum")
    for n in (1, 2, 100):  # the same numbers at other places of a tensor have the same sums
        x = torch.randn(n)
        moved = torch.cat([torch.zeros(37), x])
        steps.all_reduce(x, None).wait()
        steps.all_reduce(moved, None).wait()
        assert torch.equal(moved[37:], x)
    flags = torch.zeros(RANKS << 20, dtype=torch.bool)
    mine = torch.arange(1 << 20) % (rank + 2) == 0
    steps.all_gather(flags, mine, None).wait()
    assert torch.equal(flags.view(RANKS, -1)[rank], mine)
    assert flags.view(RANKS, -1)[1][:4].tolist() == [True, False, False, True]


if __name__ == "__main__":
    store, number = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=RANKS)
    check(number)
    dist.destroy_process_group()
