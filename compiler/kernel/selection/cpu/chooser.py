"""Kernel selection on a CPU: the kernel of each op, and its scratch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gflow.compiler.targets.processors import Processor
from gflow.dialects.amp import amp_of
from gflow.dialects.attributes import read
from gflow.dialects.extents import typical
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.attention import multiplied
from gflow.dialects.ops.distribution import SHARD, START
from gflow.dialects.ops.structure import CHECK, ENGINE
from gflow.dialects.records import record
from gflow.dialects.types import (
    HALVES,
    NO_KERNELS,
    TensorType,
    is_row_major,
    row_major_strides,
    type_of,
)

from ....ir.errors import CannotLower
from ....ir.fused import CONTRACTIONS, root_of, root_operands
from ....ir.ssa import Op
from ....memory.liveness import Lives
from ...blocks import BF16
from ...description import Descriptions, Kernel
from ...tiles import tiles_of
from ..choice import Choice, Way
from .attention import NEEDED, attention_of
from .contraction import Contraction, up
from .halves import as_float32, choice_in_halves, conversions, halves_among
from .loops import choice_of_loops, runs
from .other_ops import CHOOSERS
from .products import NONE, Products
from .rows import Rows, granule_of

#: keys times channels from which on PyTorch's attention in bfloat16 is faster with AMX (Emerald Rapids: 512 × 64 takes
#: 0.77 to 0.9 of its time, 768 × 64 and 512 × 128 1.3 of it)
_LONG = 1 << 15

KERNEL, PYTORCH = Choice("kernel"), Choice("pytorch")

#: ops that only programs for GPUs have (gflow-split-softmax)
_OF_GPUS = frozenset({"put", "scaled_matmul", "softmax_runs"})


@record
class Chooser:
    """Selects the kernel of each op of a function.

    Attributes:
        lives: layouts, places and live ranges of the function's values.
        describe: describes its regions.
        products: selects the kernels of its contractions.
    """

    lives: Lives
    describe: Descriptions
    products: Products

    def __call__(self, o: Op) -> Choice:
        """The choice for an op.

        Raises:
            CannotLower: there is no CPU kernel for it.
        """
        root = root_of(o.op) if o.name == "fused" else None
        inner = () if root is None else o.op.regions[0].blocks[0].operations
        if {o.name, *(p.operation.name.removeprefix("gflow.") for p in inner)} & _OF_GPUS:
            raise CannotLower(
                f"{', '.join(sorted(_OF_GPUS))} have no CPU code: {o.name} {o.op.location}"
            )
        if root is not None:
            return self._contraction(o, root)
        if o.name == "fused":
            k = self._describe(o)
            if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
                raise CannotLower(
                    f"there are no kernels on complex numbers or float8: {o.name} {o.op.location}"
                )
            return choice_of_loops(k, self.products.threads) if runs(k) else NONE
        if o.name in CONTRACTIONS:
            return self._contraction(o, o.op)
        if o.name not in OTHERS:
            raise CannotLower(f"gflow.{o.name} has no CPU code; run gflow-fuse first")
        if o.name in NEEDED and self.products.processor is not None:
            own = self._attention(self.products.processor, o)
            if own is not None:
                return own
        if o.name in NEEDED and read(OPS[o.name], o.op.attributes)["formula"]:
            raise CannotLower(
                f"gflow.{o.name} {o.op.location} is computed as two products and a softmax (formula = true), for which "
                "there is no kernel here; switch recognition off: config.enable_attention_recognition(False)"
            )
        if o.name in _CALLS:
            return self._call(o)
        if o.name in CHOOSERS:
            return CHOOSERS[o.name](o, self.lives.body, self.lives.at)
        return KERNEL if OTHERS[o.name] == "kernel" else PYTORCH

    # -- kernels

    def _describe(self, o: Op) -> Kernel:
        at = self.lives.at
        return self.describe(
            o, [at[v].strides for v in o.operands], [at[v].strides for v in o.results]
        )

    # -- contractions

    def _contraction(self, o: Op, root: ir.Operation) -> Choice:
        lives, result, alone = self.lives, type_of(root.results[0]), root is o.op
        values = [o.operands[n] for n in ([0, 1] if alone else root_operands(root))]
        types = [*(lives.body.types[v] for v in values), result]
        strides = [lives.at[v].strides for v in values]
        strides.append(lives.at[o.results[0]].strides if alone else row_major_strides(result.shape))
        if alone:
            return self._contracted(Contraction(root, values, types, strides))
        rows, tiled, copied, into = self._rows(o, root, result)
        found = self._contracted(Contraction(root, values, types, strides, rows, tiled, copied))
        return found if found.kind == "none" else replace(found, into=into)

    def _contracted(self, c: Contraction) -> Choice:
        """The choice for a contraction, without the result that it is written to."""
        if c.result.dtype in HALVES and c.result.numel > 0:
            return choice_in_halves(self.products, c)
        if c.name == "packed_product":
            inner, count = self.products.packed(c), None
        else:
            inner, count = self.products.choose(c)
        # the kernel calls an epilogue that can run on tiles on each of them
        calls_it = c.tiled and (inner.tile or inner.kind == "depthwise")
        if inner.kind == "none" or calls_it:
            return inner
        then, kernel = c.epilogue(self.products.threads, count)
        return replace(inner, scratch=max(inner.scratch, kernel), then=(*inner.then, *then))

    def _rows(
        self, o: Op, root: ir.Operation, ty: TensorType
    ) -> tuple[Rows, bool, tuple[int, ...] | None, int]:
        """The rows of a contraction's result; whether the epilogue can run on tiles; if the result must be copied to a
        layout that isn't row-major, the strides of the copy; and `Choice.into`."""
        lives, k = self.lives, self._describe(o)
        yielded = root.block.operations[-1].operation.operands
        returned = None
        for r, v in zip(o.results, yielded):
            if v == root.results[0]:
                returned = r
        granule, floating, copied, into = granule_of(k, ty), False, None, -1
        if returned is None:
            fitting = (n for n, r in enumerate(o.results) if self._can_hold(o, r, ty))
            into = next(fitting, -1)
            floating = into < 0
        elif not is_row_major(ty.shape, lives.at[returned].strides):
            granule, floating, copied = 0, True, lives.at[returned].strides
        own = None
        if returned is not None:
            own = (o.results.index(returned), lives.at[returned].strides)
        tiled = tiles_of(o, root, k, own) is not None
        return Rows(ty, floating, granule, self.products.blas, k), tiled, copied, into

    def _can_hold(self, o: Op, r: int, ty: TensorType) -> bool:
        """Whether a contraction can write to the buffer of result `r`, which the epilogue then overwrites.

        The buffer must have the same type of elements and size, and must not be the buffer of an operand.
        """
        lives = self.lives
        own = lives.body.types[r]
        if own.dtype != ty.dtype or own.numel != ty.numel:
            return False
        if not is_row_major(own.shape, lives.at[r].strides):
            return False
        return all(self._memory(lives.at[v].base) != self._memory(r) for v in o.operands)

    def _memory(self, value: int) -> tuple[str, int]:
        """The buffer of a value that isn't a view, as (kind, number)."""
        lives = self.lives
        if value in lives.place:
            space, _, number = lives.place[value].partition(":")
            return space, int(number)
        if value in lives.buffer_of:
            return "buffer", lives.buffer_of[value]
        if value < len(lives.body.arguments):
            return "arg", value
        return "constant", value

    # -- half precision

    def _attention(self, p: Processor, o: Op) -> Choice | None:
        """gflow's own attention: of bfloat16 values in pairs, or of values that are widened to float32.

        Long bfloat16 attention is faster in PyTorch's kernel where that uses AMX.
        """
        types, values = self.lives.body.types, (*o.operands, *o.results)
        if all(types[v].dtype not in HALVES for v in values):
            return attention_of(p, o, types, self.products.threads)
        keys = types[o.operands[NEEDED[o.name] // 3]]  # k, after q, or after dy and q
        if p.amx and keys.dtype == "bf16" and typical(keys.shape[1]) * keys.shape[3] > _LONG:
            return None
        wide = list(types)
        for v in values:
            wide[v] = as_float32(types[v])
        if (found := self._attention_in_pairs(p, o, wide)) is not None:
            return found
        own = attention_of(p, o, wide, self.products.threads)
        if own is None:
            return None
        numbers, then, scratch = self._widened(o)
        return replace(own, scratch=own.scratch + scratch, widened=numbers, then=then)

    def _attention_in_pairs(self, p: Processor, o: Op, wide: list[TensorType]) -> Choice | None:
        """gflow's own attention that multiplies two bfloat16 values at a time, by AVX-512; its gradients are rounded
        from float32 sums. None where it does not support the op. wide: the types of values, of halves as float32."""
        types, at, values = self.lives.body.types, self.lives.at, (*o.operands, *o.results)
        tensors = [values[n] for n in multiplied(o.name, len(o.operands))]
        if p.halves is None or p.amx is not None or any(types[v].dtype != "bf16" for v in tensors):
            return None
        if any(at[v].strides[3] != 1 and types[v].shape[3] != 1 for v in tensors):
            return None
        own = attention_of(p, o, wide, self.products.threads, BF16)
        if own is None:
            return None
        numbers, then, scratch = self._widened(o, tensors)
        return replace(own, scratch=own.scratch + scratch, widened=numbers, then=then)

    def _widened(
        self, o: Op, kept: Collection[int] = ()
    ) -> tuple[tuple[int, ...], tuple[Way, ...], int]:
        """The positions of an op's values in half precision, their conversions, and the bytes of the float32 copies.

        kept: values that stay in half precision.
        """
        values = (*o.operands, *o.results)
        types = [self.lives.body.types[v] for v in values]
        numbers = tuple(n for n in halves_among(values, types) if values[n] not in kept)
        strides = [self.lives.at[v].strides for v in values]
        scratch = sum(up(4 * types[n].numel) for n in numbers)
        return numbers, conversions(numbers, types, strides, len(o.operands)), scratch

    def _call(self, o: Op) -> Choice:
        """The choice for an ATen call. Calls on float16 are widened to float32, since PyTorch computes float16 slowly
        on CPUs; ops whose AMP rule isn't "allow" are not."""
        values = (*o.operands, *o.results)
        types = [self.lives.body.types[v] for v in values]
        if amp_of(o.op).kind != "allow" or all(ty.dtype != "f16" for ty in types):
            return PYTORCH
        numbers, then, scratch = self._widened(o)
        return Choice("pytorch", scratch, widened=numbers, then=then)


#: ATen calls that may need scratch
_CALLS = ("aten", "attention", "attention_grad")
#: the kind of kernel of ops that are neither fused nor contractions
OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("iota", "pad", "concatenate", "reverse", "index_copy", "take", "quantized_matmul", CHECK),
        "kernel",
    ),
    **dict.fromkeys(("max_pool", "max_pool_grad"), "kernel"),
    **dict.fromkeys(_CALLS, "pytorch"),
    **dict.fromkeys(("avg_pool", "avg_pool_grad"), "pytorch"),
    **dict.fromkeys((START, SHARD, ENGINE), "pytorch"),
    **dict.fromkeys(("reduce", "gather", "index_add"), "pytorch"),
}
