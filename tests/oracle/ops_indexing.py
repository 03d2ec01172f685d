"""Draws of random access: gathers, scatters, index_*, advanced indices, embeddings, searches."""

from __future__ import annotations

from .growth import Growth, Rejected, Value


def _rank(g: Growth, least: int = 1) -> Value:
    return g.pick(lambda t: t.dim() >= least and t.numel() > 0)


def advanced(g: Growth) -> None:
    """`x[i]`, `x[:, i]`, `x[i, j]`, `x[i, 1:]`."""
    x = _rank(g)
    shape = g.shape(g.choice((0, 1, 1, 2)))
    index: list[object] = []
    for n in x.shape:
        kind = g.rng.random()
        if kind < 0.5:
            index.append(g.index(shape if g.chance(0.8) else (1,), n, negative=True))
        elif kind < 0.9:
            index.append(slice(None, None, None))
        else:
            index.append(g.rng.randrange(n))
    index = index[: g.rng.randint(1, len(index))]
    kind = g.rng.random()
    if kind < 0.6:
        g.emit("getitem", x, tuple(index))
    else:
        g.emit("setitem", x, tuple(index), g.number(x.dtype), effect=True)


def masked(g: Growth) -> None:
    """`x[mask] = number`."""
    x = g.pick()
    mask = g.matching(x.shape, "bool")
    g.emit("setitem", x, mask, g.number(x.dtype), effect=True)


def select(g: Growth) -> None:
    x = _rank(g)
    d = g.rng.randrange(len(x.shape))
    i = g.index((g.choice((1, 2, 5)),), x.shape[d])
    kind = g.rng.random()
    if kind < 0.6:
        g.emit("torch.index_select", x, d, i)
    elif kind < 0.8:
        g.emit("torch.take", x, g.index(g.shape(), x.tensor.numel()))
    else:
        g.emit("getitem", x, (*[slice(None, None, None)] * d, i))


def gather(g: Growth) -> None:
    x = _rank(g)
    d = g.rng.randrange(len(x.shape))
    shape = [g.rng.randint(1, n) for n in x.shape]
    shape[d] = g.choice((1, 2, 4))
    i = g.index(shape, x.shape[d])
    g.emit(g.choice(("torch.gather", "torch.gather")), x, d, i)


def scatter(g: Growth) -> None:
    x = _rank(g)
    d = g.rng.randrange(len(x.shape))
    shape = [g.rng.randint(1, n) for n in x.shape]
    add = g.chance(0.6)
    if not add:  # which of several equal indices wins is open
        shape = [1 if e != d else g.rng.randint(1, x.shape[d]) for e in range(len(shape))]
    i = g.index(shape, x.shape[d], distinct=not add)
    source = g.argument(shape, x.dtype)
    in_place = g.chance(0.4)
    if add:
        name = "scatter_add"
        if g.chance(0.3):
            mode = g.choice(("sum", "amax", "amin", "mean", "prod"))
            args = [x, d, i, source, mode]
            kwargs = {"include_self": g.chance(0.7)}
            if in_place:
                g.emit(".scatter_reduce_", *args, effect=True, **kwargs)
            else:
                g.emit("torch.scatter_reduce", *args, **kwargs)
            return
        args = [x, d, i, source]
    else:
        name, args = "scatter", [x, d, i, source if g.chance(0.6) else g.number(x.dtype)]
    if in_place:
        g.emit(f".{name}_", *args, effect=True)
    else:
        g.emit(f"torch.{name}", *args)


def index_write(g: Growth) -> None:
    """index_add, index_copy, index_fill, index_put, put."""
    x = _rank(g)
    d = g.rng.randrange(len(x.shape))
    name = g.choice(
        ("index_add", "index_copy", "index_fill", "index_put", "index_put", "index_add")
    )
    count = g.rng.randint(1, x.shape[d]) if name != "index_add" else g.choice((1, 3, 6))
    in_place = g.chance(0.4)
    if name == "index_put":
        accumulate = g.chance(0.5)
        i = g.index((count,), x.shape[0], negative=True, distinct=False) if accumulate else g.index(
            (g.rng.randint(1, x.shape[0]),), x.shape[0], distinct=True)  # fmt: skip
        source = g.argument([*i.shape, *x.shape[1:]], x.dtype)
        args: list[object] = [x, (i,), source, accumulate]
    else:
        i = g.index((count,), x.shape[d], distinct=name != "index_add")
        shape = [*x.shape]
        shape[d] = count
        args = [x, d, i, g.number(x.dtype) if name == "index_fill" else g.argument(shape, x.dtype)]
    if in_place:
        g.emit(f".{name}_", *args, effect=True)
    else:
        g.emit(f"torch.{name}", *args)


def embedding(g: Growth) -> None:
    rows, width = g.choice((4, 7, 12)), g.choice((1, 3, 8))
    weight = g.argument((rows, width), g.float_dtype())
    i = g.index(g.shape(g.choice((1, 2))), rows)
    kwargs = {"padding_idx": g.rng.randrange(rows)} if g.chance(0.3) else {}
    g.emit("F.embedding", i, weight, **kwargs)


def one_hot(g: Growth) -> None:
    n = g.choice((3, 5))
    g.emit("F.one_hot", g.index(g.shape(g.choice((0, 1, 2))), n), n)


def search(g: Growth) -> None:
    x = g.floating()
    edges = g.emit(
        "torch.sort", g.argument((g.choice((1, 4, 9)),), x.dtype, role="input"), stable=True
    )
    g.emit(g.choice(("torch.bucketize", "torch.searchsorted"))
           if False else "torch.bucketize", x, edges, right=g.chance(0.5))  # fmt: skip


def take_along(g: Growth) -> None:
    x = _rank(g)
    d = g.rng.randrange(len(x.shape))
    if x.tensor.dtype.is_complex:
        raise Rejected("no order")
    i = g.emit("torch.argsort", x, dim=d, stable=True)
    g.emit("torch.take_along_dim", x, i, d)


DRAWS = [
    (4.0, advanced), (1.5, masked), (3.0, select), (2.0, gather), (3.0, scatter), (3.0, index_write),
    (2.0, embedding), (1.0, one_hot), (0.7, search), (0.7, take_along),
]  # fmt: skip
