"""The architectures of libraries, small and with random weights, for `scripts/family_report.py`."""

from __future__ import annotations

from . import diffusers_library, geometric, timm_library, torchvision_library, transformers_library
from .family import Family

_FOUND = {
    "transformers": transformers_library.found,
    "timm": timm_library.found,
    "torchvision": torchvision_library.found,
    "torch_geometric": geometric.found,
    "diffusers": diffusers_library.found,
}
LIBRARIES = tuple(_FOUND)

__all__ = ["LIBRARIES", "Family", "families"]


def families(library: str) -> list[Family]:
    """All architectures of one of `LIBRARIES`."""
    from benchmarks.workloads.third_party import declare_torchvision_ops

    declare_torchvision_ops()
    return list(_FOUND[library]())
