"""The kernel chosen for an op, and its form in the IR.

    {kind = "product", tile = array<i64: 128, 256, 64>, warps = 8, stages = 3, split_k = 4, scratch = 12345}

`gflow-select-kernels` writes the choice as the op's `gflow.kernel`; memory planning and code generation read it.
`dialects/marks.py` declares the fields. Fields with default values are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gflow.compiler.targets import Target
from gflow.dialects.attributes import from_mlir, read_once, to_mlir
from gflow.dialects.extents import current
from gflow.dialects.marks import KERNEL, KERNEL_FIELDS, LOOP_FIELDS, TARGET
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import TritonConfig
from gflow.dialects.records import record

from ...ir.errors import CannotLower
from ..attention import FEW, AttentionBlocks
from ..blocks import (
    AMX_LANES,
    BF16,
    LANES,
    PADDED,
    PARTS,
    Blocks,
    GradientBlocks,
    Strips,
    Winograd,
    WinogradGradient,
)

#: threads of a warp in a choice, on all devices. Code generation converts to the device's own warp size
WARP = 32

#: the most accumulators, in vectors: of a register tile, and of a strip of few rows, which is on the stack
_MOST_SUMS, _MOST_STRIP = 28, 32


def blocked(kind: str, b: Blocks, threads: int, sharing: Mapping[str, Any]) -> Choice:
    """The choice for gflow's own matrix product on a CPU.

    Args:
        kind: the kind of kernel.
        b: its blocking.
        threads: the number of threads that scratch is for.
        sharing: the fields that say whether all threads run it (`cpu/sharing.py`).
    """
    block = (b.rows, b.columns, b.across)
    batch = "apart" if b.apart else "together"
    return Choice(
        kind, b.scratch(threads), tile=b.tile, block=block, batch=batch, precision=b.precision, **sharing
    )  # fmt: skip


@record(kw_only=True)
class Way:
    """The parameters of one launch. `KERNEL_FIELDS` in `dialects/marks.py` describes each field."""

    block: tuple[int, ...] = ()
    warps: int = 0
    stages: int = 0
    pieces: int = 1
    precision: str = ""
    order: tuple[int, ...] = ()
    lanes: int = 0
    unroll: int = 1
    share: str = "outer"
    kept: int = 0
    threads: str = "one"
    from_size: int = 0

    def check(self, right: bool, what: str) -> None:
        """Raise an error for a choice that code generation does not support.

        Args:
            right: the condition that must hold.
            what: the rest of the sentence "the choice … <what>".

        Raises:
            CannotLower: the condition does not hold.
        """
        if not right:
            raise CannotLower(f"the choice {self.text()} {what}; run gflow-select-kernels again")

    def shared(self) -> tuple[bool, int]:
        """Whether all threads run a CPU kernel, and `from_size`, the least dynamic size at which they do (0: always).

        Raises:
            CannotLower: `from_size` is set for a kernel that one thread runs, or without a dynamic dimension.
        """
        timed = self.threads == "all" and current() is not None
        self.check(self.from_size == 0 or timed, "has from_size for a kernel that one thread runs")
        return self.threads == "all", self.from_size

    def text(self) -> str:
        """The fields without default values, as "name = value, …"."""
        given = sorted(vars(self).items(), key=lambda item: item[0] != "kind")  # the kind first
        return ", ".join(f"{name} = {value}" for name, value in given if value != _DEFAULTS[name])


def way_of(config: TritonConfig, pieces: int = 1, precision: str = "") -> Way:
    """The launch parameters of a Triton configuration."""
    return Way(
        block=tuple(config.constants.values()), warps=config.num_warps, stages=config.num_stages,
        pieces=pieces, precision=precision,
    )  # fmt: skip


@record
class Choice(Way):
    """The kernel chosen for an op: the parameters of its main launch, and the other fields of `KERNEL_FIELDS`."""

    kind: str
    scratch: int = 0
    tile: tuple[int, ...] = ()
    batch: str = "together"
    rows: int = 0
    into: int = -1
    parts: int = 1
    loads: str = "pointers"
    persistent: int = 0
    split_k: int = 1
    copies: tuple[str, ...] = ()
    widened: tuple[int, ...] = ()
    patches: str = ""
    walk: str = "images"
    then: tuple[Way, ...] = ()
    library: str = ""
    tuned: str = ""

    @property
    def ways(self) -> tuple[Way, ...]:
        """The parameters of all launches, in order: copies of operands, the main launch, further launches."""
        own = Way(
            block=self.block or self.tile, warps=self.warps, stages=self.stages, pieces=self.pieces,
            precision=self.precision,
        )  # fmt: skip
        before = len(self.copies)
        return (*self.then[:before], own, *self.then[before:]) if self.warps else self.then

    @property
    def before_epilogue(self) -> int:
        """The entries of `then` on a CPU that are before those of an epilogue: of copies and conversions, then of zeros
        or of stored patches."""
        made = self.kind == "zero" or self.patches == "stored"
        return len(self.copies) + len(self.widened) + made

    def with_ways(self, ways: Sequence[Way]) -> Choice:
        """The choice with other parameters for its launches, in the order of `ways`; the tile of a product is kept."""
        before = len(self.copies)
        then = (*ways[:before], *ways[before + 1 :])
        if self.tile:
            return replace(self, then=then)
        own = ways[before]
        return replace(
            self, block=own.block, warps=own.warps, stages=own.stages, pieces=own.pieces,
            precision=own.precision, then=then,
        )  # fmt: skip

    def blocks(self) -> Blocks:
        """The blocking of a CPU matrix product.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking that code generation does not support"
        self.check(len(self.tile) == 3 and len(self.block) == 3, what)
        (height, width, kc), (rows, columns, across) = self.tile, self.block
        vectors = width // LANES
        most = _MOST_STRIP if self.kind == "rows" else _MOST_SUMS
        sound = width % LANES == 0 and height * vectors <= most and vectors <= 8
        if self.precision:
            sound = (
                self.precision in PARTS
                and height == width == AMX_LANES
                and kc % PADDED == 0
                and self.kind != "rows"
            )
        self.check(sound and rows % height == columns % width == across % width == 0, what)
        apart, packed = self.batch == "apart", self.kind != "rows"
        return Blocks((height, width, kc), rows, columns, across, apart, packed, self.precision)

    def strips(self) -> Strips:
        """The blocking of a CPU product with a packed weight.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking of packed weights that code generation does not support"
        count = 3 if self.kind == "direct" else 2
        self.check(len(self.tile) == 3 and len(self.block) == count, what)
        (height, width, k), (rows, across, *more) = self.tile, self.block
        sound = min(height, width, rows, across, *more) > 0 and width % LANES == 0
        self.check(sound and height * width // LANES <= _MOST_SUMS and height <= LANES, what)
        self.check(rows % height == across % width == sum(more) % width == 0, what)
        self.check(self.precision in ("", BF16), what)
        by_position = self.walk == "positions"
        return Strips((height, width, k), rows, across, sum(more), by_position, self.precision)

    def winograd(self) -> Winograd:
        """The blocking of a convolution by Winograd's algorithm.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking of Winograd's algorithm that code generation does not support"
        self.check(len(self.tile) == 2 and len(self.block) == 1, what)
        (height, width), (tiles,) = self.tile, self.block
        sound = min(height, width, tiles) > 0 and width % LANES == tiles % height == 0
        self.check(sound and height * width // LANES <= _MOST_SUMS, what)
        return Winograd((height, width), tiles)

    def winograd_gradient(self) -> WinogradGradient:
        """The blocking of the gradient of a convolution's weight by Winograd's algorithm.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking of Winograd's algorithm that code generation does not support"
        self.check(len(self.tile) == 2 and len(self.block) == 3, what)
        (height, width), (tiles, rows, beside) = self.tile, self.block
        sound = min(height, width, tiles, beside) > 0 and width % LANES == beside % LANES == 0
        sound = sound and beside % height == 0 and rows in (1, 2, 4)
        self.check(sound and height * width // LANES <= _MOST_SUMS, what)
        return WinogradGradient((height, width), tiles, rows, beside)

    def gradient_blocks(self) -> GradientBlocks:
        """The blocking of the gradient of a convolution's weight that reads windows in place.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking of weight gradients that code generation does not support"
        self.check(len(self.tile) == 3 and len(self.block) == 1, what)
        (height, width, deep), (beside,) = self.tile, self.block
        sound = min(height, width, deep, beside) > 0 and width % LANES == beside % height == 0
        sound = sound and self.precision in ("", BF16)
        self.check(sound and height * width // LANES <= _MOST_SUMS, what)
        return GradientBlocks((height, width, deep), beside, self.precision)

    def attention_blocks(self) -> AttentionBlocks:
        """The blocking of a CPU attention.

        Raises:
            CannotLower: code generation does not support it.
        """
        what = "has a blocking of attention that code generation does not support"
        self.check(len(self.tile) == 3 and len(self.block) == 1, what)
        (height, width, keys), (rows,) = self.tile, self.block
        packed = self.kind == "attention"
        sound = width % LANES == rows % height == 0 and height * width // LANES <= _MOST_SUMS
        if not packed:
            sound = (height, width) in FEW
        pairs = self.precision == BF16
        sound = sound and self.precision in ("", BF16) and (packed or not pairs)
        self.check(sound and keys % LANES == 0 and rows > 0 and keys > 0, what)
        self.check(not pairs or rows % 2 == 0, what)
        return AttentionBlocks((height, width), rows, keys, packed, pairs)

    def check_fields(self, used: Mapping[str, Sequence[str]]) -> None:
        """Raise an error for fields that the kernel does not use.

        used: by kind, the fields that it uses besides `kind` and `scratch`.

        Raises:
            CannotLower: another field has a value that isn't its default.
        """
        known = ("kind", "scratch", *used.get(self.kind, ()))
        for name, value in vars(self).items():
            if value != _DEFAULTS[name]:
                self.check(name in known, f"has {name}, which its kernel does not use")

    def attribute(self) -> ir.DictAttr:
        """The choice as the attribute `gflow.kernel`, in the current MLIR context."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.then:
            found["then"] = ir.ArrayAttr.get([_attributes(vars(way)) for way in self.then])
        return _attributes(found)


def _attributes(values: Mapping[str, Any]) -> ir.DictAttr:
    """A dictionary attribute of the fields that do not have their default values."""
    return ir.DictAttr.get(
        {
            name: to_mlir(KERNEL_FIELDS[name], value)
            for name, value in values.items()
            if value != _DEFAULTS[name]
        }
    )


def _values(given: ir.DictAttr) -> dict[str, Any]:
    return {entry.name: from_mlir(KERNEL_FIELDS[entry.name], entry.attr) for entry in given}


_ROWS = ("rows", "into", "widened", "then", "tuned")
_SHARED = ("threads", "from_size")
_BLOCKED = ("tile", "block", "batch", "precision", *_SHARED, *_ROWS)

#: by kind, the fields that CPU kernels use
CPU_FIELDS: Mapping[str, Sequence[str]] = {
    "loops": LOOP_FIELDS,
    "kernel": ("tile", *_SHARED, "then"),
    "blas": _ROWS,
    "pytorch": _ROWS,
    "zero": _ROWS,
    "depthwise": ("copies", "into", "widened", *_SHARED, "then"),
    "panels": _BLOCKED,
    "rows": _BLOCKED,
    "packed": ("tile", "block", "walk", "into", *_SHARED, "then"),
    "direct": ("tile", "block", "walk", "precision", "into", "widened", *_SHARED, "then"),
    "winograd": ("tile", "block", "into", "widened", *_SHARED, "then"),
    "patches": (*_BLOCKED, "copies", "patches"),
    "attention": ("tile", "block", "precision", "widened", "then", "tuned"),
    "attention_rows": ("tile", "block", "widened", "then", "tuned"),
}

_LAUNCHES = ("block", "warps", "stages", "then", "tuned")

#: by kind, the fields that GPU kernels use
GPU_FIELDS: Mapping[str, Sequence[str]] = {
    "region": ("pieces", *_LAUNCHES),
    "merged": ("block", "warps"),
    "product": (
        "tile", "parts", "loads", "persistent", "split_k", "copies", "precision", "warps", "stages", "then", "tuned",
    ),
    "depthwise": ("pieces", *_LAUNCHES),
    "argmax": ("pieces", *_LAUNCHES),
    "kernel": ("precision", *_LAUNCHES),
    "zero": _LAUNCHES,
    "pytorch": ("library", *_LAUNCHES),
}  # fmt: skip


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Choice)}


def choice_of(op: ir.Operation) -> Choice:
    """The choice that an op's `gflow.kernel` states.

    Raises:
        CannotLower: the op has no such attribute.
        VerifyError: the attribute is malformed.
    """
    if KERNEL not in op.attributes:
        raise CannotLower(f"no kernel is selected for '{op.name}'; run gflow-select-kernels first")
    return read_once(op.attributes[KERNEL], _choice)


def _choice(attribute: ir.Attribute) -> Choice:
    values = _values(ir.DictAttr(attribute))
    then = tuple(Way(**_values(ir.DictAttr(way))) for way in values.pop("then", ()))
    return Choice(**values, then=then)


def selected_for(function: func.FuncOp) -> str:
    """The target that a function's kernels were selected for; "" before kernel selection."""
    attributes = function.operation.attributes
    return ir.StringAttr(attributes[TARGET]).value if TARGET in attributes else ""


def check_target(function: func.FuncOp, target: Target) -> None:
    """Check that a function's kernels were selected for `target`.

    Raises:
        CannotLower: they were selected for another target, or not at all.
    """
    found = selected_for(function) or "no target"
    if found != str(target):
        raise CannotLower(
            f"kernels are selected for {found}, not {target}; run gflow-select-kernels{{target={target}}} first"
        )
