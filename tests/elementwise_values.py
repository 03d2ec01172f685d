"""Elementwise functions of PyTorch, the values at which they end, and how a result is compared with eager's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[..., Tensor]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


def values(dtype: torch.dtype) -> Tensor:
    """Numbers where functions of this type end or turn."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        some = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 2.5, 3.0, -7.3, 20.0, math.nan, math.inf, -math.inf, info.max,
                info.min, info.tiny, -info.tiny, info.smallest_normal / 4, -info.smallest_normal / 2, info.eps,
                100.0, -100.0, math.sqrt(info.max)]  # fmt: skip
        return torch.tensor(some, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    some = {
        0,
        1,
        2,
        3,
        7,
        info.max,
        info.max - 1,
        info.max // 2,
        info.min,
        info.min + 1,
        8,
        31,
        63,
        64,
    }
    if info.min < 0:
        some |= {-1, -2, -3, -7, info.min // 2}
    return torch.tensor(sorted(v for v in some if info.min <= v <= info.max), dtype=dtype)


def columns(dtypes: tuple[torch.dtype, ...]) -> list[Tensor]:
    """Operands of one length, 67 at least: every combination of two operands' values, and a share of three's."""
    parts = [values(dtype) for dtype in dtypes]
    if len(parts) == 3:
        parts = [p[:: 2 if len(p) > 8 else 1] if i else p for i, p in enumerate(parts)]
    grid = list(itertools.product(*(range(len(p)) for p in parts)))
    rows = torch.tensor(grid)
    if dtypes[-1] in INTEGERS and len(parts) > 1 and dtypes[-1].is_signed:
        # eager divides the least integer by -1 with an instruction that ends the process
        last = [p[rows[:, i]] for i, p in enumerate(parts)]
        low = torch.iinfo(dtypes[-1]).min
        rows = rows[(last[-2] != low)]
    rows = rows.repeat(-(-67 // len(rows)), 1)  # more than vectors of any width, with a tail
    return [p[rows[:, i]] for i, p in enumerate(parts)]


_UNARY = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh",
    "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "i0", "isfinite",
    "isinf", "isnan", "isneginf", "isposinf", "isreal", "lgamma", "log", "log10", "log1p", "log2",
    "logical_not", "logit", "nan_to_num", "neg", "positive", "rad2deg", "reciprocal", "round", "rsqrt", "sgn",
    "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "relu",
    "selu", "celu", "special.airy_ai", "special.bessel_j0", "special.bessel_j1", "special.bessel_y0",
    "special.bessel_y1", "special.entr", "special.erfcx", "special.i0e", "special.i1", "special.i1e",
    "special.log_ndtr", "special.modified_bessel_i0", "special.modified_bessel_i1",
    "special.modified_bessel_k0", "special.modified_bessel_k1", "special.ndtr", "special.ndtri",
    "special.scaled_modified_bessel_k0", "special.scaled_modified_bessel_k1", "special.spherical_bessel_j0",
    "nn.functional.relu6", "nn.functional.elu", "nn.functional.gelu", "nn.functional.silu",
    "nn.functional.mish", "nn.functional.softplus", "nn.functional.logsigmoid", "nn.functional.hardtanh",
    "nn.functional.hardswish", "nn.functional.hardsigmoid", "nn.functional.hardshrink",
    "nn.functional.softshrink", "nn.functional.tanhshrink", "nn.functional.softsign",
    "nn.functional.leaky_relu",
]  # fmt: skip

_BINARY = [
    "add", "sub", "mul", "div", "true_divide", "floor_divide", "fmod", "remainder", "pow", "float_power",
    "atan2", "ldexp", "nextafter", "logaddexp", "logaddexp2", "xlogy", "special.xlog1py", "hypot", "copysign",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "maximum",
    "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
    "gcd", "lcm", "heaviside", "isclose", "rsub", "special.zeta", "igamma", "igammac",
    "nn.functional.mse_loss", "nn.functional.smooth_l1_loss", "nn.functional.huber_loss",
    "nn.functional.l1_loss",
]  # fmt: skip


def _named(name: str) -> Function:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _loss(function: Function) -> Function:
    return lambda x, y: function(x, y, reduction="none")


UNARY: dict[str, Function] = {name.split(".")[-1]: _named(name) for name in _UNARY} | {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "round_2": lambda x: torch.round(x, decimals=2),
    "round_-1": lambda x: torch.round(x, decimals=-1),
    "polygamma_1": lambda x: torch.polygamma(1, x),
    "polygamma_2": lambda x: torch.polygamma(2, x),
    "logit_eps": lambda x: torch.logit(x, 0.1),
    "threshold": lambda x: F.threshold(x, 1, 20),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "nan_to_num_3": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "pow_0": lambda x: x**0,
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_-1": lambda x: x**-1,
    "pow_-2": lambda x: x**-2,
    "pow_half": lambda x: x**0.5,
    "pow_-half": lambda x: x**-0.5,
    "pow_2.5": lambda x: x**2.5,
    "2_pow": lambda x: 2**x,
    "-1_pow": lambda x: (-1) ** x,
    "0.5_pow": lambda x: 0.5**x,
    "float_power_2": lambda x: torch.float_power(x, 2),
    "div_3": lambda x: x / 3,
    "over_3": lambda x: 3 / x,
    "floordiv_3": lambda x: x // 3,
    "floordiv_-3": lambda x: x // -3,
    "3_floordiv": lambda x: 3 // x,
    "floordiv_2.5": lambda x: x // 2.5,
    "floordiv_inf": lambda x: x // math.inf,
    "trunc_div_3": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "mod_3": lambda x: x % 3,
    "mod_-3": lambda x: x % -3,
    "mod_2.5": lambda x: x % 2.5,
    "mod_inf": lambda x: x % math.inf,
    "3_mod": lambda x: 3 % x,
    "fmod_3": lambda x: torch.fmod(x, 3),
    "fmod_-2.5": lambda x: torch.fmod(x, -2.5),
    "fmod_inf": lambda x: torch.fmod(x, math.inf),
    "shift_left_1": lambda x: x << 1,
    "shift_right_1": lambda x: x >> 1,
    "1_shift_left": lambda x: 1 << x,
    "times_0": lambda x: x * 0,
    "times_-1": lambda x: x * -1,
    "plus_0": lambda x: x + 0,
    "plus_-0": lambda x: x + -0.0,
    "minus_0": lambda x: x - 0,
    "0_minus": lambda x: 0 - x,
    "add_alpha": lambda x: torch.add(x, x, alpha=2),
    "xlogy_2": lambda x: torch.xlogy(x, 2),
    "2_xlogy": lambda x: torch.xlogy(2, x),
    "copysign_-1": lambda x: torch.copysign(x, -1),
    "to_float32": lambda x: x.to(torch.float32),
    "to_float16": lambda x: x.to(torch.float16),
    "to_bfloat16": lambda x: x.to(torch.bfloat16),
    "to_bool": lambda x: x.to(torch.bool),
}  # fmt: skip

BINARY: dict[str, Function] = {
    name.split(".")[-1]: _loss(_named(name)) if name.endswith("_loss") else _named(name)
    for name in _BINARY
} | {
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp_min_t": lambda x, y: torch.clamp_min(x, y),
    "clamp_max_t": lambda x, y: torch.clamp_max(x, y),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_div_log": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y, reduction="none"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y, reduction="none"),
    "lerp_half": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp_0.3": lambda x, y: torch.lerp(x, y, 0.3),
    "prelu": lambda x, y: F.prelu(x, y[:1]),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 3),
}  # fmt: skip

TERNARY: dict[str, Function] = {
    "addcmul": torch.addcmul,
    "addcmul_3": lambda x, y, z: torch.addcmul(x, y, z, value=3),
    "addcdiv": torch.addcdiv,
    "addcdiv_3": lambda x, y, z: torch.addcdiv(x, y, z, value=3),
    "lerp": torch.lerp,
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "clamp_t": lambda x, y, z: torch.clamp(x, y, z),
    "fma": lambda x, y, z: x * y + z,
}

TABLES: dict[int, dict[str, Function]] = {1: UNARY, 2: BINARY, 3: TERNARY}

#: functions whose terms cancel: they are compared beside their operands
CANCELLING = {
    "logaddexp",
    "logaddexp2",
    "kl_div",
    "kl_div_log",
    "bce_logits",
    "tanh",
    "tanhshrink",
    "poisson",
}
#: functions of which the subnormal results are no difference to zero
SUBNORMAL = {"sigmoid", "silu", "mish"}
#: what is right, too: eager's own kernels add with one rounding, where the product may leave the range of the type
UNFUSED: dict[str, Function] = {
    "addcmul": lambda x, y, z: x + y * z,
    "addcmul_3": lambda x, y, z: x + 3 * y * z,
}
#: integers that eager cannot divide: an error by 0, the end of the process for the least by -1
DIVIDING = {"floor_divide", "fmod", "remainder", "div_floor", "div_trunc", "igamma", "igammac"}
#: functions whose result's type PyTorch's shape rules say otherwise than its kernels, where operands have two: a graph
#: refuses the losses, and gives the wider type of `ldexp`
OTHER_TYPES = {"huber_loss", "soft_margin", "ldexp"}
#: differences that are PyTorch's own, and what is held of them
RULES = """
An answer is right that eager gives for these operands in any layout: its vector, tail, strided and 0-d kernels differ
in signs of zeros that tie (maximum, minimum), in gelu of infinity, in subnormal results.
A finite answer is right that float64 gives, rounded: eager's sigmoid(-100) is 0.
Subnormal numbers are compared to two of the least; those of functions of `SUBNORMAL` are no difference to zero.
Functions of `CANCELLING` are compared beside the size of their operands.
Functions of `UNFUSED` may round, and leave the range, between product and sum.
Functions that compute in halves may keep what float64 keeps where eager goes over the range on the way.
fmax and fmin of bfloat16 take the second of two zeros in eager, the first in all other types.
Where eager has no kernel for a type, nothing is compared.
"""
