"""gflow: static graphs for PyTorch programs.

`import gflow as flow` gives all that an eager program uses: a name that gflow does not
define is PyTorch's, and so are the submodules (`gflow.optim.lr_scheduler`,
`gflow.nn.functional`, `gflow.utils.data`, ...). gflow's own is `gflow.nn.Graph`.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._passthrough import install

install(__name__, "torch", own=("compiler", "dialects", "runtime"))

_OWN = {
    "CheckpointError": "saved.saving",
    "EagerMismatch": "errors",
    "GraphError": "errors",
    "GraphInputError": "errors",
    "GraphTraceError": "errors",
    "GraphAttributeError": "errors",
    "XRTModule": "functions.xrt",
    "compile": "functions.compiled",
    "dynamic_dim": "call.dynamic.dynamic_dim",
    "from_onnx": "functions.onnx_models",
    "from_stablehlo": "functions.imported",
    "load": "saved.saving",
    "save": "saved.saving",
}

#: OneFlow's functions that PyTorch does not have
_FUNCTIONS = frozenset(
    {
        "adaptive_avg_pool2d", "adaptive_avg_pool3d", "batch_gather", "broadcast_like", "cast", "expand", "gather_nd",
        "gelu", "in_top_k", "lerp_", "mish", "new_ones", "quick_gelu", "repeat", "scatter_nd", "silu", "slice",
        "slice_update", "softplus", "softsign", "square_relu", "tensor_scatter_nd_update",
    }
)  # fmt: skip
#: OneFlow's words for global tensors
_DISTRIBUTED = frozenset({"env", "placement", "sbp", "to_global", "to_local"})


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    if name in _DISTRIBUTED:
        value = getattr(importlib.import_module(".distributed", __name__), name)
    elif name in _OWN:
        value = getattr(importlib.import_module(f".{_OWN[name]}", __name__), name)
    elif name in _FUNCTIONS:
        value = getattr(importlib.import_module(".oneflow.functions", __name__), name)
    elif name == "__version__":
        value = importlib.import_module("importlib.metadata").version("gflow-compiler")
    elif name in ("amp", "distributed", "nn", "optim", "compiler", "dialects", "runtime"):
        return importlib.import_module(f".{name}", __name__)
    else:
        try:
            return getattr(importlib.import_module("torch"), name)
        except AttributeError:
            refused = importlib.import_module(".oneflow.refused", __name__).FLOW
            if name in refused:
                raise AttributeError(f"gflow.{name} {refused[name]}") from None
            raise AttributeError(f"neither gflow nor torch has {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(
        {"amp", "nn", *_OWN, *_DISTRIBUTED, *_FUNCTIONS, *dir(importlib.import_module("torch"))}
    )
