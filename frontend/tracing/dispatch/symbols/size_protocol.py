"""What the code of the author or of a layer sees of a dynamic size: an integer, as in an eager call.

PyTorch's sizes are `torch.SymInt`s. Their type is none of Python's, their comparisons give `torch.SymBool`s, and their
text has the name of a symbol. While a graph with dynamic sizes is traced, these classes answer such code as numbers do;
what depends on the value is an error if it differs between sizes of the range, as `int(n)` is. PyTorch's and gflow's
own code sees the classes as they are.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...context.location import owner_of
from ...context.threads import here_only, replaced
from .size_env import SizeEnv

_LAYERS = str(Path(torch.__file__).parent / "nn")
_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_THREADS = here_only.__code__.co_filename


@contextlib.contextmanager
def sizes_as_numbers() -> Iterator[None]:
    """Within, sizes have the types (`isinstance(n, int)`), the text and the comparisons of numbers, for this thread's
    code of authors and layers."""
    with replaced(
        (torch.SymInt, "__round__", here_only(torch.SymInt.__round__, _rounded)),
        *((kind, "__getattribute__", _reader()) for kind in _KINDS),
        *(
            (kind, name, here_only(getattr(kind, name), partial(_text, getattr(kind, name), value)))
            for kind, value in _KINDS.items()
            for name in ("__repr__", "__format__")
        ),
        *(
            (kind, name, here_only(getattr(kind, name), partial(_compared, getattr(kind, name))))
            for kind in (torch.SymInt, torch.SymFloat)
            for name in _COMPARISONS
        ),
    ):
        yield


def _reader() -> Callable[[Any, str], Any]:
    """The attribute access of sizes, whose `__class__` is that of a number."""
    owner, ident, plain = threading.get_ident(), threading.get_ident, object.__getattribute__

    def read(self: Any, name: str) -> Any:
        if name != "__class__" or type(self) not in _KINDS or ident() != owner:
            return plain(self, name)
        return _KINDS[type(self)] if _is_asked(sys._getframe(1)) else type(self)

    return read


def _is_asked(frame: FrameType | None) -> bool:
    """Whether the code of the author or of a layer asks, maybe through the standard library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file != _THREADS and (owner := owner_of(file)) != "standard":
            return owner == "user" or file.startswith(_LAYERS)
        frame = frame.f_back
    return False


def _compared(original: Callable[..., Any], number: Any, other: Any) -> Any:
    """The result of a comparison: a bool."""
    found = original(number, other)
    return bool(found) if type(found) is torch.SymBool and _is_asked(sys._getframe(1)) else found


def _rounded(number: torch.SymInt, digits: int | None = None) -> Any:
    """A size rounded to tens, hundreds, ..., which PyTorch's `__round__` leaves as it is."""
    return number if digits is None or digits >= 0 else round(int(number), digits)


def _text(original: Callable[..., str], kind: type, number: Any, *spec: str) -> str:
    env = getattr(number.node, "shape_env", None)
    if not isinstance(env, SizeEnv) or env.is_unknown(number) or not _is_asked(sys._getframe(1)):
        return original(number, *spec)
    value = kind(number)
    return format(value, *spec) if spec else repr(value)
