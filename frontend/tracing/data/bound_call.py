"""One call of a graph, its arguments bound to the parameters of `build()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_unflatten

from .sizes import Dynamic


@dataclass(eq=False, slots=True)
class BoundCall:
    """A call as it is traced and run, however it was spelled: parameters that can be positional are, and those
    that were left out have their defaults.

    args, kwargs: what `build` is called with. leaves: the same, flattened, as `structure` has them; key: all that
    a trace depends on, hashable: equal keys are calls of one program. dynamic: dimensions that vary. numbers: the
    leaves that are floats and inputs, whose present values `values` has; plain_key: the key with them.
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
        """How the leaves are nested."""
        return tree_flatten((self.args, self.kwargs))[1]

    @property
    def names(self) -> list[str]:
        """A dotted name for every leaf: `x`, `batch.image`, `args.1`."""
        return input_names(self.build, self.args, self.kwargs)

    def with_leaves(self, leaves: Sequence[Any]) -> BoundCall:
        """The same call of other leaves."""
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
