"""Steps of gflow's own attention kernels: the arguments of `forward` and `backward`, and the functions they call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.attention import AttentionBlocks, line
from gflow.compiler.kernel.blocks import ITEM, LANES
from gflow.compiler.kernel.selection.cpu.blocking import STRIP
from gflow.compiler.kernel.selection.cpu.sharing import pays
from gflow.compiler.targets.processors import ANY
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import extras
from gflow.dialects.program import KernelAddress, KernelStep, Place
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..product import dots, panels, tile
from ..product.bfloat16 import word_tile
from ..product.own import Steps
from ..program_builder import Builder
from . import backward, few, forward, pairs
from .kernel import EXTERNALS, Form

#: the length of a chain of additions over rows in the gradients of k and v; longer ones are less exact than eager
_ROWS = 24

#: how many rows ahead v is prefetched
_AHEAD = 16

_Words = dict[str, int | Place | KernelAddress]


@record
class Tensor:
    """An operand or a result in memory."""

    place: Place
    type: TensorType
    strides: tuple[int, ...]


@record
class Settings:
    """The attributes of an attention."""

    scale: float
    causal: bool
    dropout: float = 0.0
    stream: int = 0
    formula: bool = False


def attention(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.attention`."""
    tensors, bias, rng = _operands(b, o, 3)
    y, sums = (_tensor(b, v) for v in o.results)
    blocks, settings = b.choice.attention_blocks(), _settings(o)
    _check(b, blocks, (*tensors, y))
    each = blocks.forward(tensors[0].type.shape[3], tensors[2].type.shape[3])
    scratch = b.scratch(blocks.scratch(each, b.threads))
    add_forward(b, blocks, (*tensors, y, sums), bias, rng, settings, scratch, b.label(o))


def attention_grad(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.attention_grad`."""
    tensors, bias, rng = _operands(b, o, 6)
    grads = [_tensor(b, v) for v in o.results[:3]]
    blocks = b.choice.attention_blocks()
    _check(b, blocks, tensors[:5])
    d, values = tensors[1].type.shape[3], tensors[3].type.shape[3]
    scratch = b.scratch(blocks.scratch(blocks.backward(d, values), b.threads))
    add_backward(b, blocks, (*tensors, *grads), bias, rng, _settings(o), scratch, b.label(o))


def _check(b: Builder, blocks: AttentionBlocks, tensors: Sequence[Tensor]) -> None:
    wanted = "bf16" if blocks.pairs else "f32"
    sound = all(t.type.dtype == wanted for t in tensors)
    sound = sound and not (blocks.pairs and any(t.type.shape[3] % 2 for t in tensors))
    b.choice.check(
        sound, f"is for attention of {wanted} values, of which two are multiplied at a time in bf16"
    )


def _tensor(b: Builder, value: int) -> Tensor:
    return Tensor(b.place(value), b.body.types[value], tuple(b.strides(value)))


def _operands(b: Builder, o: Op, needed: int) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """An op's first `needed` operands, its bias, and the state of its random generator; None where there is none."""
    tensors = [_tensor(b, v) for v in o.operands]
    found = extras([t.type for t in tensors], needed)
    bias, rng = (None if n is None else tensors[n] for n in (found.bias, found.rng))
    return tensors[:needed], bias, rng


def _settings(o: Op) -> Settings:
    a = read(OPS[o.name], o.op.attributes)
    return Settings(
        a["scale"], a["causal"], a["dropout"] or 0.0, a["stream"] or 0, bool(a["formula"])
    )


def add_forward(
    b: Steps,
    blocks: AttentionBlocks,
    tensors: Sequence[Tensor],
    bias: Tensor | None,
    rng: Tensor | None,
    settings: Settings,
    scratch: Place,
    label: str,
) -> None:
    """Add the step of a forward. tensors: q, k, v, the result, and the log-sum-exp."""
    q, k, v, y, sums = tensors
    form = _form(bias, settings, blocks)
    words = _common(b, blocks, (q, k, v, sums), bias, rng, settings, scratch)
    d, dv = q.type.shape[3], v.type.shape[3]
    words |= _strided("y", y, "y")
    high, wide = blocks.weighing(dv)
    words |= {
        "values": _tile(b, blocks, (high, wide), (ITEM, blocks.across)), "high": high, "wide": wide,
        "row_panels": blocks.row_panels(d), "key_panels": blocks.key_panels(d), "per_row": blocks.per_row,
        "q_line": line(blocks.terms(d)), "y_line": line(dv), "each": blocks.forward(d, dv),
    }  # fmt: skip
    work = _work(q.type, k.type, d + dv)
    _add(b, "attention", forward.function, forward.WORDS, form, words, work, label)


def add_backward(
    b: Steps,
    blocks: AttentionBlocks,
    tensors: Sequence[Tensor],
    bias: Tensor | None,
    rng: Tensor | None,
    settings: Settings,
    scratch: Place,
    label: str,
) -> None:
    """Add the step of a backward. tensors: dy, q, k, v, y, the log-sum-exp; dq, dk, dv."""
    dy, q, k, v, y, sums, dq, dk, dv = tensors
    form = _form(bias, settings, blocks)
    words = _common(b, blocks, (q, k, v, sums), bias, rng, settings, scratch)
    d, values = q.type.shape[3], v.type.shape[3]
    for name, letter, tensor in (
        ("dy", "f", dy), ("y", "y", y), ("dq", "e", dq), ("dk", "g", dk), ("dv_", "h", dv),
    ):  # fmt: skip
        words |= _strided(name, tensor, letter)
    weighing = blocks.weighing(max(d, values))
    apart = (
        2 if blocks.pairs else 1
    )  # words hold two rows of p and ds, and rows of ds are bfloat16 values
    words |= {
        "by_keys": _tile(b, blocks, weighing, (ITEM, blocks.across // apart)), "wide": weighing[1],
        "by_rows": _tile(b, blocks, weighing, (blocks.across * apart, ITEM), _ROWS),
        "q_panels": blocks.row_panels(d), "k_panels": blocks.key_panels(d),
        "dy_panels": blocks.row_panels(values), "v_panels": blocks.key_panels(values),
        "block": blocks.rows * blocks.across, "each": blocks.backward(d, values),
        "value_terms": blocks.terms(values), "d_line": line(d), "dv_line": line(values),
        "q_pairs": blocks.row_pairs(d), "dy_pairs": blocks.row_pairs(values), "k_pairs": blocks.key_pairs(d),
    }  # fmt: skip
    work = _work(q.type, k.type, 3 * d + 2 * values)
    _add(b, "attention_grad", backward.function, backward.WORDS, form, words, work, label)


# -- words


def _form(bias: Tensor | None, settings: Settings, blocks: AttentionBlocks) -> Form:
    dtype = "" if bias is None else bias.type.dtype
    dropout = bool(settings.dropout)
    return Form(
        dtype, settings.causal, dropout, blocks.packed, blocks.panels, settings.formula, blocks.pairs
    )  # fmt: skip


def _common(
    b: Steps,
    blocks: AttentionBlocks,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    bias: Tensor | None,
    rng: Tensor | None,
    settings: Settings,
    scratch: Place,
) -> _Words:
    q, k, v, sums = tensors
    (batch, tq, heads, d), (tk, shared) = q.type.shape, k.type.shape[1:3]
    words: _Words = {
        "scratch": scratch, "batch": batch, "heads": heads, "group": heads // shared,
        "tq": tq, "tk": tk, "d": d, "dv": v.type.shape[3], "terms": blocks.terms(d),
        "scale": _bits(settings.scale), "drop": _bits(settings.dropout), "stream": settings.stream,
        "mr": blocks.tile[0], "nr": blocks.tile[1], "rows": blocks.rows, "keys": blocks.keys, "across": blocks.across,
        "bias": 0, "bb": 0, "bh": 0, "bt": 0, "bj": 0, "rng": 0 if rng is None else rng.place,
    }  # fmt: skip
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        words |= _strided(name, tensor, name)
    words |= {"sums": sums.place}
    words |= dict(zip(("sb", "sh", "st"), (ITEM * s for s in sums.strides)))
    if bias is not None:
        each = bias.type.itemsize
        steps = [s * each if n != 1 else 0 for n, s in zip(bias.type.shape, bias.strides)]
        words |= {"bias": bias.place, **dict(zip(("bb", "bh", "bt", "bj"), steps))}
    height, width = blocks.tile
    words |= {"pack_rows": _pack(b, height) if blocks.panels else 0}
    words |= {"pack_keys": _pack(b, width) if blocks.packed else 0}
    words |= {"pair_rows": _pair(b) if blocks.pairs else 0}
    words |= {"scores": _tile(b, blocks, blocks.tile, None) if blocks.packed else _few(b, blocks)}
    if not blocks.packed:
        words |= {"nr": STRIP}
    return words


def _strided(name: str, tensor: Tensor, letter: str) -> _Words:
    """The address of a [batch, position, head, channel] tensor, and its strides in bytes, as arguments."""
    batch, position, head, _ = (tensor.type.itemsize * s for s in tensor.strides)
    return {name: tensor.place, f"{letter}b": batch, f"{letter}h": head, f"{letter}t": position}


def _bits(x: float) -> int:
    """The bits of a number as a float32."""
    (found,) = struct.unpack("<I", struct.pack("<f", x))
    return int(found)


def _work(q: TensorType, k: TensorType, channels: int) -> int:
    """The most multiplications of one product of an attention (q kᵀ or p v)."""
    work = at_most(k.shape[1]) * at_most(channels)
    for n in q.shape[:3]:
        work *= at_most(n)
    return work


# -- functions


def _pack(b: Steps, width: int) -> KernelAddress:
    name = f"pack_{width}_k"
    if name not in b.kernels:
        b.kernels[name] = panels.pack(name, width, "k")
    return KernelAddress(name)


def _pair(b: Steps) -> KernelAddress:
    name = "pair_rows"
    if name not in b.kernels:
        b.kernels[name] = pairs.pair(name)
    return KernelAddress(name)


def _few(b: Steps, blocks: AttentionBlocks) -> KernelAddress:
    """The function that computes the scores of few rows."""
    height, width = blocks.tile
    name = f"scores_few_{width}" if blocks.panels else f"tile_dots_{height}x{width}"
    if name not in b.kernels:
        b.kernels[name] = few.few(name, width) if blocks.panels else dots.dots(name, height)
    return KernelAddress(name)


def _tile(
    b: Steps,
    blocks: AttentionBlocks,
    size: tuple[int, int],
    steps: tuple[int, int] | None,
    chain: int = tile.CHAIN,
) -> KernelAddress:
    """The function of a register tile.

    Args:
        b: the steps that the function is added to.
        blocks: the blocking.
        size: rows and columns of the tile.
        steps: the strides of A in bytes, if A is a block of scores; B is then read in place. None: A is packed.
        chain: the length of a chain of additions.
    """
    height, width = size
    name, ahead = f"tile_{height}x{width}", _AHEAD if steps else 0
    if steps is not None:
        name = f"tile_lies_{height}x{width}_{steps[0]}_{steps[1]}"
    if blocks.pairs:
        name += "_pairs"
    if name not in b.kernels:
        vectors = width // LANES
        b.kernels[name] = (
            word_tile.tile(name, height, vectors, steps, chain, ahead)
            if blocks.pairs
            else tile.tile(name, height, vectors, steps is None, steps, chain, ahead)
        )
    return KernelAddress(name)


def _add(
    b: Steps,
    stem: str,
    function: Callable[[str, Form], str],
    names: Sequence[str],
    form: Form,
    words: _Words,
    work: int,
    label: str,
) -> None:
    name = f"{stem}{form.name}"
    if name not in b.kernels:
        b.kernels[name] = function(name, form)
        b.externals |= set(EXTERNALS)
    found = tuple(words[n] for n in names)
    b.steps.append(KernelStep(name, found, pays(work / ANY.scored), label, True))
