"""The devices that programs are made for: `cpu`, `cuda:90`. One place knows which exist."""

from __future__ import annotations

from dataclasses import dataclass

from .pipeline import PIPELINES

#: kinds that have no code generator yet
_PLANNED = {"cuda": "Triton kernels for CUDA devices are planned"}


@dataclass(frozen=True)
class Target:
    """kind: `cpu`, a key of `PIPELINES`. arch: what follows the colon, `90` of `cuda:90`."""

    kind: str
    arch: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def parse_target(text: str) -> Target:
    """A target by its name.

    Raises:
        NotImplementedError: there is no code generator for it yet.
        ValueError: it is unknown.
    """
    kind, _, arch = text.partition(":")
    if kind in PIPELINES:
        if kind == "cpu" and arch:
            raise ValueError(f"unknown target {text!r}: 'cpu' is the machine at hand")
        return Target(kind, arch)
    known = ", ".join(repr(name) for name in PIPELINES)
    if kind in _PLANNED:
        raise NotImplementedError(
            f"target {text!r}: gflow has no code generator for it yet ({_PLANNED[kind]}); there is "
            f"one for {known}"
        )
    raise ValueError(f"unknown target {text!r}; known: {known}")
