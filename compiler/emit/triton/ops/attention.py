"""The launches of attention, forward and backward (FlashAttention).

The forward is one kernel. The backward has a kernel for dq, which also stores sum(dy * y) of each row for the following
ones, a kernel for dk and dv (one for each in half precision with many channels), and one for the bias's gradient if
that is needed. Each element of a result is summed by one program in a fixed order, so results are deterministic.
"""

from __future__ import annotations

from typing import Any

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.gpu.attention import (
    configs,
    kernels_of,
    most_channels,
    sizes_of,
)
from gflow.compiler.kernel.sizes import WIDE
from gflow.compiler.targets.devices import MMA_SHARED
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import bounds, extras
from gflow.dialects.types import HALVES

from ..language import device_functions
from ..language.parameters import Parameters, is_wide
from ..program_builder import Builder, Source
from . import library_attention
from .attention_text import (
    BIAS_GRAD,
    BIASED,
    FORWARD,
    FORWARD_FORM,
    GRADIENTS,
    HELPERS,
    KEPT,
    KEY_GRAD,
    PRECISION,
    QUERY_GRAD,
)

#: scales of at least this can be part of exp2's multiply-add: they preserve the order of scores, and -inf
_LEAST = 2.0**-100
#: the same beside a bias, which is divided by the scale: -1e30 stays finite
_LEAST_BIASED = 2.0**-20
#: with more channels, registers do not suffice for a second loop without masks in the gradient of keys
_SPLIT = 128
#: from so many channels on, the forward requests the scores of the next block before the exponentials of this one
_AHEAD = 128
#: with so many channels in the second of two parts, it does not where there are loops with masks: registers do not
#: suffice for both
_LARGE_REST = 64
#: with more channels, the gradient of v requests the scores of the next block before the exponentials of this one
_AHEAD_VALUES = 192
#: sizes that are multiples of this have no incomplete last block
_BLOCK = 128


def attention(b: Builder, o: Op) -> None:
    """Add the launches of a `gflow.attention`."""
    if _by_library(b, o):
        return
    call = _Call(b, o, 0)
    y, sums = o.results
    call.tensors("q", "k", "v")
    call.extras()
    call.pointer("sums", sums)
    call.pointer("out", y)
    # loops for windows and documents leave too few registers, except where blocks have few keys
    room = call.channels > _AHEAD or not call.sizes["EDGES"]
    able = call.q.dtype in HALVES and b.target.has(MMA_SHARED)
    masked = any(bound is not None for bound in bounds(call.attrs))
    room = room and not (masked and call.sizes["REST_D"] >= _LARGE_REST)
    ahead = able and call.channels >= _AHEAD and room
    call.launch(
        "attention",
        FORWARD_FORM.format(ahead, able) + FORWARD,
        "cdiv(rows, BLOCK_M) * batches * heads",
    )


def _by_library(b: Builder, o: Op) -> bool:
    """Add the call of a library's kernel if that was chosen; returns whether it was."""
    if b.choice.kind == "kernel":
        return False
    b.choice.check(b.choice.kind == "pytorch", "is not for attention")
    known = library_attention.calls(b, o)
    b.choice.check(b.choice.library in known, f"has another library than {[*known]}")
    b.steps.append(known[b.choice.library])
    return True


#: by kernel of the backward: its source, its grid, and the results that it writes
_BACKWARD = {
    "attention_query_grad": (QUERY_GRAD, "cdiv(rows, BLOCK_M) * batches * heads", ("dq",)),
    "attention_key_grad": (KEY_GRAD, "cdiv(columns, BLOCK_N) * batches * (heads // GROUP)", ("dk", "dv")),
    "attention_value_grad": (KEY_GRAD, "cdiv(columns, BLOCK_N) * batches * (heads // GROUP)", ("dv",)),
    "attention_bias_grad": (BIAS_GRAD, "parts", ("dbias",)),
}  # fmt: skip


def attention_grad(b: Builder, o: Op) -> None:
    """Add the launches of a `gflow.attention_grad`."""
    if _by_library(b, o):
        return
    types = [b.body.types[v] for v in o.operands]
    delta = b.scratch(4 * types[5].numel)
    stems = kernels_of(o, b.body)
    for stem in stems:
        text, grid, results = _BACKWARD[stem]
        if stem == "attention_key_grad" and "attention_value_grad" in stems:
            results = ("dk",)
        call = _Call(b, o, 1)
        if text is KEY_GRAD:
            # elsewhere, and with a bias or dropout, registers do not suffice
            room = b.target.has(MMA_SHARED) and not (call.sizes["BIAS"] or call.sizes["DROPOUT"])
            ahead = room and stem == "attention_value_grad" and call.channels > _AHEAD_VALUES
            text = GRADIENTS.format("dk" in results, "dv" in results, room, ahead) + text
        values = () if stem == "attention_value_grad" else ("v",)
        given = ("dy", "y") if stem == "attention_query_grad" else ("dy",)
        call.tensors(*given, "q", "k", *values)
        call.extras()
        call.pointer("sums", o.operands[5])
        if values:
            call.p.pointer("delta", "f32", delta)
        for name in results:
            value = o.results[("dq", "dk", "dv", "dbias").index(name)]
            call.pointer(name, value)
            if name != "dbias":
                call.result_strides(name, value)
        if stem == "attention_bias_grad":
            call.bias_sums()
        call.launch(stem, text, grid)


class _Call:
    """One launch, whose parameters and constants are collected step by step.

    first: the number of q among the operands.
    """

    def __init__(self, b: Builder, o: Op, first: int) -> None:
        self.b, self.o, self.p = b, o, Parameters()
        self.attrs: dict[str, Any] = read(OPS[o.name], o.op.attributes)
        self.operands = dict(zip(("q", "k", "v"), o.operands[first:]))
        if first:
            self.operands |= {"dy": o.operands[0], "y": o.operands[4]}
        types = [b.body.types[v] for v in o.operands]
        found = extras(types, 6 if first else 3)
        self.bias = None if found.bias is None else o.operands[found.bias]
        self.rng = None if found.rng is None else o.operands[found.rng]
        at = found.documents
        self.documents = () if at is None else o.operands[at : at + 2]
        self.q, self.k, self.v = (b.body.types[self.operands[n]] for n in "qkv")
        self.constants: dict[str, int] = {}
        self.bias_step = 0
        self.sizes = sizes_of(o, b.body, b.target)
        self.channels = most_channels(self.sizes)

    def pointer(self, name: str, value: int) -> None:
        self.p.pointer(name, self.b.body.types[value].dtype, self.b.place(value))

    def number(self, name: str, value: int, wide: bool = False) -> None:
        self.p.number(name, value)
        if wide:
            self.p.types[name] = "i64"

    def tensors(self, *names: str) -> None:
        """Add operands with their strides of batches, positions and heads; those of channels are constants."""
        for name in names:
            value = self.operands[name]
            self.pointer(name, value)
            batch, position, head, channel = self.b.strides(value)
            letter = "t" if name in "kv" else "s"
            for suffix, stride in (("b", batch), (letter, position), ("h", head)):
                self.number(f"{name}_{suffix}", stride, is_wide(self.b, value))
            self.constants[f"{name.upper()}_STEP"] = channel

    def result_strides(self, name: str, value: int) -> None:
        """Add the strides of batches, positions and heads of a result, whose channels are contiguous."""
        for suffix, stride in zip("bsh", self.b.strides(value)):
            self.number(f"{name}_{suffix}", stride, is_wide(self.b, value))

    def extras(self) -> None:
        """Add the bias, the operands of masks, the state of the random generator, and sizes."""
        b, attrs = self.b, self.attrs
        batches, rows, heads, channels = self.q.shape
        if self.bias is not None:
            ty = b.body.types[self.bias]
            self.pointer("bias", self.bias)
            strides = [0 if n == 1 else s for n, s in zip(ty.shape, b.strides(self.bias))]
            self.bias_step = strides.pop()
            for suffix, stride in zip("bhi", strides):
                self.number(f"bias_{suffix}", stride, is_wide(self.b, self.bias))
        else:
            self.constants |= {"bias": 0, "bias_b": 0, "bias_h": 0, "bias_i": 0}
        self._seen()
        dropout = attrs["dropout"] or 0.0
        if dropout:
            assert self.rng is not None
            self.pointer("rng", self.rng)
            self.number("stream", attrs["stream"])
            self._real("keep", 1.0 - dropout)
        else:
            self.constants |= {"rng": 0, "stream": 0, "keep": 1}
        results_wide = any(b.body.types[r].numel >= WIDE for r in self.o.results)
        self.number("batches", batches)
        self.number("heads", heads, results_wide)
        self.number("rows", rows)
        self.number("columns", self.k.shape[1])
        self._real("scale", attrs["scale"])
        self.constants |= {
            "D": channels, "DV": self.v.shape[3],
            **{name: self.sizes[name] for name in ("BLOCK_D", "REST_D", "BLOCK_DV", "REST_DV")},
            "GROUP": heads // max(self.k.shape[2], 1), "BIAS": self.sizes["BIAS"],
            "SPLIT": int(self.channels <= _SPLIT),
            "FOLD": int(attrs["scale"] > (_LEAST_BIASED if self.sizes["BIAS"] == 1 else _LEAST)),
            "DROPOUT": self.sizes["DROPOUT"], "WHOLE": int(self.k.shape[1] % 4 == 0),
            "EDGE_M": int(rows % _BLOCK != 0), "EDGE_N": int(self.k.shape[1] % _BLOCK != 0),
        }  # fmt: skip

    def _seen(self) -> None:
        """How far keys may be from a position, and documents."""
        for name, bound in zip(("left", "right"), bounds(self.attrs)):
            self.constants[name.upper()] = int(bound is not None)
            if not bound:
                self.constants[name] = 0
            else:
                self.number(name, bound)
        self.constants["DOCS"] = int(bool(self.documents))
        for n, (name, letter) in enumerate((("q_docs", "s"), ("k_docs", "t"))):
            if self.documents:
                value = self.documents[n]
                self.pointer(name, value)
                for suffix, stride in zip(("b", letter), self.b.strides(value)):
                    self.number(f"{name}_{suffix}", stride)
            else:
                self.constants |= {name: 0, f"{name}_b": 0, f"{name}_{letter}": 0}

    def _real(self, name: str, value: float) -> None:
        self.p.types[name] = "fp32"
        self.p.values.append(value)

    def bias_sums(self) -> None:
        """Add the dimensions along which the bias is broadcast, and its gradient is summed."""
        assert self.bias is not None
        sizes = self.b.body.types[self.bias].shape
        full = (self.q.shape[0], self.q.shape[2], self.q.shape[1], self.k.shape[1])
        for name, size, whole in zip("BHIJ", sizes, full):
            self.constants[f"SUM_{name}"] = int(size == 1 and whole != 1)

    def launch(self, stem: str, text: str, grid: str) -> None:
        b, dropout = self.b, bool(self.attrs["dropout"])
        precision = b.next_precision(self.q.dtype)
        model = configs(stem, self.q.dtype, self.sizes, b.target, precision)
        found = b.ways(model, precise=True)
        constants = dict(self.constants)
        if stem == "attention_bias_grad":
            grid = (
                f"{'1' if constants['SUM_J'] else 'cdiv(columns, BLOCK_N)'} * "
                f"{'1' if constants['SUM_I'] else 'cdiv(rows, BLOCK_M)'} * "
                f"{'1' if constants['SUM_H'] else 'heads'} * {'1' if constants['SUM_B'] else 'batches'}"
            )
        helpers = HELPERS + (KEPT if dropout else "")
        names = ["gf_philox", "gf_uniform"] if dropout else []
        blocks = sorted(found[0].constants)
        signature = ",\n    ".join(
            [", ".join(self.p.types), *(f"{n}: tl.constexpr" for n in [*constants, *blocks])]
        )
        biased = BIASED.format(
            self.sizes["BIAS"] == 2,
            self.sizes["BIAS_I"],
            self.sizes["BIAS_J"],
            self.bias_step,
            constants["EDGE_M"],
            constants["EDGE_N"],
        )
        functions = (
            PRECISION.format(precision) + biased + device_functions.functions(names) + helpers
        )
        text = device_functions.HEADER + functions + text.replace("{signature}", signature)
        source = Source(stem, text, self.p.types, found, (grid,), constants)
        b.launch(source, self.p.values, b.label(self.o))
