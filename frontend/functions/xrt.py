"""`gflow.XRTModule`: a module that another engine runs, by OneFlow's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.runtime.engines.packages import EngineUnavailable, available, require
from gflow.tracing.context.location import here

from .compiled import compile

#: OneFlow's names, and ONNX Runtime
_ENGINES = {"XLA": "xla", "OPENVINO": "openvino", "ONNXRUNTIME": "onnxruntime"}


def XRTModule(module: torch.nn.Module, engine: str | Sequence[str] = ("XLA",)) -> Any:
    """A module whose calls another engine runs, in eager programs and as a part of graphs. Ops that the engine does
    not support keep gflow's kernels (docs/engines.md).

    It shares all state with the module, like a module of `gflow.compile`. Its calls have gradients, whose backward the
    engine runs, too. In an `nn.Graph`, or a module that is compiled by `gflow.compile`, its forward and backward
    become regions of the engine, and the graph runs the rest, including updates of parameters. After OneFlow's
    `oneflow_xrt.XRTModule`.

    Args:
        module: any module.
        engine: "XLA", "OPENVINO" or "ONNXRUNTIME", in any case; of several, the first that is installed.

    Raises:
        GraphError: an engine is unknown, or none is installed; the message has the command that installs the first.
    """
    names = [engine] if isinstance(engine, str) else list(engine)
    unknown = [n for n in names if not isinstance(n, str) or n.upper() not in _ENGINES]
    if unknown or not names:
        known = ", ".join(map(repr, _ENGINES))
        raise GraphError(f"{here()}: XRTModule() takes engine={known}, or a list; got {engine!r}")
    wanted = [_ENGINES[n.upper()] for n in names]
    chosen = next(filter(available, wanted), None)
    if chosen is None:
        try:
            require(wanted[0])
        except EngineUnavailable as error:
            raise GraphError(f"{here()}: XRTModule(): {error}") from None
    # start-up: the compiler is loaded at its first use
    from gflow.compiler.driver.pipelines import PipelineOptions

    assert chosen is not None
    return compile(module, passes=PipelineOptions(engine=chosen))
