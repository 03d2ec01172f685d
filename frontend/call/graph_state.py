"""The state of a graph: its optimizers, programs, modules, and the current call."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils import parametrize

from gflow.execution.device import tf32_kinds
from gflow.report.printing import Calls
from gflow.runtime.seeds import Seeds
from gflow.tracing.context.debug_settings import DebugSettings
from gflow.tracing.context.saved_hooks import may_change_values
from gflow.tracing.context.transforms import finds_anomalies
from gflow.tracing.program.module_config import changes, is_checkpointed
from gflow.tracing.program.modules import ModuleTable

from .dynamic.automatic import AutomaticSizes
from .dynamic.automatic_numbers import AutomaticNumbers
from .dynamic.dynamic_dim import DynamicCalls
from .plans.cache import PlanCache
from .plans.compilations import Compilations
from .plans.plan import Plan
from .signature import Parameters
from .transaction import Call


@dataclass
class GraphState:
    """Attributes: modules: attributes that are modules, or lists, tuples and dicts with some. names: all attributes,
    in the order of assignment. takes_tail: whether ops whose shapes depend on values may run after the program.
    """

    name: str
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    sparse: list[int] = field(default_factory=list)
    scaler: Any = None
    plans: PlanCache = field(default_factory=PlanCache)
    table: ModuleTable | None = None
    modules: dict[str, Any] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    seeds: Seeds = field(default_factory=Seeds)
    building: bool = False
    marks: tuple[int, tuple[int, ...]] | None = None
    latest: Plan | None = None
    calls: Calls = field(default_factory=Calls)
    debug: DebugSettings | None = None
    parameters: Parameters | None = None
    dynamic: DynamicCalls = field(default_factory=DynamicCalls)
    sizes: AutomaticSizes = field(default_factory=AutomaticSizes)
    numbers: AutomaticNumbers = field(default_factory=AutomaticNumbers)
    compilations: Compilations = field(default_factory=Compilations)
    turn: Any = field(
        default_factory=threading.RLock
    )  # one call at a time: a plan stores the size and numbers of its call
    call: Call = field(init=False)
    shareable: bool = True
    saves_runtime: bool = False
    loaded: Any = None
    takes_tail: bool = True

    def __post_init__(self) -> None:
        self.call = Call(self.name, self.schedulers)


def _checkpointed(state: GraphState) -> tuple[int, ...]:
    """The numbers of the modules whose activations are recomputed in the backward."""
    assert state.table is not None
    if state.marks is None or state.marks[0] != changes():
        marked = [i for i, m in enumerate(state.table.modules) if is_checkpointed(m)]
        state.marks = (changes(), tuple(marked))
    return state.marks[1]


def modes_of(state: GraphState) -> tuple[Any, ...]:
    """Global state, besides the arguments, that changes a trace."""
    assert state.table is not None
    autocast = torch._C._is_any_autocast_enabled()
    return (
        state.table.modes(),
        _checkpointed(state),
        bool(state.optimizers) or torch.is_grad_enabled(),
        autocast and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        autocast and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.cuda.is_initialized() and tf32_kinds(),
        torch.get_default_dtype(),
        may_change_values(),
        finds_anomalies(),
        parametrize._cache_enabled > 0,
        # a default device is a function mode
        torch._C._len_torch_function_stack() and torch.get_default_device(),  # type: ignore[attr-defined]
    )
