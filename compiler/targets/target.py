"""Targets by name, `cpu` or `cuda:90`, and the device that stands for each."""

from __future__ import annotations

from dataclasses import dataclass

from .devices import DEVICES, Device

KINDS = ("cpu", "cuda")

#: the first device of each architecture of the table stands for it
_BY_ARCH: dict[int, Device] = {d.arch: d for d in reversed(DEVICES.values()) if d.kind == "cuda"}
#: compute capabilities that there is code for, without the dot
CUDA_ARCHS = tuple(sorted(_BY_ARCH))
#: of a CUDA target that names none
DEFAULT_ARCH = 80


@dataclass(frozen=True)
class Target:
    """kind: one of `KINDS`. arch: of CUDA the compute capability, 90 for 9.0; one of `CUDA_ARCHS`."""

    kind: str
    arch: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind

    @property
    def device(self) -> Device:
        """The device whose sizes and speeds stand for the target's."""
        return _BY_ARCH[self.arch] if self.kind == "cuda" else DEVICES["cpu"]

    def has(self, feature: str) -> bool:
        """Whether code for the target may use a feature of `devices`."""
        return feature in self.device.features


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
