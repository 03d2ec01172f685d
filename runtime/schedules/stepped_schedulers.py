"""PyTorch's learning rate schedulers with OneFlow's additional arguments.

These are `last_step` (PyTorch's `last_epoch`), `verbose`, `SequentialLR(interval_rescaling=)` and
`CosineAnnealingWarmRestarts(decay_rate=, restart_limit=)`. Each class is a subclass of PyTorch's, with PyTorch's
arguments in PyTorch's order; OneFlow's are keyword arguments.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from .lr_scheduler import next_rates, say


class _Stepped:
    """Adds the arguments `last_step` and `verbose`.

    last_step: the step from which training continues; -1 to begin. verbose: print the learning rates at each step.
    """

    verbose: bool

    def __init__(
        self, *args: Any, last_step: int | None = None, verbose: bool = False, **kwargs: Any
    ) -> None:
        if last_step is not None:
            if "last_epoch" in kwargs:
                raise TypeError("last_step is OneFlow's name of last_epoch; give one of them")
            kwargs["last_epoch"] = last_step
        self.verbose = verbose
        super().__init__(*args, **kwargs)

    @property
    def last_step(self) -> int:
        """OneFlow's name of `last_epoch`."""
        return self.last_epoch  # type: ignore[attr-defined,no-any-return]

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Go on to the next step."""
        super().step(*args, **kwargs)  # type: ignore[misc]
        say(self)


class ConstantLR(_Stepped, lr_scheduler.ConstantLR):
    """`torch.optim.lr_scheduler.ConstantLR`; also takes `last_step` and `verbose`."""


class CosineAnnealingLR(_Stepped, lr_scheduler.CosineAnnealingLR):
    """`torch.optim.lr_scheduler.CosineAnnealingLR`; also takes `last_step` and `verbose`."""


class ExponentialLR(_Stepped, lr_scheduler.ExponentialLR):
    """`torch.optim.lr_scheduler.ExponentialLR`; also takes `last_step` and `verbose`."""


class LambdaLR(_Stepped, lr_scheduler.LambdaLR):
    """`torch.optim.lr_scheduler.LambdaLR`; also takes `last_step` and `verbose`."""


class LinearLR(_Stepped, lr_scheduler.LinearLR):
    """`torch.optim.lr_scheduler.LinearLR`; also takes `last_step` and `verbose`."""


class MultiplicativeLR(_Stepped, lr_scheduler.MultiplicativeLR):
    """`torch.optim.lr_scheduler.MultiplicativeLR`; also takes `last_step` and `verbose`."""


class MultiStepLR(_Stepped, lr_scheduler.MultiStepLR):
    """`torch.optim.lr_scheduler.MultiStepLR`; also takes `last_step` and `verbose`."""


class StepLR(_Stepped, lr_scheduler.StepLR):
    """`torch.optim.lr_scheduler.StepLR`; also takes `last_step` and `verbose`."""


class ReduceLROnPlateau(_Stepped, lr_scheduler.ReduceLROnPlateau):
    """`torch.optim.lr_scheduler.ReduceLROnPlateau`; also takes `verbose`."""


class CosineAnnealingWarmRestarts(_Stepped, lr_scheduler.CosineAnnealingWarmRestarts):
    """`torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`; also takes `last_step`, `verbose` and

    decay_rate: each cycle begins at this factor times the first learning rate of the cycle before.
    restart_limit: the number of cycles after which the learning rate stays at `eta_min`; 0 for no limit.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
        *,
        decay_rate: float = 1.0,
        restart_limit: int = 0,
        **kwargs: Any,
    ) -> None:
        if not isinstance(last_epoch, int):
            raise TypeError(
                "the argument after eta_min is last_epoch; give OneFlow's decay_rate and restart_limit by name"
            )
        self.decay_rate, self.restart_limit = decay_rate, restart_limit
        if last_epoch != -1:
            kwargs["last_epoch"] = last_epoch
        super().__init__(optimizer, T_0, T_mult, eta_min, **kwargs)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rates of this step."""
        if self.decay_rate == 1.0 and not self.restart_limit:
            return super().get_lr()  # type: ignore[return-value]
        cycle, length, step = 0, self.T_0, max(self.last_epoch, 0)
        while step >= length:
            cycle, step, length = cycle + 1, step - length, length * self.T_mult
        if self.restart_limit and cycle >= self.restart_limit:
            return [float(self.eta_min) for _ in self.base_lrs]
        part = 0.5 * (1 + math.cos(math.pi * step / length))
        peaks = [float(base) * self.decay_rate**cycle for base in self.base_lrs]
        return [self.eta_min + (peak - self.eta_min) * part for peak in peaks]


class ChainedScheduler(lr_scheduler.ChainedScheduler):
    """`torch.optim.lr_scheduler.ChainedScheduler`."""


class SequentialLR(_Stepped, lr_scheduler.SequentialLR):
    """`torch.optim.lr_scheduler.SequentialLR`; also takes `last_step`, `verbose` and

    interval_rescaling: True, or a list with one bool for each milestone: the next scheduler counts its steps from its
    milestone, as in PyTorch (the default). False: it counts them from the beginning of training, OneFlow's default.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
        *,
        interval_rescaling: bool | Sequence[bool] = True,
        last_step: int | None = None,
        verbose: bool = False,
    ) -> None:
        given: Any = interval_rescaling
        if isinstance(last_epoch, bool) or not isinstance(last_epoch, int):
            raise TypeError(
                "the argument after milestones is last_epoch; give OneFlow's interval_rescaling by name"
            )
        if isinstance(given, bool):
            given = [given] * len(milestones)
        if len(given) != len(milestones) or not all(isinstance(r, bool) for r in given):
            raise ValueError(
                f"interval_rescaling is True, False, or one of them for each of the {len(milestones)} milestones; "
                f"got {interval_rescaling!r}"
            )
        self.interval_rescaling = list(given)
        self._rates: list[list[float]] = []
        last = last_epoch if last_step is None else last_step
        super().__init__(
            optimizer, list(schedulers), list(milestones), last_epoch=last, verbose=verbose
        )  # type: ignore[call-arg]
        if not all(self.interval_rescaling):
            if last != -1:
                raise ValueError(
                    "interval_rescaling=False begins at the first step; load_state_dict() goes on from a later one"
                )
            nested = [type(s).__name__ for s in schedulers if getattr(s, "_schedulers", ())]
            if nested:
                raise ValueError(
                    f"interval_rescaling=False takes plain schedulers; {nested[0]} holds schedulers itself"
                )
            self._begin()

    def _begin(self) -> None:
        """Set each scheduler to its step 0; returns its learning rates there."""
        groups = self.optimizer.param_groups
        for scheduler in self._schedulers:
            for group in groups:
                group["lr"] = group["initial_lr"]
            scheduler.last_epoch = -1
            scheduler._initial_step()
            self._rates.append([float(group["lr"]) for group in groups])
        self._set(self._rates[0])

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Go on to the next step."""
        if all(self.interval_rescaling) or not self._rates:
            super().step(*args, **kwargs)
            return
        self.last_epoch += 1
        starts = [0, *(m if r else 0 for m, r in zip(self._milestones, self.interval_rescaling))]
        self._rates = [
            next_rates(scheduler, rates) if self.last_epoch > start else rates
            for scheduler, rates, start in zip(self._schedulers, self._rates, starts)
        ]
        self._set(self._rates[bisect.bisect_right(self._milestones, self.last_epoch)])
        say(self)

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate
        self._last_lr = list(rates)
