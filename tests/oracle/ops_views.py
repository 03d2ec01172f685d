"""Draws of views, copies of data, and joins; each view may be written through later."""

from __future__ import annotations

from .growth import Growth, Rejected, Value, is_float


def _factor(g: Growth, n: int) -> tuple[int, int]:
    found = [(a, n // a) for a in range(1, n + 1) if n % a == 0] or [(0, 1)]
    return g.choice(found)


def transpose(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 2)
    kind = g.rng.random()
    if kind < 0.4:
        g.emit("torch.transpose", x, g.dim(x), g.dim(x))
    elif kind < 0.7:
        g.emit(".permute", x, g.rng.sample(range(len(x.shape)), len(x.shape)))
    elif kind < 0.8:
        g.emit(f"@{g.choice(('mT', 'mH'))}", x)
    elif kind < 0.9 and len(x.shape) == 2:
        g.emit(".t", x)
    else:
        g.emit("torch.movedim", x, g.dim(x), g.dim(x))


def reshape(g: Growth) -> None:
    x = g.pick()
    kind = g.rng.random()
    if kind < 0.25:
        g.emit(g.choice(("torch.flatten", "torch.ravel")), x)
    elif kind < 0.5 and x.shape:
        d = g.rng.randrange(len(x.shape))
        a, b = _factor(g, x.shape[d])
        shape = [*x.shape[:d], a, b, *x.shape[d + 1 :]]
        g.emit(g.choice((".reshape", ".view", ".reshape")), x, shape)
    elif kind < 0.6 and x.shape:
        d = g.rng.randrange(len(x.shape))
        g.emit(".unflatten", x, d, list(_factor(g, x.shape[d])))
    elif kind < 0.75 and len(x.shape) >= 2:
        first = g.rng.randrange(len(x.shape) - 1)
        g.emit("torch.flatten", x, first, first + 1)
    elif kind < 0.85:
        g.emit(".view", x, [-1])
    else:
        g.emit(".reshape", x, list(g.rng.sample(x.shape, len(x.shape))))


def squeeze(g: Growth) -> None:
    x = g.pick()
    if g.chance(0.5):
        g.emit("torch.unsqueeze", x, g.rng.randint(-len(x.shape) - 1, len(x.shape)))
    elif g.chance(0.5):
        g.emit("torch.squeeze", x)
    else:
        g.emit("torch.squeeze", x, g.dim(x))


def expand(g: Growth) -> None:
    x = g.pick()
    shape = [g.choice((2, 3)) if n == 1 and g.chance(0.7) else n for n in x.shape]
    if g.chance(0.5):
        shape = [g.choice((1, 2, 3)), *shape]
    kind = g.rng.random()
    if kind < 0.6:
        g.emit(".expand", x, shape)
    elif kind < 0.8:
        g.emit("torch.broadcast_to", x, shape)
    else:
        g.emit(".expand_as", x, g.operand(x))


def narrow(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 1 and t.numel() > 0)
    d = g.rng.randrange(len(x.shape))
    n = x.shape[d]
    start = g.rng.randrange(n)
    kind = g.rng.random()
    if kind < 0.4:
        g.emit("torch.narrow", x, d, start, g.rng.randint(1, n - start))
    elif kind < 0.8:
        g.emit("torch.select", x, d, g.choice((start, -1)))
    else:
        g.emit("torch.diagonal", x, g.choice((0, 1, -1)), g.dim(x), g.dim(x))


def random_index(g: Growth, x: Value) -> tuple[object, ...]:
    """Integers, slices, None and ... for `x[...]`."""
    index: list[object] = []
    for n in x.shape:
        kind = g.rng.random()
        if n == 0 or kind < 0.3:
            index.append(slice(None, None, None))
        elif kind < 0.5:
            index.append(g.rng.randrange(-n, n))
        elif kind < 0.9:
            a = g.rng.randrange(n)
            b = g.choice((None, g.rng.randint(a, n), -1))
            index.append(slice(a if g.chance(0.7) else None, b, g.choice((None, None, 1, 2, 3))))
        else:
            index.append(None)
            index.append(slice(None, None, None))
    cut = g.rng.randint(0, len(index))
    if g.chance(0.3):
        index = [*index[:cut], Ellipsis] if g.chance(0.6) else [Ellipsis, *index[cut:]]
    return tuple(index) or (Ellipsis,)


def getitem(g: Growth) -> None:
    x = g.pick()
    g.emit("getitem", x, random_index(g, x))


def setitem(g: Growth) -> None:
    x = g.pick()
    index = random_index(g, x)
    kind = g.rng.random()
    if kind < 0.4:
        value: object = g.number(x.dtype)
    else:
        part = g.emit("getitem", x, index)
        value = g.operand(part)
    g.emit("setitem", x, index, value, effect=True)


def split(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 1 and t.numel() > 0)
    d = g.rng.randrange(len(x.shape))
    n = x.shape[d]
    kind = g.rng.random()
    if kind < 0.35:
        g.emit("torch.chunk", x, g.choice((2, 3)), d)
    elif kind < 0.6:
        g.emit("torch.split", x, g.rng.randint(1, n), d)
    elif kind < 0.75:
        a = g.rng.randint(0, n)
        g.emit("torch.split", x, [a, n - a], d)
    elif n <= 8:
        g.emit("torch.unbind", x, d)
    else:
        raise Rejected("too many parts")


def windows(g: Growth) -> None:
    x = g.pick(lambda t: t.dim() >= 1 and t.numel() > 0)
    d = g.rng.randrange(len(x.shape))
    g.emit(".unfold", x, d, g.rng.randint(1, x.shape[d]), g.choice((1, 2, 3)))


def rearrange(g: Growth) -> None:
    """Results that are new tensors in another order."""
    x = g.pick()
    kind = g.rng.random()
    rank = len(x.shape)
    if kind < 0.2:
        g.emit("torch.flip", x, g.dims_of(x, 1))
    elif kind < 0.4:
        if g.chance(0.3):
            g.emit("torch.roll", x, g.choice((1, -2, 5)))
        else:
            g.emit("torch.roll", x, g.choice((1, -1, 3)), g.dim(x))
    elif kind < 0.5 and rank >= 2:
        g.emit("torch.rot90", x, g.choice((1, 2, -1)), g.rng.sample(range(rank), 2))
    elif kind < 0.65:
        g.emit(".repeat", x, [g.choice((1, 2, 3)) for _ in range(rank + g.choice((0, 0, 1)))])
    elif kind < 0.75:
        g.emit("torch.repeat_interleave", x, g.choice((1, 2, 3)), g.dim(x))
    elif kind < 0.88:
        g.emit(f"torch.{g.choice(('tril', 'triu'))}", x, g.choice((0, 1, -1)))
    elif rank in (1, 2):
        g.emit(g.choice(("torch.diag", "torch.diag_embed", "torch.diagflat")), x)
    else:
        g.emit("torch.tile", x, [g.choice((1, 2)) for _ in range(rank)])


def copy(g: Growth) -> None:
    x = g.pick()
    kind = g.rng.random()
    if kind < 0.4:
        g.emit(".contiguous", x)
    elif kind < 0.7:
        g.emit(".clone", x)
    elif kind < 0.85 and len(x.shape) == 4:
        g.emit(".contiguous", x, memory_format={"py": "torch.channels_last"})
    else:
        g.emit(".detach", x)


def join(g: Growth) -> None:
    x = g.pick()
    parts = [x]
    for _ in range(g.choice((1, 1, 2))):
        parts.append(g.matching(x.shape, x.dtype))
    g.rng.shuffle(parts)
    kind = g.rng.random()
    if kind < 0.5:
        d = g.dim(x)
        if g.chance(0.4):
            shape = list(x.shape)
            shape[d] = g.choice((1, 2, 3))
            parts.append(g.argument(shape, g.dtype() if g.chance(0.3) else x.dtype))
        g.emit("torch.cat", parts, d)
    elif kind < 0.8:
        g.emit("torch.stack", parts, g.rng.randint(-len(x.shape) - 1, len(x.shape)))
    else:
        g.emit(f"torch.{g.choice(('hstack', 'vstack', 'dstack', 'column_stack'))}", parts)


def pad(g: Growth) -> None:
    x = g.floating(least=1)
    rank = len(x.shape)
    if g.chance(0.6):
        sizes = [
            g.choice((0, 1, 2, -1 if g.chance(0.2) else 0))
            for _ in range(2 * g.rng.randint(1, rank))
        ]
        g.emit("F.pad", x, sizes, value=g.choice((0, 1.5, None)))
    else:
        x = g.floating(rank=g.choice((3, 4)))
        sizes = [g.choice((0, 1, 2)) for _ in range(2 * (len(x.shape) - 2))]
        g.emit("F.pad", x, sizes, mode=g.choice(("reflect", "replicate", "circular")))


def strided(g: Growth) -> None:
    """`as_strided` of memory that the tensor covers."""
    x = g.pick(lambda t: t.is_contiguous() and t.numel() > 1)
    n = x.tensor.numel()
    a = g.rng.randint(1, min(n, 6))
    step = g.choice((1, 2, 1))
    if (a - 1) * step >= n:
        raise Rejected("beyond the tensor")
    b = g.rng.randint(1, min(n - (a - 1) * step, 4))
    g.emit(".as_strided", x, [a, b], [step, 1])


def parts_of_complex(g: Growth) -> None:
    if g.chance(0.5):
        x = g.pick(lambda t: t.is_complex())
        g.emit(
            g.choice(
                (
                    "torch.real",
                    "torch.imag",
                    "torch.view_as_real",
                    "torch.conj",
                    "torch.abs",
                    "torch.angle",
                )
            ),
            x,
        )
    else:
        x = g.pick(lambda t: t.dtype.itemsize in (4, 8) and is_float(t))
        g.emit("torch.complex", x, g.matching(x.shape, x.dtype))


def view_in_place(g: Growth) -> None:
    """A view, a write through it, and a reader of what it is a view of."""
    x = g.pick()
    kind = g.rng.random()
    if kind < 0.3:
        y = g.emit("getitem", x, random_index(g, x))
    elif kind < 0.5 and len(x.shape) >= 2:
        y = g.emit("torch.transpose", x, g.dim(x), g.dim(x))
    elif kind < 0.7:
        y = g.emit(".view", x, [-1])
    elif kind < 0.85 and len(x.shape) >= 2:
        y = g.emit("torch.diagonal", x, 0, 0, 1)
    else:
        y = x
    how = g.rng.random()
    if how < 0.4:
        g.emit(g.choice((".add_", ".mul_", ".fill_")), y, g.number(y.dtype), effect=True)
    elif how < 0.7:
        g.emit(g.choice((".add_", ".mul_", ".copy_", ".sub_")), y, g.operand(y), effect=True)
    else:
        g.emit(g.choice((".neg_", ".zero_", ".sigmoid_", ".abs_")), y, effect=True)
    if g.chance(0.5):
        g.emit(g.choice(("torch.sum", "torch.neg", ".clone", ".contiguous", "torch.flatten")), x)


DRAWS = [
    (6.0, transpose), (6.0, reshape), (3.0, squeeze), (4.0, expand), (5.0, narrow), (6.0, getitem),
    (4.0, setitem), (4.0, split), (1.0, windows), (5.0, rearrange), (3.0, copy), (5.0, join), (2.0, pad),
    (0.3, strided), (1.0, parts_of_complex), (7.0, view_in_place),
]  # fmt: skip
