"""Interrupts at any instant of a graph's call: what is left is the state from before it, or from after it.

`python tests/interrupts.py 500 [SEED]` interrupts 500 calls by signals at random instants, first calls and later
ones, and prints how many have left a torn state. The exit status is 3 when any has.
"""

from __future__ import annotations

import copy
import dis
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import gflow as flow
from gflow.call.modes import Modes


class Stop(BaseException):
    """What interrupts."""


class FromGradients(torch.optim.Optimizer):
    """Its state can only be made from gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "mean" not in state:
                    state["mean"] = p.grad * 2 + 1
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.sub_(state["mean"], alpha=group["lr"])


class Train(flow.nn.Graph):
    """Parameters, statistics, a counter, momentum, a schedule, loss scaling, dropout, kept gradients."""

    def __init__(self, kind: str = "adam") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
        )
        parameters = self.model.parameters()
        optimizer: torch.optim.Optimizer
        if kind == "gradients":
            optimizer = FromGradients(parameters)
        else:
            optimizer = torch.optim.AdamW(parameters, 0.01, amsgrad=True)
        parts = [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ]
        self.add_optimizer(optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [2]))
        if kind == "scaled":
            self.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))
        if kind == "micro-batches":
            self.config.set_gradient_accumulation_steps(2)
        if kind == "sorted":  # steps that run through PyTorch
            self.config.keep_gradients()
        self.kind = kind

    def build(self, x: Tensor) -> Tensor:
        y = self.model(x)
        if self.kind == "sorted":
            y = torch.cumsum(torch.sort(y, 0)[0], 0).logcumsumexp(0)
        loss = y.square().mean()
        loss.backward()
        return loss


def snapshot(graph: Any) -> Any:
    """All that a call changes."""
    state = graph._checked()
    found: dict[str, Any] = {"state": graph.state_dict(), "torch": torch.get_rng_state()}
    found["modes"] = vars(Modes.current())
    found["groups"] = [
        [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
        for o in state.optimizers
    ]
    found["schedules"] = [
        {k: v for k, v in vars(s).items() if k not in ("optimizer", "_schedulers")}
        for s in state.schedulers
    ]
    model = state.modules["model"]
    found["grads"] = [p.grad for p in model.parameters()]
    return copy.deepcopy(dict(found.items()))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def prepared(kind: str, calls: int) -> tuple[Any, Tensor]:
    graph = Train(kind)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    for _ in range(calls):
        graph(x)
    return graph, x


Interrupted = Callable[[Callable[[], Any]], bool]


def later_calls(kind: str, ways: Iterable[Interrupted]) -> Iterator[bool | None]:
    """Interrupt one call after another, beside a graph that is not interrupted. None: a call was not
    interrupted; else whether its state is that from before it, or that from after it."""
    (graph, x), (reference, _) = prepared(kind, 2), prepared(kind, 2)
    generator = torch.get_rng_state()
    for way in ways:
        torch.set_rng_state(generator)
        before = snapshot(graph)
        stopped = way(lambda: graph(x))
        found = snapshot(graph)
        if stopped and same(found, before):
            yield True
            continue
        torch.set_rng_state(generator)
        reference(x)
        wanted, generator = snapshot(reference), torch.get_rng_state()
        yield same(found, wanted) if stopped else None
        if not same(found, wanted):
            return


def first_calls(kind: str, ways: Iterable[Interrupted]) -> Iterator[bool | None]:
    """The same for first calls, each of a new graph; the next call is as it should be."""
    wanted = [snapshot(prepared(kind, calls)[0]) for calls in (1, 2)]
    for way in ways:
        graph, x = prepared(kind, 0)
        before = snapshot(graph)
        stopped = way(lambda graph=graph, x=x: graph(x))
        found = snapshot(graph)
        happened = not same(found, before)
        whole = not happened or same(found, wanted[0])
        graph(x)
        whole = whole and same(snapshot(graph), wanted[1] if happened else wanted[0])
        yield whole if stopped else None


@contextmanager
def at_line(number: int, files: Callable[[CodeType], bool]) -> Iterator[list[int]]:
    """Raise `Stop` when the `number`-th line of some code begins; gives how many have."""
    seen = [0]

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not _is_no_instant(frame):
            seen[0] += 1
            if seen[0] == number:
                raise Stop
        return local

    def new(frame: FrameType, event: str, _: Any) -> Any:
        return local if files(frame.f_code) else None

    sys.settrace(new)
    try:
        yield seen
    finally:
        sys.settrace(None)


def _is_no_instant(frame: FrameType) -> bool:
    """Whether no signal is taken where a line begins: at `try`, and where a `with` ends, before its `__exit__`
    (after a SWAP, where a value is returned from within it)."""
    code, at = frame.f_code, frame.f_lasti
    at += 2 * (dis.opname[code.co_code[at]] == "SWAP")
    pairs = zip(code.co_code[at : at + 6 : 2], code.co_code[at + 1 : at + 6 : 2])
    found = [(dis.opname[op], n) for op, n in pairs]
    ends = [op == "LOAD_CONST" and code.co_consts[n] is None for op, n in found] == [True] * 3
    return ends or found[0][0] in ("NOP", "PUSH_EXC_INFO")


def call_path(code: CodeType) -> bool:
    """Code of a call itself, not that of compilation."""
    name = code.co_filename
    return "/gflow/" in name.replace("frontend", "gflow").replace("/runtime/", "/gflow/") or (
        "torch/optim/lr_scheduler" in name
    )


def by_line(number: int) -> Callable[[Callable[[], Any]], bool]:
    def run(call: Callable[[], Any]) -> bool:
        try:
            with at_line(number, call_path):
                call()
        except Stop:
            return True
        return False

    return run


def by_signal(seconds: float) -> Callable[[Callable[[], Any]], bool]:
    """Ctrl-C after some time."""

    def run(call: Callable[[], Any]) -> bool:
        def alarm(*_: Any) -> None:
            signal.raise_signal(signal.SIGINT)

        previous = signal.signal(signal.SIGALRM, alarm)
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call()
        except KeyboardInterrupt:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        return False

    return run


KINDS = ("adam", "gradients", "scaled", "micro-batches", "sorted")


def main() -> int:
    # a shell starts what runs in the background with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    counts = {calls: {kind: [0, 0] for kind in KINDS} for calls in (first_calls, later_calls)}

    def total(at: int) -> int:
        return sum(found[at] for of in counts.values() for found in of.values())

    while total(0) < wanted:
        for kind in KINDS:
            for calls, count in ((first_calls, 10), (later_calls, 30)):
                graph, x = prepared(kind, 0 if calls is first_calls else 3)
                start = time.perf_counter()
                graph(x)
                span = time.perf_counter() - start
                ways = (by_signal(chance.random() * span * 1.1 + 1e-6) for _ in range(count))
                for found in calls(kind, ways):
                    counts[calls][kind][0] += found is not None
                    counts[calls][kind][1] += found is False
                    if found is False:
                        print("torn:", kind, calls.__name__, flush=True)
        print(f"{total(1)} torn states in {total(0)} interrupts", flush=True)
    for calls, of in counts.items():
        told = ", ".join(f"{kind} {torn} of {done}" for kind, (done, torn) in of.items())
        print(f"{calls.__name__}: {told}")
    return 3 if total(1) else 0


if __name__ == "__main__":
    sys.exit(main())
