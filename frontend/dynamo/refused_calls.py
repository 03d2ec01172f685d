"""The tracer's checks of each call, for graphs of TorchDynamo.

AOTAutograd decomposes ops and drops unused ones before gflow receives a graph. Therefore the checks run above it, on
the calls of the author's code, while AOTAutograd runs TorchDynamo's graph on fake tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import traceback
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gflow.errors import GraphTraceError
from gflow.tracing.dispatch.call_checks import call_problem
from gflow.tracing.dispatch.recorder import describe

from .trace_fx import location

#: functions whose ops PyTorch's Python dispatcher, which AOTAutograd enables, decomposes above any mode
_TAKEN_APART = (
    "hardshrink", "multi_margin_loss", "multilabel_margin_loss", "softshrink",
)  # fmt: skip
#: the error message of eager's kernel for an assertion without a message
_ASSERTED = "Expected Tensor with single nonzero value, but got zero"


class RefusedCalls(TorchDispatchMode):
    """A mode for the time in which AOTAutograd compiles a graph: a call that eager's kernels refuse is an error.

    The checks concern dtypes, sizes and numbers.

    Raises:
        GraphTraceError: there is such a call. The message has the line, as far as TorchDynamo knows it.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        problem = call_problem(func, args, kwargs)
        if problem is not None:
            raise GraphTraceError(f"{_place()}{func} {problem}.")
        return func(*args, **kwargs)


def check_apart(module: torch.fx.GraphModule) -> None:
    """Check those calls of a graph of TorchDynamo that AOTAutograd does not pass to modes, one by one.

    Raises:
        GraphTraceError: eager's kernels refuse one of them.
    """
    for node in module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op not in ("call_method", "call_function") or name not in _TAKEN_APART:
            continue
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda n: n.meta.get("example_value")
        )
        call = getattr(torch.Tensor, name) if node.op == "call_method" else node.target
        # the tensors' own fake mode: TorchDynamo gives backends another one
        examples = [x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]
        if not examples:
            continue
        mode = examples[0].fake_mode
        with traceback.preserve_node_meta(), traceback.set_current_meta(node), mode, RefusedCalls():
            call(*args, **kwargs)


def keep_assertions(module: torch.fx.GraphModule) -> None:
    """Give assertions without a message eager's message: AOTAutograd drops the overload without one."""
    for node in module.graph.find_nodes(op="call_function", target=torch._assert_async):
        if len(node.args) + len(node.kwargs) == 1:
            given = node.args[0] if node.args else next(iter(node.kwargs.values()))
            node.args, node.kwargs = (given, _ASSERTED), {}
    module.recompile()


def _place() -> str:
    """The location of the node that runs, as error messages begin with it; "" if no node runs."""
    loc = location(traceback.get_current_meta(), "")
    if not loc.line:
        return ""
    return f"{describe(loc)}: "
