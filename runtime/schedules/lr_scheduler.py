"""OneFlow's learning rate schedulers that PyTorch lacks, as schedulers of PyTorch.

`gflow.optim.lr_scheduler` has them and PyTorch's own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler


class CosineDecayLR(LRScheduler):
    """Decay to `alpha` times the learning rate along half a cosine, in `decay_steps` steps; constant afterwards.

    lr = base_lr * ((1 - alpha) * 0.5 * (1 + cos(pi * step / decay_steps)) + alpha)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        decay_steps: int,
        alpha: float = 0.0,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _at_least_one("decay_steps", decay_steps)
        self.decay_steps, self.alpha, self.verbose = decay_steps, alpha, verbose
        super().__init__(optimizer, last_step)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rates of this step."""
        step = min(self.last_epoch, self.decay_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.decay_steps))
        factor = (1 - self.alpha) * cosine + self.alpha
        return [base * factor for base in _floats(self.base_lrs)]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step."""
        super().step(epoch)
        say(self)


class PolynomialLR(lr_scheduler.PolynomialLR):
    """PyTorch's, or with `decay_batch` (`steps` in older programs) OneFlow's, which ends at
    `end_learning_rate` and, if `cycle`, starts again each time, over ever more steps:

    lr = (base_lr - end_learning_rate) * (1 - step / decay_batch) ** power + end_learning_rate
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
        *,
        decay_batch: int | None = None,
        steps: int | None = None,
        end_learning_rate: float | None = None,
        cycle: bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(last_epoch, int):
            raise TypeError(
                "PolynomialLR(optimizer, total_iters, power, last_epoch) are PyTorch's arguments; give "
                "OneFlow's by name: decay_batch=…, end_learning_rate=…, power=…, cycle=…"
            )
        self.decay_batch = decay_batch if decay_batch is not None else steps
        if self.decay_batch is None and (end_learning_rate is not None or cycle):
            self.decay_batch = total_iters
        if self.decay_batch is not None:
            _at_least_one("decay_batch", self.decay_batch)
        self.end_learning_rate = 0.0001 if end_learning_rate is None else end_learning_rate
        self.cycle, self.verbose = cycle, verbose
        super().__init__(optimizer, total_iters, power, max(last_epoch, last_step))

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rates of this step."""
        most, step, end = self.decay_batch, self.last_epoch, self.end_learning_rate
        if most is None:
            return super().get_lr()  # type: ignore[return-value]
        if self.cycle:
            step = max(step, 1)
            most *= math.ceil(step / most)
        factor = (1 - min(step, most) / most) ** self.power
        return [(base - end) * factor + end for base in _floats(self.base_lrs)]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step."""
        super().step(epoch)
        say(self)


class WarmupLR(LRScheduler):
    """Smaller learning rates at first, then those of the optimizer or of another scheduler.

    Args:
        scheduler_or_optimizer: the scheduler or optimizer that sets the learning rates after the warm-up.
        warmup_factor: the factor of the first step's learning rate.
        warmup_iters: the number of steps of the warm-up.
        warmup_method: "linear": learning rates grow linearly to the one after the warm-up; "constant": all are
            multiplied by `warmup_factor`.
        warmup_prefix: the scheduler begins after the warm-up. Otherwise both begin together, and after the warm-up the
            scheduler continues as if there had been none.
    """

    def __init__(
        self,
        scheduler_or_optimizer: LRScheduler | torch.optim.Optimizer,
        warmup_factor: float = 1.0 / 3,
        warmup_iters: int = 5,
        warmup_method: str = "linear",
        warmup_prefix: bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        inner = scheduler_or_optimizer
        if not isinstance(inner, (LRScheduler, torch.optim.Optimizer)):
            raise ValueError(
                "WarmupLR takes a learning rate scheduler or an optimizer, got "
                f"{type(inner).__name__}"
            )
        if warmup_method not in ("linear", "constant"):
            raise ValueError(f"warmup_method is 'linear' or 'constant', got {warmup_method!r}")
        self._schedulers: list[LRScheduler] = []
        self._inner_lrs: list[float] | None = None
        if isinstance(inner, LRScheduler):
            self._schedulers, self._inner_lrs = [inner], _floats(inner.get_last_lr())
            optimizer = inner.optimizer
        else:
            _at_least_one("warmup_iters", warmup_iters)
            optimizer = inner
        self.warmup_factor, self.warmup_iters = warmup_factor, warmup_iters
        self.warmup_method, self.warmup_prefix = warmup_method, warmup_prefix
        self.verbose = verbose
        bases = [float(g.get("initial_lr", g["lr"])) for g in optimizer.param_groups]
        self._end_factors = [1.0] * len(bases)
        if self._schedulers and warmup_method == "linear" and not warmup_prefix:
            ends = _ahead(self._schedulers[0], warmup_iters)
            self._end_factors = [end / base if base else 1.0 for end, base in zip(ends, bases)]
        super().__init__(optimizer, last_step)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rates of this step; steps the inner scheduler, too."""
        step = self.last_epoch
        begins = self.warmup_iters if self.warmup_prefix else 0
        if self._inner_lrs is not None and step > begins:
            self._inner_lrs = next_rates(self._schedulers[0], self._inner_lrs)
        if step >= self.warmup_iters:
            return list(self._inner_lrs or _floats(self.base_lrs))
        if self.warmup_method == "constant":
            return [base * self.warmup_factor for base in _floats(self.base_lrs)]
        part, start = step / self.warmup_iters, self.warmup_factor
        return [
            base * (start + (end - start) * part)
            for base, end in zip(_floats(self.base_lrs), self._end_factors)
        ]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step."""
        super().step(epoch)
        say(self)

    def state_dict(self) -> dict[str, Any]:
        """The state, with that of the inner scheduler."""
        state = {k: v for k, v in vars(self).items() if k not in ("optimizer", "_schedulers")}
        state["_schedulers"] = [s.state_dict() for s in self._schedulers]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a result of `state_dict()`."""
        state = dict(state_dict)
        for scheduler, inner in zip(self._schedulers, state.pop("_schedulers")):
            scheduler.load_state_dict(inner)
        vars(self).update(state)


#: the older name, which OneFlow's newest documents use, too
WarmUpLR = WarmupLR


def _floats(lrs: Iterable[Any]) -> list[float]:
    return [float(lr) for lr in lrs]


def next_rates(scheduler: LRScheduler, now: list[float]) -> list[float]:
    """Step a scheduler whose learning rates are `now`; returns the next ones."""
    for group, lr in zip(scheduler.optimizer.param_groups, now):
        group["lr"] = lr
    scheduler.step()
    return _floats(scheduler.get_last_lr())


def _ahead(scheduler: LRScheduler, steps: int) -> list[float]:
    """The learning rates of a scheduler after a number of steps; the scheduler itself is not stepped."""
    groups = [
        {k: v for k, v in group.items() if k != "params"} | {"params": []}
        for group in scheduler.optimizer.param_groups
    ]
    stub: Any = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    stub.param_groups, stub.defaults = groups, dict(scheduler.optimizer.defaults)
    stub._opt_called = True
    stub.step = _stubbed(stub.step)
    ahead = _on(scheduler, stub)
    lrs = _floats(scheduler.get_last_lr())
    for _ in range(steps):
        lrs = next_rates(ahead, lrs)
    return lrs


def _stubbed(step: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    run._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return run


def _on(scheduler: Any, optimizer: Any) -> Any:
    """A copy of a scheduler, and of those in it, for another optimizer."""
    new = copy.copy(scheduler)
    new.optimizer = optimizer
    if "_schedulers" in vars(new):
        new._schedulers = [_on(inner, optimizer) for inner in new._schedulers]
    return new


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is a number of steps, at least 1; got {value!r}")


def say(scheduler: Any) -> None:
    """Print the learning rates of a verbose scheduler."""
    if scheduler.verbose:
        lrs = ", ".join(f"{lr:.5g}" for lr in scheduler.get_last_lr())
        print(f"{type(scheduler).__name__}: step {scheduler.last_epoch}, learning rate {lrs}")
