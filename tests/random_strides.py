"""Random functions whose arguments lie in memory in every way, are updated, and are read again.

Arguments are transposed, sliced (with gaps and offsets), channels-last, expanded, overlapping and empty. What a
call must do is known of every byte: results, updated arguments, and the gaps between their elements.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ir_interpreter import DTYPES, run_module
from random_ir import Generator

from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, row_major_strides, share_memory, type_of

SHAPES: tuple[tuple[int, ...], ...] = (
    (6, 8), (6, 8), (8, 6), (5,), (), (2, 3, 4), (2, 3, 4), (2, 4, 5, 3), (1, 6), (0, 4), (3, 1, 2),
)  # fmt: skip
LARGE_SHAPES: tuple[tuple[int, ...], ...] = (
    (70, 96), (96, 70), (70, 96), (300,), (4, 16, 40), (2, 8, 18, 18), (), (1, 96),
)  # fmt: skip


def random_strides(shape: Sequence[int], choose: random.Random, free: bool) -> tuple[int, ...]:
    """Strides for a tensor; `free`: elements may share memory."""
    kinds = ["dense", "permuted", "permuted", "sliced", "gaps", "channels-last"]
    kind = choose.choice(kinds + ["expanded", "overlapping"] * free)
    order = list(range(len(shape)))
    if kind in ("permuted", "gaps"):
        choose.shuffle(order)
    if kind == "channels-last" and len(shape) >= 3:
        order = [0, *order[2:], 1]
    strides = [1] * len(shape)
    step = 2 if kind == "sliced" else 1
    for d in reversed(order):
        strides[d] = step
        step = step * max(shape[d], 1) + (choose.choice((0, 1, 3)) if kind == "gaps" else 0)
    if kind == "expanded":
        strides = [choose.choice((0, s)) for s in strides]
    if kind == "overlapping":
        strides = [choose.choice((1, 2, s)) for s in strides]
    return tuple(strides)


class _Generator(Generator):
    """As `Generator`, with ops that look at memory: contractions, indexing, calls of PyTorch."""

    def consume(self, x: ir.Value) -> None:
        """An op that reads `x` where it lies."""
        ty, build, choice = type_of(x), builder.build, self.random.choice
        kinds = ["reshape", "reshape", "cumsum", "clone"]
        if ty.rank >= 1 and ty.numel:
            kinds += ["take", "gather", "argmax", "sort", "reduce", "index_add", "take"]
        if ty.rank >= 2 and ty.numel:
            kinds += ["matmul", "matmul", "matmul", "transposed"]
        if ty.rank in (3, 4) and ty.numel:
            kinds += ["convolution", "pool", "convolution"]
        kind = choice(kinds)
        if kind == "reshape":
            shape = choice([(ty.numel,), (*ty.shape[::-1],), (1, ty.numel)])
            y = build("reshape", [x], {"shape": shape})
        elif kind in ("cumsum", "sort", "clone") and (ty.rank or kind == "clone"):
            y = self.call(kind, x)
        elif kind in ("take", "index_add"):
            dim = self.random.randrange(ty.rank)
            shape = choice([(3,), (2, 2), (2, 1, 2)])
            numbers = np.array([self.random.randrange(ty.shape[dim]) for _ in range(12)])
            numbers = np.resize(numbers, shape)
            index = builder.dense(numbers.astype(np.int64), TensorType(shape, "i64"))
            if kind == "take":
                y = build("take", [x, index], {"dim": dim})
            else:
                part = (*ty.shape[:dim], *shape, *ty.shape[dim + 1 :])
                source = builder.splat(0.5, TensorType(part, "f32"))
                y = build("index_add", [x, index, source], {"dim": dim})
        elif kind == "gather":
            dim = self.random.randrange(ty.rank)
            index = build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": "i64"})
            y = build("gather", [x, index], {"dim": dim})
        elif kind == "argmax":
            dim = self.random.randrange(ty.rank)
            y = build("reduce", [x], {"kind": "argmax", "dims": [dim]})
            y = builder.convert(y, "f32")
        elif kind == "reduce":
            dims = self.random.sample(range(ty.rank), self.random.randint(1, ty.rank))
            y = build("reduce", [x], {"kind": choice(("sum", "max")), "dims": sorted(dims)})
        elif kind == "matmul":
            other = self.like(ty)
            order = [*range(ty.rank - 2), ty.rank - 1, ty.rank - 2]
            pair = [x, build("transpose", [other], {"permutation": order})]
            if choice((True, False)):
                pair = [
                    build("transpose", [x], {"permutation": order}),
                    builder.build("mul", [x, builder.splat(0.5, ty)]),
                ]
            y = build("matmul", pair)
        elif kind == "convolution":
            channels, taps = ty.shape[1], (2,) * (ty.rank - 2)
            made = torch.randn(
                4,
                channels,
                *taps,
                generator=torch.Generator().manual_seed(self.random.randrange(99)),
            )
            weight = builder.dense(made.numpy(), TensorType(tuple(made.shape), "f32"))
            n = ty.rank - 2
            attrs = {
                "stride": [1] * n, "padding": [1] * n, "dilation": [1] * n, "groups": 1, "layout": "NC*",
            }  # fmt: skip
            y = build("convolution", [x, weight], attrs)
        elif kind == "pool":
            n = ty.rank - 2
            attrs = {"kernel": [2] * n, "stride": [1] * n, "padding": [1] * n, "layout": "NC*"}
            y = build("avg_pool", [x], attrs)
        else:
            y = build("transpose", [x], {"permutation": [*range(ty.rank)][::-1]})
        self.values.append(y)

    def call(self, kind: str, x: ir.Value) -> ir.Value:
        """A call of PyTorch."""
        ty = type_of(x)
        dim = self.random.randrange(ty.rank) if ty.rank else 0
        overload, args = {
            "cumsum": ("aten.cumsum.default", f'[[{{"t": 0}}, {dim}], {{}}]'),
            "sort": ("aten.sort.default", f'[[{{"t": 0}}, {dim}], {{}}]'),
            "clone": ("aten.clone.default", '[[{"t": 0}], {}]'),
        }[kind]
        types = [ty] if kind != "sort" else [ty, TensorType(ty.shape, "i64")]
        return builder.build_op("aten", [x], {"overload": overload, "args": args}, types).results[0]

    def update(self, argument: ir.Value) -> ir.Value:
        """A new value for an argument: of itself, of another one, by a view, a call or a product."""
        ty, build = type_of(argument), builder.build
        kind = self.random.choice(
            ("in place", "in place", "other", "view", "call", "product", "swap")
        )
        others = [v for v in self.values if type_of(v) == ty]
        other = self.random.choice(others)
        if kind == "other":
            return build("mul", [other, builder.splat(0.5, ty)])
        if kind == "view" and ty.rank >= 2:
            turned = build("reverse", [argument], {"dims": [ty.rank - 1]})
            return build("add", [turned, argument])
        if kind == "call":
            return self.call("clone", other)
        if kind == "product" and ty.rank == 2 and ty.numel:
            square = build("matmul", [other, build("transpose", [other], {"permutation": [1, 0]})])
            square = build("mul", [square, builder.splat(0.01, type_of(square))])
            return build("matmul", [square, argument])
        if kind == "swap":
            return other
        return build("add", [build("mul", [argument, builder.splat(0.5, ty)]), self.like(ty)])


@dataclass
class Layouts:
    """How the arguments of a function lie. update: result number → the argument that it updates."""

    shapes: list[tuple[int, ...]]
    strides: list[tuple[int, ...]]
    offsets: list[int]
    update: dict[int, int]


def strided_module(
    context: ir.Context, seed: int, ops: int = 12, large: bool = False
) -> tuple[ir.Module, Layouts]:
    """A module with one function `f` on strided f32 arguments, some of which it updates first and reads then."""
    choose = random.Random(seed)
    shapes = choose.sample(LARGE_SHAPES if large else SHAPES, 5)
    updated = [choose.random() < 0.7 for _ in shapes]
    strides = []
    for shape, own in zip(shapes, updated):
        found = random_strides(shape, choose, free=not own)
        strides.append(row_major_strides(shape) if own and share_memory(shape, found) else found)
    generator = _Generator(seed, shapes)
    types = [TensorType(s, "f32") for s in shapes]
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get([t.mlir() for t in types], []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            generator.values = list(block.arguments)
            new = {i: generator.update(a) for i, a in enumerate(block.arguments) if updated[i]}
            generator.values += new.values()
            begin = len(generator.values)
            while len(generator.values) < begin + ops:
                if choose.random() < 0.7:
                    pool = [*new.values(), *block.arguments, *generator.values[-2:]]
                    x = choose.choice(pool)
                    if type_of(x).numel <= 20000 and type_of(x).rank <= 4:
                        generator.consume(x)
                else:
                    generator.step(20000)
            results = [*new.values(), *generator.values[begin:]]
            order = list(range(len(results)))
            choose.shuffle(order)
            arguments = list(new)
            update = {n: arguments[i] for n, i in enumerate(order) if i < len(arguments)}
            func.ReturnOp([results[i] for i in order])
        kind = ir.FunctionType.get([t.mlir() for t in types], [results[i].type for i in order])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        function.arg_attrs = ir.ArrayAttr.get(
            [ir.DictAttr.get({"gflow.strides": ir.DenseI64ArrayAttr.get(list(s))}) for s in strides]
        )
        i64 = ir.IntegerType.get_signless(64)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {"gflow.alias": ir.IntegerAttr.get(i64, update[n])} if n in update else {}
                )
                for n in range(len(order))
            ]
        )
    offsets = [choose.choice((0, 0, 1, 5)) for _ in shapes]
    return module, Layouts(shapes, strides, offsets, update)


def memory_for(layouts: Layouts, seed: int) -> list[torch.Tensor]:
    """The memory around each argument: numbers everywhere, also where it has no element."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape, strides, offset in zip(layouts.shapes, layouts.strides, layouts.offsets):
        reach = sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
        found.append(torch.randn(offset + reach + 4, generator=generator, dtype=DTYPES["f32"]))
    return found


def arguments_in(layouts: Layouts, memory: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    placed = zip(memory, layouts.shapes, layouts.strides, layouts.offsets)
    return [m.as_strided(shape, strides, offset) for m, shape, strides, offset in placed]


def expected(
    module: ir.Module, layouts: Layouts, memory: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the results are, and what the memory around each argument holds afterwards."""
    after = [m.clone() for m in memory]
    args = arguments_in(layouts, after)
    results = [r.clone() for r in run_module(module, [a.clone() for a in args])]
    for n, i in layouts.update.items():
        args[i].copy_(results[n])
    return results, after


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether values agree, to rounding; NaN and infinities of sums that overflow count as one."""
    if found.shape != wanted.shape:
        return False
    wild = ~wanted.isfinite() | (wanted.abs() > 1e6)
    return torch.allclose(
        found.masked_fill(wild, 0), wanted.masked_fill(wild, 0), rtol=2e-3, atol=2e-3
    )
