"""One call of a graph, with its arguments bound to the parameters of `build()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_unflatten

from .sizes import Dynamic


@dataclass(eq=False, slots=True)
class BoundCall:
    """A call in a normal form: arguments are positional where possible, and omitted ones have their defaults.

    Args:
        args, kwargs: the arguments of `build()`.
        leaves: the same, flattened by `structure`.
        key: everything that a trace depends on, hashable; calls with equal keys share a program.
        dynamic: the dynamic dimensions.
        numbers: the indices of leaves that are floats and inputs of the program.
        values: the current values of these.
        plain_key: the key including these values.
    """

    build: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: Sequence[Any]
    key: tuple[Any, ...]
    dynamic: Dynamic | None = None
    numbers: tuple[int, ...] = ()
    values: dict[int, float] = field(default_factory=dict)
    plain_key: tuple[Any, ...] = ()

    @property
    def structure(self) -> TreeSpec:
        """The nested structure of the leaves."""
        return tree_flatten((self.args, self.kwargs))[1]

    @property
    def names(self) -> list[str]:
        """A dotted name for every leaf: `x`, `batch.image`, `args.1`."""
        return input_names(self.build, self.args, self.kwargs)

    def with_leaves(self, leaves: Sequence[Any]) -> BoundCall:
        """The same call with other leaves."""
        args, kwargs = tree_unflatten(leaves, self.structure)
        return replace(self, args=args, kwargs=kwargs, leaves=leaves)


def input_names(
    build: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """A dotted name for every leaf of the arguments: `x`, `batch.image`, `args.1`."""
    try:
        parameters = list(inspect.signature(build).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names: list[str] = []
    for i, arg in enumerate(args):
        base = positional[i] if i < len(positional) else f"args.{i}"
        names += _leaf_names(base, arg)
    for key, arg in kwargs.items():
        names += _leaf_names(key, arg)
    return names


def _leaf_names(base: str, arg: Any) -> list[str]:
    paths, _ = tree_flatten_with_path(arg)
    names = []
    for path, _leaf in paths:
        keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path]
        names.append(".".join([base, *(str(k) for k in keys)]))
    return names
