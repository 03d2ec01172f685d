"""Draws of what surrounds ops (`structures`), for seeds from `STRUCTURES` on."""

from __future__ import annotations

from . import structures
from .growth import Growth, is_float

#: wrappers that some programs cannot have, or that a graph refuses: drawn less often
_SELDOM = ("grad", "vmap", "vmap, last", "cond", "second", "checkpoint, reentrant")


def wrap(g: Growth) -> None:
    x = g.floating()
    y = g.matching(x.shape, x.dtype)
    names = [n for n in structures.WRAPPERS if n not in _SELDOM or g.chance(0.25)]
    if g.settings.mode.startswith(
        "dynamo"
    ):  # AOTAutograd shows hooks what it keeps, not what eager does
        names.remove("saved")
    g.emit("K.wrapped", x, y, g.choice(names), g.choice(list(structures.BODIES)))


def alias(g: Growth) -> None:
    g.emit("K.aliases", g.pick(), g.choice(list(structures.ALIASES)))


def form(g: Growth) -> None:
    form = g.choice(("last", "last, 3d", "rows", "as it is"))
    x = g.floating(rank={"last": 4, "last, 3d": 5}.get(form))
    g.emit("K.formed", x, g.operand(x), form)


def size(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 1 and is_float(t))
    g.emit("K.by_sizes", x, g.choice(structures.SIZES))


def duplicates(g: Growth) -> None:
    """Sums into elements that several indices name, with gradients of both."""
    x = g.floating(least=1)
    n = x.shape[0]
    i = g.index((g.choice((2, 5, 9)),), n)
    source = g.matching((i.shape[0], *x.shape[1:]), x.dtype)
    kind = g.rng.random()
    if kind < 0.4:
        g.emit("torch.index_put", x, (i,), source, g.chance(0.8))
    elif kind < 0.7:
        g.emit("torch.index_add", x, 0, i, source, alpha=g.choice((1, 0.5)))
    else:
        y = g.emit("torch.mul", x, 1)
        g.emit("setitem", y, i, g.number(x.dtype), effect=True)


def promotion(g: Growth) -> None:
    """Python numbers, 0-d tensors and other dtypes beside a tensor."""
    x = g.pick()
    op = g.choice(("+", "*", "-", "torch.add", "torch.maximum", "torch.where", "/"))
    other = g.argument((), g.choice(("float64", "float32", "int64", "bool", "float16", "bfloat16")))
    if op == "torch.where":
        g.emit(op, g.matching(x.shape, "bool"), x, other if g.chance(0.5) else g.number())
    elif g.chance(0.5):
        g.emit(op, x, other)
    else:
        g.emit(op, other, x)


DRAWS = [
    (60.0, wrap), (20.0, alias), (8.0, form), (12.0, size), (12.0, duplicates), (10.0, promotion),
]  # fmt: skip
