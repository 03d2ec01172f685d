"""The devices that programs are made for: `cpu`, `cuda:90`. One place knows which exist."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import DEVICES, Device

KINDS = ("cpu", "cuda")
#: compute capabilities that Triton makes code for, without the dot
CUDA_ARCHS = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
#: of a CUDA target that names none
DEFAULT_ARCH = 80


@dataclass(frozen=True)
class Target:
    """kind: `cpu` or `cuda`, one of `KINDS`. arch: of CUDA the compute capability, 90 for 9.0."""

    kind: str
    arch: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def parse_target(text: str) -> Target:
    """A target by its name: `cpu`, `cuda:90`; `cuda` is `cuda:80`.

    Raises:
        ValueError: it is unknown.
    """
    kind, colon, arch = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"unknown target {text!r}; known: {', '.join(map(repr, KINDS))}")
    if kind == "cpu":
        if colon:
            raise ValueError(f"unknown target {text!r}: 'cpu' is the machine at hand")
        return Target(kind)
    if not colon:
        return Target(kind, DEFAULT_ARCH)
    if not arch.isdigit() or int(arch) not in CUDA_ARCHS:
        raise ValueError(
            f"unknown target {text!r}: after 'cuda:' stands a compute capability without its dot, one of "
            f"{', '.join(map(str, CUDA_ARCHS))}"
        )
    return Target(kind, int(arch))


def device_of(target: Target) -> Device:
    """The device whose speeds stand for a target's."""
    if target.kind == "cpu":
        return DEVICES["cpu"]
    return DEVICES["h100" if target.arch >= 90 else "a100"]
