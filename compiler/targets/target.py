"""Targets by name, `cpu`, `cuda:90` or `hip:gfx942`, and the device that stands for each."""

from __future__ import annotations

from gflow.dialects.records import record

from .devices import DEVICES, Device

#: the first device of each architecture of the table stands for it
_BY_ARCH: dict[int | str, Device] = {d.arch: d for d in reversed(DEVICES.values())}
#: kinds of target
KINDS = tuple(dict.fromkeys(d.kind for d in DEVICES.values()))
#: compute capabilities that code can be generated for, without the dot
CUDA_ARCHS = tuple(sorted(d.arch for d in _BY_ARCH.values() if isinstance(d.arch, int) and d.arch))
#: of a target that names none, by kind
DEFAULT_ARCHS: dict[str, int | str] = {"cpu": 0, "cuda": 80, "hip": "gfx942"}
#: what a kind's architectures are called in errors
_CALLED = {"cuda": "a compute capability without its dot", "hip": "an architecture of AMD's"}


@record
class Target:
    """kind: one of `KINDS`. arch: as in `Device.arch`: 90 for CUDA's compute capability 9.0, "gfx942"."""

    kind: str
    arch: int | str = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind

    @property
    def device(self) -> Device:
        """The device whose sizes and speeds stand for the target's."""
        return _BY_ARCH[self.arch]

    @property
    def gpu(self) -> bool:
        """Whether its code is Triton kernels that are launched, rather than functions for the processor at hand."""
        return self.device.warp > 0

    def has(self, feature: str) -> bool:
        """Whether code for the target may use a feature of `devices`."""
        return feature in self.device.features


def target_of_arch(arch: int | str) -> Target:
    """The target of an architecture, as the table has it: `cuda:90` of 90."""
    return Target(_BY_ARCH[arch].kind, arch)


def parse_target(text: str) -> Target:
    """A target by its name: `cpu`, `cuda:90`, `hip:gfx942`; `cuda` is `cuda:80`, `hip` is `hip:gfx942`.

    Raises:
        ValueError: it is unknown.
    """
    kind, colon, name = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"unknown target {text!r}; known: {', '.join(map(repr, KINDS))}")
    if not colon:
        return Target(kind, DEFAULT_ARCHS[kind])
    if kind not in _CALLED:
        raise ValueError(f"unknown target {text!r}: {kind!r} is the machine at hand")
    known = {
        str(arch): arch for arch, device in sorted(_BY_ARCH.items(), key=str) if device.kind == kind
    }
    if name not in known:
        listed = ", ".join(sorted(known, key=lambda n: (len(n), n)))
        raise ValueError(
            f"unknown target {text!r}: after '{kind}:' stands {_CALLED[kind]}, one of {listed}"
        )
    return Target(kind, known[name])
