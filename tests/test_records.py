"""`record` beside `dataclass(frozen=True)`: the same answers to everything that the project asks of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property, partial
from typing import Any

import pytest

from gflow.dialects.records import record

_FROZEN = partial(dataclass, frozen=True)
_NAN = float("nan")


def _point(decorator: Callable[..., Any]) -> Any:
    @decorator
    class Point:
        """Two fields, one with a default that is made anew, one that is not compared."""

        x: float
        names: list[str] = field(default_factory=list, repr=False, hash=False)
        note: str = field(default="", compare=False)

        @cached_property
        def double(self) -> float:
            return 2 * self.x

    return Point


def _far(decorator: Callable[..., Any]) -> Any:
    @decorator
    class Far(_point(decorator)):  # type: ignore[misc]
        z: int = 3

        def __post_init__(self) -> None:
            if self.z < 0:
                raise ValueError("z")

    return Far


def _keywords(decorator: Callable[..., Any]) -> Any:
    @decorator(kw_only=True)
    class Base:
        a: int = 1

    @decorator
    class Last(Base):
        b: int

    return Last


def _outcome(ask: Callable[[], Any]) -> Any:
    """What asking gives, or the error's kind and text."""
    try:
        return ask()
    except (TypeError, ValueError, FrozenInstanceError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("make", [_point, _far])
def test_as_a_frozen_dataclass(make: Callable[..., Any]) -> None:
    def answers(cls: Any) -> list[Any]:
        one, same, other = cls(_NAN, ["n"], "m"), cls(_NAN, ["n"]), cls(1.5)
        return [
            _outcome(ask)
            for ask in (
                lambda: repr(other),
                lambda: (one == same, one == other, one == 1, hash(one) == hash(same)),
                lambda: hash(one) == hash(cls(_NAN, ["another"])),
                lambda: cls(1.0).names is cls(1.0).names,
                lambda: other.double + other.double,
                lambda: dataclasses.asdict(other),
                lambda: repr(dataclasses.replace(other, x=2.0)),
                lambda: [(f.name, f.compare) for f in dataclasses.fields(cls)],
                lambda: cls.__match_args__,
                lambda: copy.deepcopy(other) == other,
                lambda: setattr(other, "x", 0.0),
                lambda: delattr(other, "x"),
                lambda: cls(),
                lambda: cls(1.0, z=-1),
            )
        ]

    assert answers(make(record)) == answers(make(_FROZEN))


def test_fields_by_keyword_come_after_those_of_subclasses() -> None:
    for decorator in (record, _FROZEN):
        last = _keywords(decorator)
        assert repr(last(2)).endswith("Last(a=1, b=2)")
        assert last(2, a=5) == last(b=2, a=5)
        assert "positional" in str(_outcome(lambda last=last: last(2, 5)))


@record
class _Pickled:
    value: int


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(_Pickled(3))) == _Pickled(3)  # noqa: S301  # its own bytes
