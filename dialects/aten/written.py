"""Custom ops that write into arguments, as ops that return what they would write.

A mutable op such as `ns::f(Tensor(a!) x, Tensor(b!)[] y) -> Tensor` becomes
`gflow_written::of_2_ns_f(Tensor x, Tensor[] y) -> (Tensor, Tensor[])`: the results that are tensors of their own, and
copies of x and of all of y, as the op leaves them. It is found again by this name, in saved programs, too.
"""

from __future__ import annotations

import re
from typing import Any

NAMESPACE = "gflow_written"
#: what a schema says of the memory of a tensor
_ALIAS = re.compile(r"(?<=Tensor)\([^()]*\)")
#: kinds of results, as Python and as schemas spell them
_RESULTS = {"Tensor": "Tensor", "List[Tensor]": "Tensor[]"}
_KEPT: list[Any] = []


def written(func: Any) -> Any:
    """The op that returns what `func` would write; made at its first use. Results that are arguments are left out."""
    # the dialect itself loads without torch
    import torch

    space, name = func._schema.name.split("::")
    own = f"of_{len(space)}_{space}_{name}"
    packet = getattr(getattr(torch.ops, NAMESPACE), own, None)
    if packet is None or func._overloadname not in packet.overloads():
        _define(func, own)
        packet = getattr(getattr(torch.ops, NAMESPACE), own)
    return getattr(packet, func._overloadname)


def written_by_name(packet: str, overload: str) -> Any:
    """The op that a name in `NAMESPACE` spells.

    Raises:
        AttributeError, RuntimeError, ValueError: the op that it is made of is not known to PyTorch.
    """
    # the dialect itself loads without torch
    import torch

    length, _, rest = packet.removeprefix("of_").partition("_")
    space, name = rest[: int(length)], rest[int(length) + 1 :]
    return written(getattr(getattr(getattr(torch.ops, space), name), overload))


def names_written(func: Any) -> list[str]:
    """The arguments that an op writes into."""
    return [a.name for a in func._schema.arguments if _writes(a)]


def by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call."""
    return dict(zip((a.name for a in func._schema.arguments), args)) | kwargs


def can_be_written(func: Any) -> bool:
    """Whether an op writes into arguments, and each of its results is a tensor, tensors, or one of these arguments."""
    if not names_written(func):
        return False
    results = enumerate(func._schema.returns)
    return all(
        str(r.type) in _RESULTS if r.alias_info is None else argument_of(func, n) is not None
        for n, r in results
    )


def argument_of(func: Any, result: int) -> str | None:
    """The argument that a result of an op is."""
    found = func._schema.returns[result]
    if found.alias_info is None or str(found.type) != "Tensor":
        return None
    labels = found.alias_info.before_set
    same = [
        a.name
        for a in func._schema.arguments
        if _writes(a) and a.alias_info.before_set == labels and str(a.type) == "Tensor"
    ]
    return same[0] if len(same) == 1 else None


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _define(func: Any, own: str) -> None:
    # the dialect itself loads without torch
    import torch

    updated = names_written(func)
    kept = [r.alias_info is None for r in func._schema.returns]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = by_name(func, args, kwargs)
        given |= {k: _copy(given[k]) for k in updated if k in given}
        result = func(**given)
        results = result if len(kept) > 1 else (result,)
        copies = [t for k in updated for t in tensors_of(given.get(k))]
        mine = [r for r, own in zip(results, kept) if own]
        return (*mine, copies) if mine else copies

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _KEPT.append(library)  # what it defines goes with it
    overload = func._overloadname if func._overloadname != "default" else ""
    name = f"{own}.{overload}" if overload else own
    library.define(name + _schema(func), tags=func.tags)
    library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", call, lib=library)


def _schema(func: Any) -> str:
    """What an op takes, without what it says of memory, and its own results, and a list of tensors."""
    given = _ALIAS.sub("", str(func._schema)).partition("(")[2].rpartition(" -> ")[0]
    kinds = [_RESULTS[str(r.type)] for r in func._schema.returns if r.alias_info is None]
    return f"({given} -> ({', '.join([*kinds, 'Tensor[]'])})"


def _copy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy(v) for v in value]
    return None if value is None else value.clone()


def tensors_of(value: Any) -> list[Any]:
    """The tensors of an argument: one, a list, or none."""
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if v is not None]
