"""What a run of the check does, in which order, and how long each part may take: prepared calls.

A GPU may be at hand for a few minutes only, so what is wanted most comes first, and a part that is slow takes its share
and not the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass

#: what runs as functions of `sections`, and besides
NAMES = ("contractions", "steps", "bandwidth", "numerics", "models", "sanitizer")
TOOLS = ("memcheck", "racecheck")


Waves = tuple[tuple[str, ...], ...]
#: the peers of steps in the order in which they prepare; see `steps`
WAVES: Waves = (("exact", "eager"), ("gflow",), ("compile", "max-autotune"), ("own kernels",))
#: where time is short: gflow's races are over before torch.compile uses the GPU
SIDE_BY_SIDE: Waves = (
    ("exact", "eager"),
    ("gflow", "compile", "max-autotune"),
    ("own kernels",),
)
WITHOUT_MAX_AUTOTUNE: Waves = (("exact", "eager"), ("gflow", "compile"))


@dataclass(frozen=True)
class Part:
    """section: of `NAMES`. only: rows whose names begin with one of these; all without. share: of the time that is
    left when the part begins. waves: of the peers of steps."""

    section: str
    only: tuple[str, ...] = ()
    share: float = 1.0
    waves: Waves = WAVES


@dataclass(frozen=True)
class Call:
    """minutes: of a command that must end within ten, with what the script does before and after."""

    what: str
    parts: tuple[Part, ...]
    minutes: float = 9.0


#: minutes that a machine may be held in all, with its start and transfers, for "device" and "device-rest" together;
#: and what of them starts and transfers take
HELD, STARTS = 15.0, 4.0

CALLS = {
    "device": Call(
        "the most wanted rows, where a machine is at hand for 15 minutes: training of GPT-2 beside eager, "
        "torch.compile and max-autotune, then products and attention, ResNet-50 and BERT, memory-bound kernels",
        (
            Part("steps", ("gpt2 training",), 0.6, SIDE_BY_SIDE),
            Part("contractions", ("matmul",), 0.35),
            Part("contractions", ("attention",), 0.5),
            Part("steps", ("resnet50_amp training", "bert training"), 0.75, WITHOUT_MAX_AUTOTUNE),
            Part("bandwidth"),
        ),
    ),
    "device-rest": Call(
        "what is left of these 15 minutes: the numerics on the same machine",
        (Part("numerics", (), 0.6), Part("models")),
        2.0,
    ),
    "products": Call(
        "checked products and attention, each configuration of our kernels, then races in shared memory",
        (
            Part("contractions", ("matmul",), 0.45),
            Part("contractions", ("attention",), 0.75),
            Part("sanitizer"),
        ),
    ),
    "gpt2": Call(
        "training of GPT-2 beside eager, torch.compile and max-autotune, then memory-bound kernels",
        (Part("steps", ("gpt2 training",)), Part("bandwidth")),
    ),
    "resnet": Call(
        "training of ResNet-50 in mixed precision, then the numerics",
        (
            Part("steps", ("resnet50_amp training",), 0.65),
            Part("numerics", (), 0.8),
            Part("models"),
        ),
    ),
    "all": Call(
        "everything, a share of the time for each section",
        (
            Part("contractions", ("matmul", "attention"), 0.3),
            Part("steps", ("gpt2 training", "resnet50_amp training"), 0.5),
            Part("numerics", (), 0.35),
            Part("models", (), 0.3),
            Part("bandwidth", (), 0.3),
            Part("contractions", ("conv",), 0.4),
            Part("steps", (), 0.85),
            Part("sanitizer"),
        ),
        8.0,
    ),
}


def parts_of(call: str, sections: tuple[str, ...]) -> tuple[Part, ...]:
    """The parts of a call, or those of its parts in the sections that are named; a section that it does not have
    comes after them, whole."""
    if not sections:
        return CALLS[call].parts
    if call != "all":
        kept = tuple(part for part in CALLS[call].parts if part.section in sections)
        rest = tuple(Part(name) for name in sections if name not in {p.section for p in kept})
        return kept + rest
    return tuple(Part(name) for name in sections)
