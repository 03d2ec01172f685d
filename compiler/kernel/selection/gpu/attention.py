"""Configurations of attention kernels: block sizes, warps and stages.

Registers are the limit, since they hold a block's accumulators and scores. The tables list configurations by kernel and
by number of channels, from the largest blocks that do not spill. With a bias or dropout, the first one is skipped.
Configurations that need more shared memory than the device has are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.compiler.targets import Target
from gflow.compiler.targets.devices import MMA_SHARED, TF32X3, TWO_CHANNEL_BLOCKS
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.program import TritonConfig
from gflow.dialects.types import HALVES

from ....ir.errors import CannotLower
from ....ir.ssa import Body, Op
from ..choice import Choice, way_of

_MOST_CHANNELS = 256
#: with more channels, the gradients of k and v have a kernel each in half precision
_TOGETHER = 128
#: the fewest channels of the first of two parts
_LEAST_PART = 64
#: more channels are in two parts only where tensor cores read shared memory: elsewhere registers do not suffice
_IN_PARTS = 128


class _Way(NamedTuple):
    """A configuration: blocks of m positions of q and n positions of k."""

    m: int
    n: int
    warps: int
    stages: int


_Table = Mapping[str, Mapping[int, tuple[_Way, ...]]]

#: half precision on sm_80's tensor cores, by kernel and by the most channels. The first is chosen by the model of loop
#: times (`gflow.compiler.reports.sass`): two programs a multiprocessor where they fit, three stages where they help
_AMPERE: _Table = {
    "attention": {
        64: (_Way(128, 64, 4, 3), _Way(64, 64, 4, 3), _Way(128, 32, 4, 3), _Way(64, 32, 4, 2), _Way(32, 32, 4, 2)),
        128: (_Way(128, 64, 8, 3), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2)),
        256: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(32, 32, 8, 1)),
    },
    "attention_query_grad": {
        64: (_Way(128, 32, 4, 2), _Way(64, 32, 4, 3), _Way(64, 64, 4, 3), _Way(32, 32, 4, 2)),
        128: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 64, 4, 2), _Way(32, 32, 4, 2)),
        256: (_Way(64, 64, 8, 1), _Way(32, 64, 8, 1), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
    "attention_key_grad": {
        64: (_Way(32, 64, 4, 3), _Way(32, 64, 4, 2), _Way(32, 128, 8, 3), _Way(32, 32, 4, 2)),
        128: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(32, 32, 8, 1)),
        256: (_Way(64, 64, 8, 2), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
    "attention_value_grad": {
        256: (_Way(64, 64, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
}  # fmt: skip

#: half precision where tensor cores read operands from shared memory (sm_90), which needs fewer registers. The first of
#: up to 64 channels were the fastest on an H200, forward and backward: programs of four warps, several a multiprocessor
_HOPPER: _Table = {
    "attention": {
        64: (_Way(64, 64, 4, 3), _Way(64, 64, 8, 2), _Way(128, 64, 8, 3), _Way(128, 128, 8, 3), _Way(128, 64, 4, 3)),
        96: (_Way(128, 64, 4, 3), _Way(64, 64, 4, 3), _Way(64, 64, 8, 2)),
        128: (_Way(128, 128, 8, 3), _Way(64, 32, 8, 2), _Way(128, 64, 8, 3), _Way(64, 64, 8, 2)),
        192: (_Way(128, 64, 8, 3), _Way(64, 32, 4, 3), _Way(128, 32, 8, 3), _Way(64, 32, 8, 2)),
        256: (_Way(128, 32, 8, 3), _Way(32, 32, 8, 2), _Way(128, 64, 8, 2), _Way(64, 32, 8, 2)),
    },
    "attention_query_grad": {
        64: (_Way(64, 64, 4, 3), _Way(64, 64, 8, 2), _Way(128, 64, 8, 3), _Way(64, 32, 4, 2)),
        96: (_Way(64, 64, 4, 3), _Way(64, 64, 8, 2), _Way(128, 64, 8, 3), _Way(64, 32, 4, 3), _Way(32, 32, 4, 2)),
        128: (_Way(128, 64, 8, 3), _Way(64, 64, 8, 2), _Way(64, 32, 4, 3), _Way(32, 32, 4, 2)),
        256: (_Way(128, 32, 8, 3), _Way(128, 32, 8, 2), _Way(32, 32, 8, 2), _Way(64, 32, 8, 2), _Way(32, 32, 8, 1)),
    },
    "attention_key_grad": {
        64: (_Way(64, 64, 4, 3), _Way(32, 64, 4, 2), _Way(64, 128, 8, 3), _Way(32, 32, 4, 2)),
        128: (_Way(32, 64, 4, 3), _Way(32, 128, 8, 3), _Way(32, 64, 8, 2), _Way(32, 32, 4, 2)),
        256: (_Way(32, 128, 8, 3), _Way(32, 64, 8, 3), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1)),
    },
    "attention_value_grad": {
        192: (_Way(64, 128, 8, 3), _Way(32, 128, 8, 3), _Way(32, 64, 8, 3), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1)),
        256: (_Way(32, 128, 8, 3), _Way(32, 64, 8, 3), _Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 8, 1)),
    },
}  # fmt: skip

#: the same with loops for the edges of a window or of documents, where others than those of `_HOPPER` come first
_HOPPER_EDGES: _Table = {
    "attention": {
        96: (_Way(64, 64, 4, 3), *_HOPPER["attention"][96][1:]),
        192: (_Way(128, 64, 8, 3), _Way(128, 32, 8, 3), _Way(64, 32, 4, 3), _Way(64, 32, 8, 2)),
    }
}

#: the same with a bias of a number for each score, which is loaded to shared memory, too
_HOPPER_BIAS: _Table = {
    "attention": {
        64: (_Way(128, 32, 8, 3), *_HOPPER["attention"][64][1:]),
        128: (_Way(128, 64, 8, 3), *_HOPPER["attention"][128][1:]),
    },
    "attention_key_grad": {64: (_Way(32, 64, 4, 3), *_HOPPER["attention_key_grad"][64][1:])},
}  # fmt: skip

#: float32 as three TF32 products (tf32x3), up to 128 channels
_TF32: _Table = {
    "attention": {
        64: (_Way(64, 32, 8, 2), _Way(32, 32, 8, 1), _Way(32, 32, 4, 2)),
        128: (_Way(32, 32, 8, 2), _Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
    },
    "attention_query_grad": {
        64: (_Way(32, 32, 4, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
        128: (_Way(32, 32, 8, 2), _Way(16, 32, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_key_grad": {64: (_Way(32, 32, 4, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1))},
    "attention_bias_grad": {64: (_Way(16, 32, 4, 1), _Way(32, 32, 8, 1)), 128: (_Way(16, 32, 8, 1),)},
}  # fmt: skip

#: float32 and others without tensor cores
_SINGLE: _Table = {
    "attention": {
        64: (_Way(64, 32, 8, 2), _Way(32, 32, 4, 2), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 4, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 32, 8, 1), _Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_query_grad": {
        64: (_Way(32, 32, 8, 2), _Way(32, 32, 4, 1), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 8, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_key_grad": {
        64: (_Way(32, 32, 8, 2), _Way(32, 32, 8, 1), _Way(16, 32, 4, 1)),
        128: (_Way(16, 32, 8, 1), _Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
        256: (_Way(16, 16, 8, 1), _Way(16, 16, 4, 1)),
    },
    "attention_bias_grad": {
        64: (_Way(16, 32, 4, 1), _Way(16, 16, 4, 1)), 128: (_Way(16, 16, 4, 1),), 256: (_Way(16, 16, 4, 1),),
    },
}  # fmt: skip

_BIAS_GRAD = {
    64: (_Way(32, 64, 8, 1), _Way(32, 32, 4, 1)),
    128: (_Way(32, 32, 8, 1), _Way(32, 32, 4, 1)),
    256: (_Way(16, 32, 8, 1), _Way(16, 32, 4, 1)),
}  # fmt: skip


def kernels_of(o: Op, body: Body) -> tuple[str, ...]:
    """The kernels of an attention op, in the order in which they run.

    In half precision with many channels, the gradients of k and v have a kernel each (`attention_key_grad` computes
    both elsewhere): five products instead of four, but in blocks twice as large.
    """
    if o.name == "attention":
        return ("attention",)
    bias = ("attention_bias_grad",) if len(o.results) > 3 else ()
    q, v = (body.types[o.operands[n]] for n in (1, 3))
    channels = max(_block(q.shape[3]), _block(v.shape[3]))
    apart = q.dtype in HALVES and channels > _TOGETHER
    of_values = ("attention_value_grad",) if apart else ()
    return ("attention_query_grad", "attention_key_grad", *of_values, *bias)


def sizes_of(o: Op, body: Body, target: Target) -> dict[str, int]:
    """The constants that the configurations of an op's kernels depend on.

    They are the blocks that hold all channels of q (`BLOCK_D`, `REST_D`) and of v (`BLOCK_DV`, `REST_DV`), the kind of
    bias (`BIAS`: 0 none, 1 numbers, 2 a bool mask), whether it differs between positions of q (`BIAS_I`) and of k
    (`BIAS_J`), and whether there are dropout (`DROPOUT`), a window or documents (`EDGES`).

    Raises:
        CannotLower: no kernel supports the number of channels, or float64.
    """
    first = int(o.name != "attention")
    types = [body.types[v] for v in o.operands]
    q, v = types[first], types[first + 2]
    channels = max(q.shape[3], v.shape[3])
    if q.dtype == "f64" or channels > _MOST_CHANNELS:
        raise CannotLower(
            f"gflow.{o.name} has no code for CUDA with {channels} channels of {q.dtype}: at most "
            f"{_MOST_CHANNELS}, of f32 or halves"
        )
    found, attrs = extras(types, 6 if first else 3), read(OPS[o.name], o.op.attributes)
    bias, edges = found.bias, attrs["window"] is not None or found.documents is not None
    kind = 0
    pairs: tuple[int, ...] = (1, 1)
    if bias is not None:
        kind, pairs = 2 if types[bias].dtype == "i1" else 1, types[bias].shape[2:]
    dropout = bool(attrs["dropout"])
    most = 0
    if q.dtype in HALVES and target.has(TWO_CHANNEL_BLOCKS):
        most = _MOST_CHANNELS if target.has(MMA_SHARED) else _IN_PARTS
    (d, rest_d), (dv, rest_dv) = (_parts(t.shape[3], most) for t in (q, v))
    return {
        "BLOCK_D": d, "REST_D": rest_d, "BLOCK_DV": dv, "REST_DV": rest_dv, "BIAS": kind, "DROPOUT": int(dropout),
        "BIAS_I": int(pairs[0] != 1), "BIAS_J": int(pairs[1] != 1),
        "EDGES": int(edges),
    }  # fmt: skip


def most_channels(sizes: Mapping[str, int]) -> int:
    """The channels that the blocks of q or v hold, whichever hold more. sizes: those of `sizes_of`."""
    return max(sizes["BLOCK_D"] + sizes["REST_D"], sizes["BLOCK_DV"] + sizes["REST_DV"])


def _parts(channels: int, most: int) -> tuple[int, int]:
    """The blocks that hold all channels. The second is not 0 for up to `most` channels if two blocks are smaller than
    one: 64 and 32 for 96 channels."""
    whole = _block(channels)
    half = whole // 2
    if not _LEAST_PART <= half <= most // 2:
        return whole, 0
    rest = _block(channels - half)
    return (half, rest) if rest < half else (whole, 0)


def _block(channels: int) -> int:
    """The block size that holds all channels: a power of two of at least 16."""
    return max(16, 1 << (channels - 1).bit_length())


def choose_attention(o: Op, body: Body, target: Target, tf32: bool) -> Choice:
    """The choice for an attention op.

    The backward's scratch holds sum(dy * y) of each row in float32. tf32: whether float32 products may use TF32.
    """
    if o.name == "attention" and not any(body.types[r].numel for r in o.results):
        return Choice("none")
    sizes = sizes_of(o, body, target)
    dtype = body.types[o.operands[0]].dtype
    ways = []
    for stem in kernels_of(o, body):
        precision = _precision(stem, sizes, target, tf32) if dtype == "f32" else ""
        ways.append(way_of(configs(stem, dtype, sizes, target, precision)[0], 1, precision))
    sums = 0 if o.name == "attention" else -(-4 * body.types[o.operands[5]].numel // 64) * 64
    return Choice("kernel", sums).with_ways(ways)


def _precision(stem: str, sizes: Mapping[str, int], target: Target, tf32: bool) -> str:
    """The precision of float32 products, as a field of `gflow.kernel`: "tf32", "tf32x3" or "" (float32).

    tf32x3 computes each product as three TF32 products, which is about as exact as float32; PyTorch's kernel does the
    same. It is used where its registers suffice. tf32: whether one TF32 product is allowed.
    """
    if tf32:
        return "tf32"
    channels = most_channels(sizes)
    return "tf32x3" if target.has(TF32X3) and max(64, channels) in _TF32[stem] else ""


def configs(
    stem: str, dtype: str, sizes: Mapping[str, int], target: Target, precision: str = ""
) -> list[TritonConfig]:
    """The configurations of an attention kernel, the model's choice first.

    Args:
        stem: the kernel (`kernels_of`).
        dtype: the element type of q.
        sizes: the kernel's constants (`sizes_of`).
        target: the target.
        precision: of float32 products: "tf32", "tf32x3", or "ieee" or "" for float32.
    """
    item = 4 if dtype == "f32" else 2
    channels = max(64, most_channels(sizes))
    table = _HOPPER if target.has(MMA_SHARED) else _AMPERE
    if item == 4:
        single = precision in ("", "ieee") or channels not in _TF32[stem]
        table = _SINGLE if single else _TF32
    rows = table.get(stem, _BIAS_GRAD)
    most = min(row for row in rows if row >= channels)
    ways = rows[most]
    pairs = bool(sizes["BIAS_I"] and sizes["BIAS_J"])
    if table is _HOPPER and pairs:
        ways = _HOPPER_BIAS.get(stem, {}).get(most, ways)
    elif table is _HOPPER and sizes["EDGES"]:
        ways = _HOPPER_EDGES.get(stem, {}).get(most, ways)
    if stem != "attention_bias_grad" and (sizes["DROPOUT"] or (pairs and table is not _HOPPER)):
        ways = ways[min(len(ways) - 1, 1) :]
    d = target.device
    fitting = [w for w in ways if _shared(stem, w, sizes, item, target) <= d.shared_memory] or [
        _Way(16, 16, 4, 1)
    ]
    return [TritonConfig({"BLOCK_M": w.m, "BLOCK_N": w.n}, w.warps, w.stages) for w in fitting]


def _shared(stem: str, way: _Way, sizes: Mapping[str, int], item: int, target: Target) -> int:
    """Bytes of shared memory: the resident blocks, the prefetched ones, and (in the backward) softmax weights.

    Tensor cores that read shared memory (sm_90) take the weights from registers. On sm_80, in half precision, a loop
    waits for its block before it requests the next one, which needs one stage less.
    """
    d, dv = sizes["BLOCK_D"] + sizes["REST_D"], sizes["BLOCK_DV"] + sizes["REST_DV"]
    of_keys = stem in ("attention_key_grad", "attention_value_grad")
    stays, passes = (way.n, way.m) if of_keys else (way.m, way.n)
    kept = stays * (d if stem in ("attention", "attention_value_grad") else d + dv)
    in_registers = stem == "attention" or (item == 2 and target.has(MMA_SHARED))
    weights = 0 if in_registers else way.m * way.n
    ahead = int(item == 2 and not target.has(MMA_SHARED))
    stages = max(1, way.stages - max(ahead, target.device.register_stages))
    numbers = 8 * passes * stages if of_keys else 0
    return numbers + item * (kept + stages * passes * (d + dv) + weights)
