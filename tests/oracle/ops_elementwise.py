"""Draws of elementwise calls: unary, binary, with numbers, casts, selections, in place, with `out=`."""

from __future__ import annotations

from .growth import (
    FLOATS,
    INTEGERS,
    Growth,
    Rejected,
    Value,
    is_bool,
    is_float,
    is_integer,
    is_number,
)

ANY_UNARY = (
    "abs", "ceil", "floor", "round", "trunc", "neg", "positive", "sign", "sgn", "square", "isnan", "isfinite",
    "isinf", "signbit", "logical_not", "clone", "isposinf", "isneginf", "nan_to_num",
)  # fmt: skip
FLOAT_UNARY = (
    "asinh", "atan", "cos", "cosh", "deg2rad", "digamma", "erf", "erfc", "exp", "exp2", "expm1", "frac", "i0",
    "rad2deg", "reciprocal", "sigmoid", "sin", "sinc", "sinh", "tan", "tanh", "lgamma",
)  # fmt: skip
POSITIVE_UNARY = ("sqrt", "rsqrt", "log", "log2", "log10", "log1p")
UNIT_UNARY = ("acos", "asin", "atanh", "erfinv", "logit")
ACTIVATIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "relu": {}, "relu6": {}, "selu": {}, "silu": {}, "mish": {}, "softsign": {}, "tanhshrink": {},
    "hardswish": {}, "hardsigmoid": {}, "logsigmoid": {},
    "elu": {"alpha": (1.0, 0.5)}, "celu": {"alpha": (1.0, 2.0)}, "gelu": {"approximate": ("none", "tanh")},
    "softplus": {"beta": (1, 2.0), "threshold": (20, 1)}, "hardtanh": {"min_val": (-1.0, -0.5)},
    "leaky_relu": {"negative_slope": (0.01, 0.3)}, "hardshrink": {"lambd": (0.5,)},
    "softshrink": {"lambd": (0.5, 0.1)},
}  # fmt: skip
BINARY = (
    "add", "sub", "mul", "add", "mul", "div", "maximum", "minimum", "fmax", "fmin", "remainder", "fmod",
    "floor_divide", "atan2", "hypot", "logaddexp", "logaddexp2", "copysign", "xlogy", "true_divide",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "isclose", "heaviside",
)  # fmt: skip
INTEGER_BINARY = ("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")
OPERATORS = ("+", "-", "*", "/", "+", "*", "//", "%", "<", "<=", "==", "!=", ">", ">=")
IN_PLACE = ("+=", "-=", "*=", "/=")
DTYPES = (*FLOATS, *INTEGERS, "bool")


def _inplace(g: Growth, method: str, x: Value, *args: object, **kwargs: object) -> None:
    g.emit(f".{method}_", x, *args, effect=True, **kwargs)


def unary(g: Growth) -> None:
    if g.chance(0.3):
        x, name = g.pick(is_number), g.choice(ANY_UNARY)
    else:
        x, name = g.pick(is_number), g.choice(FLOAT_UNARY)
    if (
        g.chance(0.15)
        and name not in ("clone",)
        and not name.startswith("is")
        and name != "signbit"
    ):
        _inplace(g, name, x)
    else:
        g.emit(f"torch.{name}", x)


def restricted(g: Growth) -> None:
    """Functions that are defined on a part of the line, mostly on that part."""
    x = g.pick(is_float)
    if g.chance(0.5):
        if g.chance(0.7):
            x = g.emit("+", g.emit("torch.abs", x), 0.1)
        g.emit(f"torch.{g.choice(POSITIVE_UNARY)}", x)
    else:
        if g.chance(0.7):
            x = g.emit("torch.sigmoid", x)
        g.emit(f"torch.{g.choice(UNIT_UNARY)}", x)


def activation(g: Growth) -> None:
    name = g.choice(list(ACTIVATIONS))
    kwargs = {k: g.choice(v) for k, v in ACTIVATIONS[name].items() if g.chance(0.5)}
    if g.chance(0.1) and name in ("relu", "relu6", "elu", "selu", "silu", "hardtanh", "leaky_relu"):
        kwargs["inplace"] = True
    g.emit(f"F.{name}", g.floating(), **kwargs)


def threshold(g: Growth) -> None:
    g.emit("F.threshold", g.floating(), g.choice((0.1, 0.5, 0)), g.choice((20, 0.0, -1)))


def binary(g: Growth) -> None:
    x = g.pick()
    y = g.operand(x)
    name = g.choice(BINARY)
    kwargs = {}
    if name in ("add", "sub") and g.chance(0.25):
        kwargs["alpha"] = g.number(x.dtype)
    if name == "div" and g.chance(0.4):
        kwargs["rounding_mode"] = g.choice(("floor", "trunc"))
    if g.chance(0.15) and name not in ("maximum", "minimum", "fmax", "fmin", "isclose"):
        _inplace(g, name, x, y, **kwargs)
    elif g.chance(0.2):
        g.emit(f".{name}", x, y, **kwargs)
    else:
        g.emit(f"torch.{name}", x, y, **kwargs)


def with_number(g: Growth) -> None:
    x = g.pick()
    n = g.number(x.dtype)
    kind = g.rng.random()
    if kind < 0.3:
        name = g.choice(
            (
                "add",
                "sub",
                "mul",
                "div",
                "remainder",
                "fmod",
                "eq",
                "lt",
                "pow",
                "ge",
                "floor_divide",
            )
        )
        if g.chance(0.35):
            _inplace(g, name, x, n)
        else:
            g.emit(f"torch.{name}", x, n)
    elif kind < 0.7:
        pair = [x, n] if g.chance(0.6) else [n, x]
        g.emit(g.choice(OPERATORS), *pair)
    elif kind < 0.85:
        g.emit(g.choice(IN_PLACE), x, n, effect=True)
    else:
        g.emit("torch.rsub", x, n)


def operator(g: Growth) -> None:
    x = g.pick()
    y = g.operand(x)
    if g.chance(0.2):
        g.emit(g.choice(IN_PLACE), x, y, effect=True)
    elif g.chance(0.1):
        g.emit("-", x)
    else:
        g.emit(g.choice(OPERATORS), x, y)


def power(g: Growth) -> None:
    x = g.pick(is_number)
    kind = g.rng.random()
    if kind < 0.6:
        g.emit(g.choice(("torch.pow", "**")), x, g.choice((2, 3, 0.5, -1, 0, 1, 2.0, -2, 4, 1.5)))
    elif kind < 0.75:
        g.emit(g.choice(("torch.pow", "**")), g.choice((2, 0.5, 3.0, 1)), x)
    elif kind < 0.9:
        base = g.emit("+", g.emit("torch.abs", x), 0.1)
        g.emit("torch.pow", base, g.operand(x))
    else:
        g.emit("torch.float_power", x, g.choice((2, 0.5, 3)))


def integer_binary(g: Growth) -> None:
    x = g.pick(is_integer) if g.chance(0.7) else g.pick(is_bool)
    y = g.operand(x, x.dtype if g.chance(0.8) else None)
    if g.chance(0.2):
        g.emit(f"torch.{g.choice(SHIFTS)}", x, g.choice((0, 1, 3)))
    elif g.chance(0.2):
        g.emit(g.choice(("&", "|", "^")), x, y)
    elif g.chance(0.1):
        g.emit(g.choice(("torch.bitwise_not", "~")), x)
    else:
        g.emit(f"torch.{g.choice(INTEGER_BINARY)}", x, y)


def clamp(g: Growth) -> None:
    x = g.pick(is_number)
    kind = g.rng.random()
    if kind < 0.6:
        low, high = g.choice(((-1, 1), (0, None), (None, 0.5), (-0.5, 2), (1, -1)))
        if g.chance(0.2):
            _inplace(g, "clamp", x, low, high)
        else:
            g.emit("torch.clamp", x, low, high)
    else:
        g.emit("torch.clamp", x, g.operand(x), g.operand(x) if g.chance(0.5) else None)


def ternary(g: Growth) -> None:
    x = g.pick(is_float)
    y, z = g.operand(x, x.dtype), g.operand(x, x.dtype)
    kind = g.rng.random()
    if kind < 0.35:
        name = g.choice(("addcmul", "addcdiv"))
        value = {"value": g.choice((1, 0.5, -2))} if g.chance(0.6) else {}
        if g.chance(0.25):
            _inplace(g, name, x, y, z, **value)
        else:
            g.emit(f"torch.{name}", x, y, z, **value)
    elif kind < 0.7:
        weight = g.choice((0.3, 0.7, z))
        if g.chance(0.25):
            _inplace(g, "lerp", x, y, weight)
        else:
            g.emit("torch.lerp", x, y, weight)
    else:
        g.emit("torch.sub", g.emit("torch.mul", x, y), z)


def where(g: Growth) -> None:
    x = g.pick()
    y = g.operand(x)
    kind = g.rng.random()
    if kind < 0.6:
        condition = (
            g.operand(x, "bool")
            if g.chance(0.5)
            else g.emit(g.choice((">", "<=")), x, g.number(x.dtype))
        )
        pair = [x, y]
        if g.chance(0.3):
            pair[g.choice((0, 1))] = g.number(x.dtype)
        g.emit("torch.where", condition, *pair)
    else:
        mask = g.operand(x, "bool")
        value = g.number(x.dtype)
        if g.chance(0.4):
            _inplace(g, "masked_fill", x, mask, value)
        else:
            g.emit("torch.masked_fill", x, mask, value)


def cast(g: Growth) -> None:
    x = g.pick()
    kind = g.rng.random()
    wanted = g.choice(DTYPES) if g.chance(0.5) else g.main
    if kind < 0.5:
        g.emit(".to", x, {"d": wanted})
    elif kind < 0.7:
        g.emit(f".{g.choice(('type_as', 'to'))}", x, g.pick())
    elif kind < 0.9:
        g.emit(".to", x, {"d": wanted}, copy=True)
    else:
        same = {"float32": "int32", "int32": "float32", "float16": "int16", "int64": "float64"}.get(
            x.dtype
        )
        if same is None:
            raise Rejected("no type of its size")
        g.emit(".view", x, {"d": same})


def assign(g: Growth) -> None:
    """Writes: copy_, fill_, zero_."""
    x = g.pick()
    kind = g.rng.random()
    if kind < 0.5:
        _inplace(g, "copy", x, g.operand(x))
    elif kind < 0.75:
        _inplace(g, "fill", x, g.number(x.dtype))
    else:
        _inplace(g, "zero", x)


OUT = ("add", "mul", "sub", "div", "maximum", "atan2", "logaddexp", "eq")
OUT_UNARY = ("exp", "neg", "sigmoid", "tanh", "abs", "sqrt")


def out(g: Growth) -> None:
    """`out=`: an earlier value, a view of one, or a new argument takes the result."""
    x = g.pick()
    if g.chance(0.6):
        name, args = f"torch.{g.choice(OUT)}", [x, g.operand(x)]
    else:
        name, args = f"torch.{g.choice(OUT_UNARY)}", [x]
    found = [v for v in g.values if v.shape == x.shape]
    target = (
        g.choice(found)
        if found and g.chance(0.7)
        else g.argument(x.shape, x.dtype, role="input", grad=False)
    )
    g.emit(name, *args, effect=True, out=target)


def creation(g: Growth) -> None:
    x = g.pick()
    kind = g.rng.random()
    dtype = {"d": g.dtype()}
    if kind < 0.35:
        g.emit(f"torch.{g.choice(('zeros_like', 'ones_like'))}", x)
    elif kind < 0.5:
        g.emit("torch.full_like", x, g.number(x.dtype))
    elif kind < 0.6:
        g.emit(
            "torch.arange", g.choice((0, 1, -3)), g.choice((4, 7, 5)), g.choice((1, 2)), dtype=dtype
        )
    elif kind < 0.68:
        g.emit("torch.linspace", g.choice((0, -1.5)), g.choice((1, 3.0)), g.choice((1, 5, 8)))
    elif kind < 0.76:
        g.emit("torch.eye", g.choice((2, 3, 4)), g.choice((2, 3, 5)), dtype=dtype)
    elif kind < 0.88:
        g.emit(".new_full", x, list(g.shape()), g.number(x.dtype))
    else:
        g.emit("torch.tensor", g.choice((3, 0.5, True, [1, 2], [[0.5], [1.5]])))


DRAWS = [
    (10.0, unary), (4.0, restricted), (5.0, activation), (0.5, threshold), (14.0, binary), (8.0, with_number),
    (8.0, operator), (4.0, power), (3.0, integer_binary), (3.0, clamp), (3.0, ternary), (5.0, where),
    (5.0, cast), (4.0, assign), (3.0, out), (3.0, creation),
]  # fmt: skip
