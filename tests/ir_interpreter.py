"""A reference interpreter: runs a module of the `gflow` dialect on real tensors, op by op.

It is the oracle for everything that changes IR: slow, plain, apart from the code generators.
Understands modules before and after fusion (a `gflow.fused` runs its region).

    results = run_module(module, [x, weight, ...])      # in the order of the function's results
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from gflow.dialects.aten import calls as aten
from gflow.dialects.attributes import read
from gflow.dialects.constants import element_bytes, is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.types import tensor_type
from gflow.runtime.failures import ERRORS

Tensor = torch.Tensor
Attrs = dict[str, Any]

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "ui8": torch.uint8, "ui16": torch.uint16, "ui32": torch.uint32, "ui64": torch.uint64,
    "i1": torch.bool, "complex<f32>": torch.complex64, "complex<f64>": torch.complex128,
    "complex<f16>": torch.complex32,
}  # fmt: skip


def run_module(module: ir.Module, args: Sequence[Tensor]) -> list[Tensor]:
    """The results of the module's function for `args`, which are not changed."""
    with module.context:
        (function,) = [op for op in module.body.operations if op.operation.name == "func.func"]
        return _run_block(function.operation.regions[0].blocks[0], args)


def _run_block(block: ir.Block, args: Sequence[Tensor]) -> list[Tensor]:
    values: dict[ir.Value, Tensor] = {}
    for argument, given in zip(block.arguments, args, strict=True):
        _check(argument, given)
        values[argument] = given
    for op in block.operations:
        operation = op.operation
        operands = [values[v] for v in operation.operands]
        if operation.name in ("func.return", "gflow.yield", "gflow.engine_yield"):
            return operands
        for result, value in zip(operation.results, run_op(operation, operands), strict=True):
            _check(result, value)
            values[result] = value
    raise ValueError("a block without a terminator")


def _check(value: ir.Value, tensor: Tensor) -> None:
    want = tensor_type(value.type)
    if tuple(tensor.shape) != want.shape or tensor.dtype != DTYPES[want.dtype]:
        raise TypeError(f"{value} holds {tensor.dtype}{list(tensor.shape)}")


def run_op(operation: ir.Operation, operands: list[Tensor]) -> list[Tensor]:
    """One op on real tensors."""
    name = operation.name.removeprefix("gflow.")
    if name in ("fused", "engine"):
        return _run_block(operation.regions[0].blocks[0], operands)
    attrs = read(OPS[name], operation.attributes)
    if name == "aten":
        return _aten(operands, attrs)
    if name == "optimization_barrier":
        return operands
    if name == "check":
        return _check_values(operands, attrs)
    if name == "constant":
        return [_constant(operation.attributes["value"])]
    if name in ("attention", "attention_grad"):
        return attention(name, operands, attrs)
    if name in ("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"):
        return pool(name, operands, attrs)
    if name == "softmax_runs":
        return _softmax_runs(*operands, attrs["run"])
    if name in _RULES:
        return [_RULES[name](operands, attrs)]
    return [_DIRECT[name](*operands)]


def _tensors(result: Any) -> list[Tensor]:
    """The tensors among a call's result, in the order of the op's results."""
    if isinstance(result, torch.Tensor):
        return [result]
    return (
        [t for item in result for t in _tensors(item)] if isinstance(result, list | tuple) else []
    )


def _aten(operands: list[Tensor], attrs: Attrs) -> list[Tensor]:
    func = aten.find_overload(attrs["overload"])
    dense = [t.contiguous() for t in operands]
    args, kwargs = aten.decode_call(attrs["args"], dense, lambda t: t.item())
    return _tensors(func(*args, **kwargs))


def _check_values(operands: list[Tensor], attrs: Attrs) -> list[Tensor]:
    if bool(operands[0]):
        raise ERRORS[attrs["error"]](attrs["message"].replace("{}", str(operands[-1].item())))
    return []


def _constant(attr: Any) -> Tensor:
    ty = tensor_type(attr.type)
    if ty.numel == 0:
        return torch.empty(ty.shape, dtype=DTYPES[ty.dtype])
    data = torch.frombuffer(bytearray(element_bytes(attr, ty)), dtype=DTYPES[ty.dtype])
    return (data.expand(ty.numel) if is_splat(attr) else data).reshape(ty.shape).clone()


# -- elementwise


def _integer_safe(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Integer division by zero gives 0."""

    def guarded(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        zero = b == 0
        return torch.where(zero, 0, function(a, torch.where(zero, 1, b))).to(a.dtype)

    return guarded


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc")


def _shift_left(a: Tensor, b: Tensor) -> Tensor:
    bits = a.element_size() * 8
    inside = (b >= 0) & (b < bits)
    return torch.where(inside, a << torch.where(inside, b, 0), 0).to(a.dtype)


def _shift_right(a: Tensor, b: Tensor) -> Tensor:
    bits = a.element_size() * 8
    inside = (b >= 0) & (b < bits)
    beyond = 0 if a.dtype == torch.uint8 else a >> (bits - 1)
    return torch.where(inside, a >> torch.where(inside, b, 0), beyond).to(a.dtype)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b.double() + c.double()).to(a.dtype)


_COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
            "ge": torch.ge}  # fmt: skip

_DIRECT: dict[str, Callable[..., Tensor]] = {
    "reshard": torch.clone, "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _integer_safe(_div),
    "remainder": _integer_safe(torch.remainder), "fmod": _integer_safe(torch.fmod),
    "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2,
    "copysign": torch.copysign, "fma": _fma, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "not": torch.bitwise_not, "shift_left": _shift_left,
    "shift_right": _shift_right, "select": torch.where, "neg": torch.neg, "abs": torch.abs,
    "sign": torch.sign, "is_nan": torch.isnan, "is_inf": torch.isinf, "matmul": torch.matmul,
} | {
    name: getattr(torch, name)
    for name in (
        "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1",
        "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid",
    )
}  # fmt: skip


# -- shape and indexing


def _iota(_: list[Tensor], a: Attrs) -> Tensor:
    shape, dim = a["shape"], a["dim"]
    if not shape:
        return torch.zeros((), dtype=DTYPES[a["dtype"]])
    line = torch.arange(shape[dim]).to(DTYPES[a["dtype"]])
    return line.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape).clone()


def _broadcast(xs: list[Tensor], a: Attrs) -> Tensor:
    inner = [1] * len(a["shape"])
    for size, d in zip(xs[0].shape, a["dims"]):
        inner[d] = size
    return xs[0].reshape(inner).expand(a["shape"])


def _slice(xs: list[Tensor], a: Attrs) -> Tensor:
    index = tuple(slice(*s) for s in zip(a["starts"], a["limits"], a["strides"]))
    return xs[0][index] if index else xs[0]


def _pad(xs: list[Tensor], a: Attrs) -> Tensor:
    x, value = xs
    shape = [lo + s + hi for lo, s, hi in zip(a["low"], x.shape, a["high"])]
    out = torch.full(shape, value.item(), dtype=x.dtype)
    out[tuple(slice(lo, lo + s) for lo, s in zip(a["low"], x.shape))] = x
    return out


def _take(xs: list[Tensor], a: Attrs) -> Tensor:
    x, index = xs
    taken = torch.index_select(x, a["dim"], index.reshape(-1))
    return taken.reshape((*x.shape[: a["dim"]], *index.shape, *x.shape[a["dim"] + 1 :]))


def _index_add(xs: list[Tensor], a: Attrs) -> Tensor:
    x, index, source = xs
    flat = source.reshape(*x.shape[: a["dim"]], index.numel(), *x.shape[a["dim"] + 1 :])
    return torch.index_add(x, a["dim"], index.reshape(-1), flat)


def _index_copy(xs: list[Tensor], a: Attrs) -> Tensor:
    x, index, source = xs
    out = x.clone()
    for k, at in enumerate(index.tolist()):
        out.select(a["dim"], at).copy_(source.select(a["dim"], k))
    return out


def _put(xs: list[Tensor], a: Attrs) -> Tensor:
    x, index, source = xs
    known = (index >= 0) & (index < x.shape[1])
    rows = torch.arange(len(x))[known]
    return x.index_put((rows, index[known]), source[known])


# -- products and runs


def _softmax_runs(x: Tensor, index: Tensor, run: int) -> list[Tensor]:
    lowest = torch.finfo(x.dtype).min
    parts = x.split(run, 1)
    maxima = torch.stack([p.max(1).values.clamp(min=lowest) for p in parts])
    values = [torch.exp(p - m[:, None]) for p, m in zip(parts, maxima)]
    picked = x.gather(1, index.long().clamp(0, x.shape[1] - 1)[:, None])[:, 0]
    return [torch.cat(values, 1), maxima, torch.stack([v.sum(1) for v in values]), picked]


def _scaled_matmul(xs: list[Tensor], a: Attrs) -> Tensor:
    x, y, scale = xs
    dim = int(a["along"] == "columns")
    each = scale.repeat_interleave(a["run"], 0)[: x.shape[dim]]
    return (x * (each.T if dim else each)).to(x.dtype) @ y


# -- reductions and convolutions


def _reduce(xs: list[Tensor], a: Attrs) -> Tensor:
    (x,), kind, dims = xs, a["kind"], list(a["dims"])
    if not dims:
        return x if a.get("dtype") is None else x.double()
    if kind in ("argmax", "argmin"):
        return getattr(torch, kind)(x.to(torch.uint8) if x.dtype == torch.bool else x, dims[0])
    if kind in ("any", "all", "prod"):
        dtype = x.dtype
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        x = x.to(wide)
        for d in reversed(dims):
            x = torch.prod(x, d, dtype=wide) if kind == "prod" else getattr(torch, kind)(x, d)
        return x.to(dtype)
    if kind == "sum":
        return torch.sum(x, dims, dtype=x.dtype if a.get("dtype") is None else torch.float64)
    return torch.amax(x, dims) if kind == "max" else torch.amin(x, dims)


def _first(layout: str, t: Tensor) -> Tensor:
    """Channels first."""
    return t if layout == "NC*" else t.movedim(-1, 1)


def _last(layout: str, t: Tensor) -> Tensor:
    return t if layout == "NC*" else t.movedim(1, -1)


def _conv_call(a: Attrs) -> dict[str, Any]:
    spatial = len(a["stride"])
    return {"stride": a["stride"], "padding": a["padding"], "dilation": a["dilation"],
            "transposed": False, "output_padding": [0] * spatial,
            "groups": a["groups"]}  # fmt: skip


def _convolution(xs: list[Tensor], a: Attrs) -> Tensor:
    x, w = (_first(a["layout"], t) for t in xs)
    return _last(a["layout"], torch.ops.aten.convolution(x, w, None, **_conv_call(a)))


def _packed_product(xs: list[Tensor], a: Attrs) -> Tensor:
    x, packed = xs
    k = math.prod(a["kernel"]) * (1 if a.get("depthwise") else x.shape[-1])
    # an output's number in its strip stands behind the position in K
    rows = packed.unflatten(1, (k, -1)).mT.flatten(0, 1)[: a["columns"]]
    if not a["kernel"]:
        return x @ rows.mT
    w = rows.reshape(a["columns"], *a["kernel"], -1)
    groups = a["columns"] if a.get("depthwise") else 1
    return _convolution([x, w], {**a, "layout": "N*C", "groups": groups})


def _conv_grad(which: int) -> Callable[[list[Tensor], Attrs], Tensor]:
    def run(xs: list[Tensor], a: Attrs) -> Tensor:
        n, c, spatial = conv_dims(a["layout"], len(a["shape"]))
        missing = torch.zeros([a["shape"][d] for d in (n, c, *spatial)], dtype=xs[0].dtype)
        one, two = (_first(a["layout"], t) for t in xs)
        dy, x, w = (one, missing, two) if which == 0 else (two, one, missing)
        mask = [which == 0, which == 1, False]
        grads = torch.ops.aten.convolution_backward(
            dy, x, w, None, **_conv_call(a), output_mask=mask
        )
        return _last(a["layout"], grads[which])

    return run


# -- pooling


def _max_windows(x: Tensor, a: Attrs) -> tuple[Tensor, Tensor]:
    spatial = x.dim() - 2
    if a.get("size") is not None:
        return getattr(F, f"adaptive_max_pool{spatial}d")(x, a["size"], return_indices=True)
    walk = (a["kernel"], a["stride"], a["padding"], a.get("dilation") or 1)
    ceil = bool(a.get("ceil_mode"))
    return getattr(F, f"max_pool{spatial}d")(x, *walk, ceil_mode=ceil, return_indices=True)


def _mean_windows(x: Tensor, a: Attrs) -> Tensor:
    spatial = x.dim() - 2
    if a.get("size") is not None:
        return getattr(F, f"adaptive_avg_pool{spatial}d")(x, a["size"])
    if spatial == 1:
        a = {**a, **{k: (v, *a[k]) for k, v in (("kernel", 1), ("stride", 1), ("padding", 0))}}
        return _mean_windows(x.unsqueeze(2), a).squeeze(2)
    options = {"ceil_mode": bool(a.get("ceil_mode")), "divisor_override": a.get("divisor"),
               "count_include_pad": bool(a.get("count_padding"))}  # fmt: skip
    pooled = getattr(F, f"avg_pool{spatial}d")
    return pooled(x, a["kernel"], a["stride"], a["padding"], **options)


def _renumbered(places: Tensor, sizes: Sequence[int], a: Attrs, back: bool) -> Tensor:
    """Positions in planes as positions in windows, or back."""
    dilation = a.get("dilation") or (1,) * len(sizes)
    rest, result = places.long(), torch.zeros_like(places, dtype=torch.int64)
    per_plane, per_window = 1, 1
    for d in reversed(range(len(sizes))):
        shape = [-1 if i == d + 2 else 1 for i in range(places.dim())]
        begin = torch.arange(places.shape[d + 2]).reshape(shape) * a["stride"][d] - a["padding"][d]
        if back:
            at = rest % a["kernel"][d] * dilation[d] + begin
            result, rest = result + at * per_plane, rest // a["kernel"][d]
        else:
            at = (rest % sizes[d] - begin) // dilation[d]
            result, rest = result + at * per_window, rest // sizes[d]
        per_plane, per_window = per_plane * sizes[d], per_window * a["kernel"][d]
    return result if back else result.to(torch.uint8)


def pool(name: str, xs: list[Tensor], a: Attrs) -> list[Tensor]:
    """Pooling; gradients by what they are: sums over the windows, means by autograd."""
    first = [_first(a["layout"], t) for t in xs]
    if name == "max_pool":
        y, places = _max_windows(first[0], a)
        if a["positions"] == "window":
            places = _renumbered(places, first[0].shape[2:], a, back=False)
        found = [y] if a["positions"] == "none" else [y, places]
    elif name == "avg_pool":
        wide = torch.promote_types(first[0].dtype, torch.float32)
        found = [_mean_windows(first[0].to(wide), a).to(first[0].dtype)]
    else:
        n, c, spatial = conv_dims(a["layout"], len(a["shape"]))
        wide = torch.promote_types(first[0].dtype, torch.float32)
        x = torch.zeros([a["shape"][d] for d in (n, c, *spatial)], dtype=wide)
        if name == "avg_pool_grad":
            with torch.enable_grad():
                y = _mean_windows(x.requires_grad_(), a)
            (grad,) = torch.autograd.grad(y, x, first[0].to(wide))
        else:
            if first[1].dtype == torch.uint8:
                first[1] = _renumbered(first[1], x.shape[2:], a, back=True)
            dy, positions = (t.flatten(2) for t in first)
            grad = x.flatten(2).scatter_add(2, positions, dy.to(wide))
        found = [grad.reshape(x.shape).to(first[0].dtype)]
    return [_last(a["layout"], t).contiguous() for t in found]


# -- random numbers (docs/random.md)


def philox(seed: int, offset: int, stream: int, count: int) -> np.ndarray:
    """The words of elements 0 … count - 1 as uint64[blocks, 4]."""
    mask = np.uint64(0xFFFFFFFF)
    high = np.uint64(32)
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [block & mask, block >> high,
         np.full_like(block, stream & 0xFFFFFFFF),
         np.full_like(block, offset & 0xFFFFFFFF)]  # fmt: skip
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for step in range(10):
        if step:
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> high) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> high) ^ c[3] ^ np.uint64(k1), p0 & mask]  # fmt: skip
    return np.stack(c, 1)


def random_numbers(
    kind: str, seed: int, offset: int, stream: int, shape: Sequence[int], dtype: str
) -> Tensor:
    """What `gflow.random` gives."""
    count = int(np.prod(shape, dtype=np.int64))
    words = philox(seed, offset, stream, count)
    if kind == "bits":
        flat = torch.from_numpy(words.reshape(-1)[:count].astype(np.int64))
        return flat.to(DTYPES[dtype]).reshape(tuple(shape))
    unit = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    if kind == "normal":
        u = torch.from_numpy(unit).reshape(-1, 2)
        radius = torch.sqrt(torch.log(1 - u[:, 0]) * -2)
        angle = u[:, 1] * 6.283185307179586
        numbers = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
    else:
        numbers = torch.from_numpy(unit)
    return numbers.reshape(-1)[:count].to(DTYPES[dtype]).reshape(tuple(shape))


def _random(xs: list[Tensor], a: Attrs) -> Tensor:
    seed, offset = xs[0].tolist()
    return random_numbers(a["kind"], seed, offset, a["stream"], a["shape"], a["dtype"])


def attention(name: str, xs: list[Tensor], a: Attrs) -> list[Tensor]:
    """Attention, or its gradients by autograd, as its definition says; in float32 or better."""
    grad = name == "attention_grad"
    q, k, v = xs[1:4] if grad else xs[:3]
    rest = xs[6 if grad else 3 :]
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = next((x for x in rest if x.dim() == 4), None)
    rng = next((x for x in rest if x.dim() == 1), None)
    documents = [x for x in rest if x.dim() == 2]
    leaves = [x.to(wide).detach().requires_grad_() for x in (q, k, v)]
    if a.get("bias_grad"):
        assert bias is not None
        bias = bias.to(wide).detach().requires_grad_()
        leaves.append(bias)
    with torch.enable_grad():
        groups = q.shape[2] // max(k.shape[2], 1)
        qs, ks, vs = (x.transpose(1, 2) for x in leaves[:3])
        ks, vs = ks.repeat_interleave(groups, 1), vs.repeat_interleave(groups, 1)
        scores = qs @ ks.transpose(-1, -2) * a["scale"]
        if bias is not None and bias.dtype == torch.bool:
            scores = scores.masked_fill(~bias, -torch.inf)
        elif bias is not None:
            scores = scores + bias.to(wide)
        if a["causal"]:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if a.get("window"):
            left, right = a["window"]
            rows, columns = (torch.arange(n) for n in scores.shape[-2:])
            apart = columns[None, :] - rows[:, None]
            scores = scores.masked_fill((apart < -left) | (apart > right), -torch.inf)
        if documents:
            equal = documents[0][:, None, :, None] == documents[1][:, None, None, :]
            scores = scores.masked_fill(~equal, -torch.inf)
        none = (scores == -torch.inf).all(-1, keepdim=True)
        nothing = torch.nan if a.get("formula") else 0.0
        if grad:  # of rows that the logarithms say nothing of
            nothing = torch.where(xs[5].isnan().unsqueeze(-1), torch.nan, 0.0)
        plain = scores.masked_fill(none, 0.0)
        weights = torch.where(none, nothing, torch.softmax(plain, -1))
        sums = plain.logsumexp(-1).masked_fill(none[..., 0], torch.nan if a.get("formula") else 0.0)
        if a["dropout"]:
            assert rng is not None
            seed, offset = rng.tolist()
            numbers = random_numbers("uniform", seed, offset, a["stream"], scores.shape, "f32")
            keep = numbers < 1.0 - a["dropout"]
            weights = weights * keep / (1.0 - a["dropout"])
        y = (weights @ vs).transpose(1, 2)
        if not grad:
            return [y.detach().to(q.dtype), sums.detach()]
        found = torch.autograd.grad(y, leaves, xs[0].to(wide))
    own = [q, k, v, *rest[:1]]
    return [g.to(x.dtype) for g, x in zip(found, own)]


_RULES: dict[str, Callable[[list[Tensor], Attrs], Tensor]] = {
    "compare": lambda xs, a: _COMPARE[a["predicate"]](*xs),
    "convert": lambda xs, a: xs[0].to(DTYPES[a["dtype"]]),
    "iota": _iota,
    "reshape": lambda xs, a: xs[0].reshape(a["shape"]),
    "transpose": lambda xs, a: xs[0].permute(a["permutation"]),
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concatenate": lambda xs, a: torch.cat(xs, a["dim"]),
    "reverse": lambda xs, a: torch.flip(xs[0], a["dims"]),
    "take": _take,
    "gather": lambda xs, a: torch.gather(xs[0], a["dim"], xs[1].long()),
    "index_add": _index_add,
    "index_copy": _index_copy,
    "put": _put,
    "scaled_matmul": _scaled_matmul,
    "reduce": _reduce,
    "partial_sums": lambda xs, a: torch.stack(
        [rows.sum(0) for rows in xs[0].flatten(0, -2).split(a["run"])]
    ),
    "convolution": _convolution,
    "packed_product": _packed_product,
    "convolution_input_grad": _conv_grad(0),
    "convolution_weight_grad": _conv_grad(1),
    "random": _random,
}
