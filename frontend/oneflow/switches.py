"""Switches of OneFlow's `GraphConfig`, for programs written for OneFlow: each is applied, warned about or refused."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from gflow.errors import GraphError
from gflow.tracing.context.checked_values import count, flag
from gflow.tracing.context.deprecated_spellings import warn_older
from gflow.tracing.context.location import here, user_frame
from gflow.tracing.context.ranks import world_size

_log = logging.getLogger("gflow")
_AUTO_MEMORY = (
    "Disable",
    "SlightMemoryDown",
    "ModerateMemoryDown",
    "HeavyMemoryDown",
    "AdaptiveMemory",
)


#: names that gflow's config lacks
NOT_THERE = {
    "proto": "config.proto is OneFlow's protobuf message, which gflow does not have. config.switches() gives what was "
    "switched as a dict, config.resolved() the compiler's options"
}


class OneFlowSwitches:
    """Methods of `GraphConfig`."""

    _own: dict[str, Any]
    _trains: Callable[[], bool]
    _distributed: Callable[..., None]

    @property
    def training(self) -> bool:
        """Whether the graph has an optimizer, as `Graph.training`."""
        return self._trains()

    def enable_fused_model_update_cast(self, mode: bool = True) -> None:
        """Accepted with a warning: with `enable_amp()`, each step casts each weight once, in one kernel for forward
        and backward. No half-precision copy is kept between steps.

        Raises:
            GraphError: `mode` is not a bool.
        """
        if flag("enable_fused_model_update_cast", mode):
            _warn(
                "enable_fused_model_update_cast() has no effect: with enable_amp(), a step casts each weight once "
                "and keeps no half-precision copy that an update could write"
            )

    def enable_auto_parallel(self, mode: bool = True) -> None:
        """A warning in one process, where nothing is distributed; an error in a group of several ranks.

        docs/many_devices.md says how to place tensors.

        Raises:
            GraphError: `mode` is not a bool, or there are several ranks.
        """
        if flag("enable_auto_parallel", mode):
            _no_planner("enable_auto_parallel()")

    def enable_auto_parallel_ignore_user_sbp_config(self, mode: bool = True) -> None:
        """As `enable_auto_parallel`: in one process a warning, in a group of several ranks an error."""
        name = "enable_auto_parallel_ignore_user_sbp_config"
        if flag(name, mode):
            _no_planner(f"{name}()")

    def set_auto_parallel_computation_cost_ratio(self, ratio: float) -> None:
        """As `enable_auto_parallel`: in one process a warning, in a group of several ranks an error."""
        _number("set_auto_parallel_computation_cost_ratio", ratio)
        _no_planner("set_auto_parallel_computation_cost_ratio()")

    def set_auto_parallel_wait_time(self, cost: float) -> None:
        """As `enable_auto_parallel`: in one process a warning, in a group of several ranks an error."""
        _number("set_auto_parallel_wait_time", cost)
        _no_planner("set_auto_parallel_wait_time()")

    def enable_auto_parallel_trunk_algo(self, mode: bool = True) -> None:
        """As `enable_auto_parallel`: in one process a warning, in a group of several ranks an error."""
        if flag("enable_auto_parallel_trunk_algo", mode):
            _no_planner("enable_auto_parallel_trunk_algo()")

    def enable_auto_parallel_sbp_collector(self, mode: bool = True) -> None:
        """As `enable_auto_parallel`: in one process a warning, in a group of several ranks an error."""
        if flag("enable_auto_parallel_sbp_collector", mode):
            _no_planner("enable_auto_parallel_sbp_collector()")

    def enable_auto_memory(self, mode: str = "AdaptiveMemory") -> None:
        """How much the choice of a parallel strategy weighs memory: handled as `enable_auto_parallel`, except that
        "Disable" does nothing. `set_memory_budget` lowers the memory of a step.

        Raises:
            GraphError: `mode` is not one of OneFlow's values, or there are several ranks.
        """
        if mode not in _AUTO_MEMORY:
            known = ", ".join(map(repr, _AUTO_MEMORY))
            raise GraphError(f"{here()}: enable_auto_memory() takes one of {known}; got {mode!r}")
        if mode != "Disable":
            _no_planner("enable_auto_memory()", " set_memory_budget() lowers the memory of a step.")

    def set_zero_redundancy_optimizer_mode(self, mode: str = "distributed_split") -> None:
        """Deprecated, use `enable_zero`: "distributed_split" is stage 1, "non_distributed" is off.

        Raises:
            GraphError: `mode` is neither of these.
        """
        warn_older("set_zero_redundancy_optimizer_mode(mode)", "enable_zero(stage=1)")
        modes = ("distributed_split", "non_distributed")
        if mode not in modes:
            known = " or ".join(repr(m) for m in modes)
            raise GraphError(
                f"{here()}: set_zero_redundancy_optimizer_mode() takes {known}; got {mode!r}"
            )
        least = (self._own.get("zero") or (1, 1024, 1))[1]
        chosen = (1, least, 1) if mode == modes[0] else None
        self._distributed("set_zero_redundancy_optimizer_mode", zero=chosen)

    def set_zero_redundancy_optimizer_min_size_after_split(self, value: int) -> None:
        """Deprecated, use `enable_zero(shard_min_size=value)`. It does not enable ZeRO."""
        name = "set_zero_redundancy_optimizer_min_size_after_split"
        warn_older(f"{name}(value)", "enable_zero(shard_min_size=value)")
        least = count(name, value)
        stage, _, level = self._own.get("zero") or (0, 0, 1)
        self._distributed(name, zero=(stage, least, level))

    def enable_cudnn_conv_heuristic_search_algo(self, mode: bool = True) -> None:
        """On the cuda target: whether cuDNN chooses convolution algorithms by heuristics, or by timing all of them. No
        effect on the cpu target."""
        name = "enable_cudnn_conv_heuristic_search_algo"
        self._own["cudnn_conv_heuristic_search_algo"] = flag(name, mode)
        _log.info("%s() acts on the cuda target; on the cpu target nothing changes", name)


def _no_planner(call: str, more: str = "") -> None:
    """Warn that gflow chooses no parallel strategy.

    Raises:
        GraphError: there are several ranks, each of which would run the whole graph.
    """
    if (ranks := world_size()) > 1:
        raise GraphError(
            f"{here()}: {call} asks for a parallel strategy to be chosen for {ranks} ranks, which gflow does not do: "
            "give parameters and inputs placements (flow.to_global, parallelize_module), or wrap the model in "
            f"DistributedDataParallel.{more}"
        )
    _warn(f"{call} has no effect: this is one process, and there is nothing to share.{more}")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise GraphError(f"{here()}: {name}() takes a number from 0 on; got {value!r}")


def _warn(text: str) -> None:
    warnings.warn_explicit(text, UserWarning, *user_frame(3))
