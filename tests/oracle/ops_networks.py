"""Draws of contractions, convolutions, pooling, norms, attention, losses, resampling."""

from __future__ import annotations

from .growth import Growth, Rejected, Value, is_float, is_number


def matmul(g: Growth) -> None:
    x = g.pick(lambda t: is_number(t) and t.dim() >= 1)
    k = x.shape[-1]
    n = g.choice(g.dims)
    kind = g.rng.random()
    if kind < 0.2:
        shape: tuple[int, ...] = (k,)
    elif kind < 0.6 or len(x.shape) < 3:
        shape = (k, n)
    else:
        shape = (*(m if g.chance(0.7) else 1 for m in x.shape[:-2]), k, n)
    y = g.matching(shape, x.dtype)
    if g.chance(0.3) and len(shape) == 2:
        y = g.emit(".t", g.argument((n, k), x.dtype))
    g.emit(g.choice(("torch.matmul", "@")), x, y)


def product(g: Growth) -> None:
    """mm, bmm, mv, dot, outer, addmm, baddbmm, tensordot, inner."""
    dtype = g.main if g.main != "bool" else "float32"
    m, k, n, b = (g.choice(g.dims) for _ in range(4))
    kind = g.choice(
        (
            "mm",
            "bmm",
            "mv",
            "dot",
            "outer",
            "addmm",
            "baddbmm",
            "addmv",
            "inner",
            "tensordot",
            "addbmm",
        )
    )
    scale = {"beta": g.choice((0, 1, 2)), "alpha": g.choice((1, 3))} if g.chance(0.4) else {}
    a = g.matching((m, k), dtype)
    if kind == "mm":
        g.emit("torch.mm", a, g.matching((k, n), dtype))
    elif kind in ("bmm", "baddbmm", "addbmm"):
        x, y = g.matching((b, m, k), dtype), g.matching((b, k, n), dtype)
        if kind == "bmm":
            g.emit("torch.bmm", x, y)
        elif kind == "addbmm":
            g.emit("torch.addbmm", g.argument((m, n), dtype), x, y, **scale)
        else:
            c = g.argument(g.choice(((b, m, n), (n,), (1, m, 1))), dtype)
            g.emit("torch.baddbmm", c, x, y, **scale)
    elif kind == "mv":
        g.emit("torch.mv", a, g.matching((k,), dtype))
    elif kind in ("dot", "outer", "inner"):
        g.emit(
            f"torch.{kind}",
            g.matching((k,), dtype),
            g.matching((n if kind == "outer" else k,), dtype),
        )
    elif kind == "addmv":
        g.emit("torch.addmv", g.argument((m,), dtype), a, g.matching((k,), dtype), **scale)
    elif kind == "addmm":
        c = g.argument(g.choice(((m, n), (n,), (1, n), (m, 1), ())), dtype)
        g.emit("torch.addmm", c, a, g.matching((k, n), dtype), **scale)
    else:
        g.emit("torch.tensordot", a, g.matching((n, k), dtype), ([1], [1]))


EINSUMS = (
    "ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "ij->ji", "ii->i", "ij->",
    "ij,ij->i", "i,j->ij", "bij,jk->bik", "ij,j->i", "bi,bj->bij", "ijk->ik", "ij,jk,kl->il", "bid,bjd->bij",
)  # fmt: skip


def einsum(g: Growth) -> None:
    text = g.choice(EINSUMS)
    sizes: dict[str, int] = {}
    operands = []
    for part in text.partition("->")[0].split(","):
        shape = tuple(sizes.setdefault(c, g.choice(g.dims)) for c in part)
        operands.append(g.matching(shape, g.float_dtype()))
    g.emit("torch.einsum", text, *operands)


def linear(g: Growth) -> None:
    x = g.floating(least=1)
    out = g.choice(g.dims)
    weight = g.argument((out, x.shape[-1]), x.dtype)
    bias = [g.argument((out,), x.dtype)] if g.chance(0.6) else []
    g.emit("F.linear", x, weight, *bias)


def _image(g: Growth, spatial: int, channels: int | None = None) -> Value:
    """(N, C, ...) or now and then (C, ...)."""
    dtype = g.float_dtype()
    found = [
        v for v in g.values if v.dtype == dtype and len(v.shape) == spatial + 2 and 0 not in v.shape
    ]
    if found and channels is None and g.chance(0.6):
        return g.rng.choice(found)
    sizes = [g.choice((3, 4, 5, 7, 8)) for _ in range(spatial)]
    head = [g.choice((1, 2, 3)), channels or g.choice((1, 2, 3, 4, 8))]
    return g.argument((*head, *sizes), dtype)


def convolution(g: Growth) -> None:
    spatial = g.choice((1, 2, 2, 2, 3))
    x = _image(g, spatial)
    channels = x.shape[1]
    transposed = g.chance(0.25)
    groups = g.choice([d for d in (1, 1, 1, 2, 4, channels) if channels % d == 0])
    out = groups * g.choice((1, 2, 3))
    kernel = [g.choice((1, 2, 3, 3)) for _ in range(spatial)]
    shape = (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    weight = g.argument(shape, x.dtype)
    bias = g.argument((out,), x.dtype) if g.chance(0.5) else None
    kwargs: dict[str, object] = {"groups": groups}
    if g.chance(0.5):
        kwargs["stride"] = g.choice((1, 2, 3))
    if g.chance(0.5):
        kwargs["padding"] = g.choice((0, 1, 2))
        if g.chance(0.15) and not transposed:
            kwargs["padding"] = g.choice(("same", "valid"))
    if g.chance(0.25):
        kwargs["dilation"] = g.choice((1, 2))
    if transposed and g.chance(0.3):
        kwargs["output_padding"] = 1
    g.emit(f"F.conv{'_transpose' if transposed else ''}{spatial}d", x, weight, bias, **kwargs)


def pooling(g: Growth) -> None:
    spatial = g.choice((1, 2, 2, 3))
    x = _image(g, spatial)
    kind = g.rng.random()
    kwargs: dict[str, object] = {}
    if kind < 0.7:
        if g.chance(0.5):
            kwargs["stride"] = g.choice((1, 2))
        if g.chance(0.4):
            kwargs["padding"] = 1
        if g.chance(0.3):
            kwargs["ceil_mode"] = True
        if kind < 0.35:
            if g.chance(0.2):
                kwargs["dilation"] = 2
            g.emit(f"F.max_pool{spatial}d", x, g.choice((2, 3)), **kwargs)
        else:
            if g.chance(0.3):
                kwargs["count_include_pad"] = False
            g.emit(f"F.avg_pool{spatial}d", x, g.choice((2, 3)), **kwargs)
    elif kind < 0.85:
        g.emit(f"F.adaptive_avg_pool{spatial}d", x, g.choice((1, 2, 3)))
    elif kind < 0.95:
        g.emit(f"F.adaptive_max_pool{spatial}d", x, g.choice((1, 2, 3)))
    elif spatial < 3:
        g.emit(f"F.lp_pool{spatial}d", x, 2.0, 2)


def norm(g: Growth) -> None:
    kind = g.choice(("layer", "layer", "group", "batch", "batch", "instance", "rms"))
    x = g.floating(least=1 if kind in ("layer", "rms") else 2)
    if kind in ("layer", "rms"):
        count = g.rng.randint(1, len(x.shape))
        shape = list(x.shape[-count:])
        weight = g.argument(shape, x.dtype) if g.chance(0.6) else None
        if kind == "rms":
            g.emit("F.rms_norm", x, shape, weight)
        else:
            bias = g.argument(shape, x.dtype) if weight is not None and g.chance(0.7) else None
            g.emit(
                "F.layer_norm", x, shape, weight, bias, **({"eps": 1e-3} if g.chance(0.3) else {})
            )
        return
    channels = x.shape[1]
    weight = g.argument((channels,), x.dtype) if g.chance(0.6) else None
    bias = g.argument((channels,), x.dtype) if g.chance(0.5) else None
    if kind == "group":
        groups = g.choice([d for d in (1, 2, 4, channels) if d and channels % d == 0])
        g.emit("F.group_norm", x, groups, weight, bias)
    elif kind == "instance":
        g.emit("F.instance_norm", x, weight=weight, bias=bias)
    else:
        training = g.chance(0.6)
        mean = variance = None
        if not training or g.chance(0.6):
            role = "buffer" if g.settings.mode == "train" else ""
            mean = g.argument((channels,), x.dtype, role=role, grad=False, plain=True)
            variance = g.argument(
                (channels,), x.dtype, "positive", role=role, grad=False, plain=True
            )
        g.emit("F.batch_norm", x, mean, variance, weight, bias, training, g.choice((0.1, 0.3)))


def attention(g: Growth) -> None:
    b, h, q, k, d = (
        g.choice((1, 2)),
        g.choice((1, 2, 3)),
        g.choice((1, 3, 8)),
        g.choice((2, 3, 9)),
        g.choice((2, 4, 8)),
    )
    dtype = g.float_dtype()
    query, key, value = (
        g.matching((b, h, q, d), dtype),
        g.matching((b, h, k, d), dtype),
        g.matching((b, h, k, d), dtype),
    )
    kwargs: dict[str, object] = {}
    kind = g.rng.random()
    if kind < 0.25:
        kwargs["is_causal"] = True
    elif kind < 0.45:
        kwargs["attn_mask"] = g.argument(g.choice(((q, k), (b, 1, q, k), (b, h, q, k))), dtype)
    elif kind < 0.6:
        kwargs["attn_mask"] = g.argument((q, k), "bool")
    if g.chance(0.2):
        kwargs["scale"] = 0.3
    g.emit("F.scaled_dot_product_attention", query, key, value, **kwargs)


def loss(g: Growth) -> None:
    x = g.floating()
    kwargs = {"reduction": g.choice(("mean", "sum", "none"))}
    kind = g.choice(
        (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "bce",
            "kl_div",
            "cross",
            "nll",
            "cross",
        )
    )
    if kind in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        g.emit(f"F.{kind}", x, g.matching(x.shape, x.dtype), **kwargs)
    elif kind == "bce":
        target = g.argument(x.shape, x.dtype, "unit", grad=False)
        if g.chance(0.6):
            g.emit("F.binary_cross_entropy_with_logits", x, target, **kwargs)
        else:
            g.emit("F.binary_cross_entropy", g.emit("torch.sigmoid", x), target, **kwargs)
    elif kind == "kl_div":
        g.emit(
            "F.kl_div",
            g.emit("F.log_softmax", x, dim=g.dim(x)),
            g.argument(x.shape, x.dtype, "unit"),
            **kwargs,
        )
    else:
        x = g.floating(least=2)
        classes = x.shape[1]
        target = g.index((x.shape[0], *x.shape[2:]), classes)
        if g.chance(0.3):
            kwargs["weight"] = g.argument((classes,), x.dtype, "positive", grad=False, plain=True)
        if g.chance(0.2):
            kwargs["ignore_index"] = 0
        if kind == "nll":
            g.emit("F.nll_loss", g.emit("F.log_softmax", x, dim=1), target, **kwargs)
        else:
            if g.chance(0.2):
                kwargs["label_smoothing"] = 0.1
            g.emit("F.cross_entropy", x, target, **kwargs)


def resample(g: Growth) -> None:
    x = _image(g, 2, g.choice((4, 4, 8)))
    kind = g.rng.random()
    if kind < 0.4:
        mode = g.choice(("nearest", "bilinear", "bicubic", "area"))
        kwargs = {"align_corners": g.chance(0.5)} if mode in ("bilinear", "bicubic") else {}
        g.emit("F.interpolate", x, scale_factor=g.choice((2, 2.0, 0.5)), mode=mode, **kwargs)
    elif kind < 0.55:
        g.emit("F.pixel_shuffle", x, 2)
    elif kind < 0.7:
        g.emit("F.pixel_unshuffle", x, 2)
    elif kind < 0.85:
        g.emit(
            "F.unfold", x, g.choice((1, 2, 3)), stride=g.choice((1, 2)), padding=g.choice((0, 1))
        )
    else:
        g.emit("F.glu", g.floating(least=1), g.choice((0, -1)))


def square(g: Growth) -> None:
    """Products and solves of square matrices that are well conditioned."""
    n = g.choice((1, 2, 3, 5))
    dtype = "float64" if g.main == "float64" else "float32"
    a = g.argument((n, n), dtype, "small")
    b = g.emit("+", a, g.emit("torch.eye", n, dtype={"d": dtype}))
    kind = g.rng.random()
    if kind < 0.25:
        g.emit("torch.linalg.inv", b)
    elif kind < 0.5:
        g.emit("torch.linalg.solve", b, g.argument((n, 2), dtype))
    elif kind < 0.65:
        g.emit("torch.linalg.det", b)
    elif kind < 0.8:
        g.emit("torch.linalg.cholesky", g.emit("@", b, g.emit(".t", b)))
    else:
        g.emit("torch.linalg.matrix_power", b, g.choice((0, 2, 3)))


def checked(g: Growth) -> None:
    if not is_float(g.floating().tensor):
        raise Rejected("no float")


DRAWS = [
    (7.0, matmul), (4.0, product), (3.0, einsum), (4.0, linear), (5.0, convolution), (4.0, pooling), (6.0, norm),
    (3.0, attention), (4.0, loss), (2.0, resample), (0.7, square),
]  # fmt: skip
