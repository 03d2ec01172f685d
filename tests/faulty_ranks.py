"""What each of two Gloo ranks runs in tests/test_faults.py: `… RANK STORE FAULTY CASE…`.

Rank FAULTY has the faults. Prints after each case a JSON object: the error that each so far ended with here, or null.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gflow as flow

#: seconds, while ranks are in step; and from a fault on
LONG, SHORT = 120, 2
CASES: dict[str, Callable[[bool], None]] = {}


def case(function: Callable[[bool], None]) -> Callable[[bool], None]:
    CASES[function.__name__] = function
    return function


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Until the other rank has its error."""
    store = dist.distributed_c10d._get_default_store()
    store.wait([_key()], timedelta(seconds=LONG))


_done: list[str] = []


def _key() -> str:
    return f"case {len(_done)}"


def hurry() -> None:
    """The group waits for a short time only, from now on."""
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SHORT))


class Train(flow.nn.Graph):
    """A data-parallel step. fault: is called in the middle of `build()`."""

    def __init__(self, fault: Callable[[], None] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.add_optimizer(self.optimizer)
        self.fault = fault

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        if self.fault is not None:
            self.fault()
        loss.backward()
        return loss


class Sum(flow.nn.Graph):
    def build(self, x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1


def _in_step(faulty: bool, fault: Callable[[], None]) -> None:
    train, x = Train(), torch.ones(4, 6)
    for _ in range(2):
        train(x)
    hurry()
    if faulty:
        fault()
        return
    for _ in range(2):  # what is on its way may still come
        train(x)


def _in_compilation(faulty: bool, fault: Callable[[], None]) -> None:
    train = Train(fault if faulty else None)
    hurry()
    train(torch.ones(4, 6))


@case
def other_shapes(faulty: bool) -> None:
    Sum()(torch.ones(4 + faulty, 3))


@case
def other_shapes_later(faulty: bool) -> None:
    """One rank compiles again, the other runs what it has."""
    total = Sum()
    total(torch.ones(4, 3))
    hurry()
    total(torch.ones(4 + faulty, 3))


@case
def other_hyperparameters(faulty: bool) -> None:
    train = Train()
    train.optimizer.param_groups[0]["weight_decay"] = 0.1 * faulty
    train.config.enable_zero(True, stage=1)
    train(torch.ones(4, 6))


class Stages(flow.nn.Graph):
    """A pipeline of two stages. factor: of the loss, which the last stage computes."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.model, self.factor = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3)), factor
        for n, layer in enumerate(self.model):
            layer.to(flow.nn.graph.GraphModule).set_stage(n)
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
        self.config.set_gradient_accumulation_steps(2)

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean() * self.factor
        loss.backward()
        return loss


#: what was trained in groups that are destroyed, and keeps parameters on other ranks
_kept: list[Any] = []


@case
def other_program_of_a_pipeline(faulty: bool) -> None:
    """What a rank traces that runs another stage does not count for nothing."""
    _kept.append(Stages(1.0))
    _kept[-1](torch.ones(4, 6))
    Stages(1.0 + faulty)(torch.ones(4, 6))


@case
def hung_in_a_step(faulty: bool) -> None:
    _in_step(faulty, hang)


@case
def hung_in_compilation(faulty: bool) -> None:
    _in_compilation(faulty, hang)


@case
def killed_in_a_step(faulty: bool) -> None:
    _in_step(faulty, end)


@case
def killed_in_compilation(faulty: bool) -> None:
    _in_compilation(faulty, end)


def main() -> None:
    rank, store, faulty, *names = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    found: dict[str, str | None] = {}
    for name in names:  # a group each: one that failed is not used again
        dist.init_process_group(
            "gloo",
            rank=rank,
            world_size=2,
            init_method=f"{store}{'' if store.startswith('tcp') else len(_done)}",
            timeout=timedelta(seconds=LONG),
        )
        found[name] = None
        try:
            CASES[name](rank == faulty)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        print(json.dumps(found), flush=True)
        if name.startswith("killed"):
            break  # the other rank is gone
        if rank != faulty:
            dist.distributed_c10d._get_default_store().set(_key(), "done")
        _done.append(name)
        dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
