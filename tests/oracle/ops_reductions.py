"""Draws of reductions, scans, sorts, softmax and statistics."""

from __future__ import annotations

from .growth import Growth, Rejected, is_float, is_number

REDUCTIONS = ("sum", "mean", "amax", "amin", "sum", "mean", "nansum", "all", "any", "count_nonzero")
STATISTICS = ("var", "std", "var_mean", "std_mean")
SCANS = ("cumsum", "cumprod", "logcumsumexp", "cumsum")


def reduction(g: Growth) -> None:
    x = g.pick()
    name = g.choice(REDUCTIONS)
    if g.chance(0.3) and name not in ("amax", "amin"):
        g.emit(f"torch.{name}", x)
    else:
        dims = g.dims_of(x, 1)
        kwargs = {"keepdim": True} if g.chance(0.4) and name != "count_nonzero" else {}
        if name in ("sum", "mean") and g.chance(0.1):
            kwargs["dtype"] = {"d": g.choice(("float64", "float32"))}
        g.emit(f"torch.{name}", x, dims, **kwargs)


def product(g: Growth) -> None:
    x = g.pick(is_number)
    if g.chance(0.4):
        g.emit("torch.prod", x)
    else:
        g.emit("torch.prod", x, g.dim(x), keepdim=g.chance(0.5))


def extremum(g: Growth) -> None:
    """max and min with indices: the first of equal elements is what PyTorch gives on CPU."""
    x = g.pick(is_number)
    kind = g.rng.random()
    if kind < 0.4:
        g.emit(f"torch.{g.choice(('max', 'min'))}", x, g.dim(x), g.chance(0.4))
    elif kind < 0.6:
        g.emit(f"torch.{g.choice(('max', 'min'))}", x)
    elif kind < 0.85:
        name = f"torch.{g.choice(('argmax', 'argmin'))}"
        if g.chance(0.3):
            g.emit(name, x)
        else:
            g.emit(name, x, g.dim(x), keepdim=g.chance(0.4))
    else:
        g.emit("torch.aminmax", x, dim=g.dim(x))


def statistics(g: Growth) -> None:
    x = g.floating()
    kwargs: dict[str, object] = {"keepdim": True} if g.chance(0.4) else {}
    if g.chance(0.5):
        kwargs["correction"] = g.choice((0, 1, 2))
    g.emit(f"torch.{g.choice(STATISTICS)}", x, g.dims_of(x, 1), **kwargs)


def norm(g: Growth) -> None:
    x = g.floating()
    kind = g.rng.random()
    if kind < 0.4:
        g.emit("torch.norm", x, g.choice((2, 1, 3, float("inf"))), g.dim(x), g.chance(0.4))
    elif kind < 0.6:
        g.emit("torch.linalg.vector_norm", x, g.choice((2, 1, 0, 0.5)), g.dims_of(x, 1))
    elif kind < 0.75:
        g.emit("F.normalize", x, dim=g.dim(x))
    elif kind < 0.9:
        g.emit("torch.logsumexp", x, g.dims_of(x, 1), keepdim=g.chance(0.4))
    else:
        g.emit("F.cosine_similarity", x, g.operand(x, x.dtype), g.dim(x))


def softmax(g: Growth) -> None:
    x = g.floating(least=1)
    kwargs = {"dtype": {"d": g.choice(("float32", "float64"))}} if g.chance(0.1) else {}
    g.emit(g.choice(("torch.softmax", "torch.log_softmax", "F.softmin")), x, dim=g.dim(x), **kwargs)


def scan(g: Growth) -> None:
    x = g.pick(is_number)
    kind = g.rng.random()
    if kind < 0.7:
        g.emit(f"torch.{g.choice(SCANS)}", x, g.dim(x))
    elif kind < 0.85:
        values = g.emit(f"torch.{g.choice(('cummax', 'cummin'))}", x, g.dim(x))
        if not is_float(x.tensor):
            g.drop(_second(g, values.name))
    else:
        g.emit("torch.diff", x, 1, g.dim(x))


def _second(g: Growth, name: str):
    return next(v for v in g.values if v.name == name.replace("[0]", "[1]"))


def sort(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 1 and t.dtype.is_complex is False)
    kind = g.rng.random()
    d = g.dim(x)
    if kind < 0.4:
        g.emit("torch.sort", x, dim=d, descending=g.chance(0.5), stable=True)
    elif kind < 0.6:
        g.emit("torch.argsort", x, dim=d, descending=g.chance(0.5), stable=True)
    elif kind < 0.85:
        if not x.shape[d]:
            raise Rejected("empty")
        values = g.emit("torch.topk", x, g.rng.randint(1, x.shape[d]), d, g.chance(0.7))
        g.drop(_second(g, values.name))
    elif kind < 0.95 and x.shape[d]:
        values = g.emit("torch.kthvalue", x, g.rng.randint(1, x.shape[d]), d)
        g.drop(_second(g, values.name))
    else:
        values = g.emit("torch.median", x, d)
        g.drop(_second(g, values.name))


def distance(g: Growth) -> None:
    x = g.floating(least=1)
    y = g.matching(x.shape, x.dtype)
    kind = g.rng.random()
    if kind < 0.4 and len(x.shape) >= 2:
        g.emit("torch.cdist", x, y, g.choice((2.0, 1.0)))
    elif kind < 0.7:
        g.emit("F.pairwise_distance", x, y)
    else:
        g.emit("torch.dist", x, y)


DRAWS = [
    (10.0, reduction), (1.5, product), (5.0, extremum), (3.0, statistics), (3.0, norm), (4.0, softmax),
    (4.0, scan), (4.0, sort), (1.0, distance),
]  # fmt: skip
