"""Models as users write them, in plain PyTorch, and the harness that trains them both ways."""

from .attention import CASES as _attention
from .case import Case
from .convnets import CASES as _convnets
from .losses import CASES as _losses
from .mixed import CASES as _mixed
from .recurrent import CASES as _recurrent
from .tensor_programs import CASES as _tensor_programs

GROUPS: dict[str, list[Case]] = {
    "convnets": _convnets,
    "attention": _attention,
    "recurrent": _recurrent,
    "mixed": _mixed,
    "losses": _losses,
    "tensor programs": _tensor_programs,
}
CASES: list[Case] = [case for cases in GROUPS.values() for case in cases]
