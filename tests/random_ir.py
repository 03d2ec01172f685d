"""Random functions of the dialect, for tests that compare IR before and after a pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from ir_interpreter import DTYPES

from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, type_of

UNARY = ("neg", "abs", "exp", "sqrt", "sigmoid", "floor", "sign", "tanh", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
KINDS = ("unary", "binary", "binary", "pow", "reshape", "transpose", "broadcast", "slice",
         "pad", "concatenate", "reduce", "select", "convert", "reverse")  # fmt: skip
CONTRACTIONS = ("matmul", "matmul", "convolution")
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, 3.0, float("inf"))


class Generator:
    """Grows a function op by op; `values` are the tensors made so far."""

    def __init__(
        self,
        seed: int,
        shapes: Sequence[tuple[int, ...]],
        contractions: bool = False,
        halves: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.kinds = KINDS + CONTRACTIONS * contractions
        self.shapes, self.halves = shapes, halves
        self.values: list[ir.Value] = []

    def pick(self, condition: Callable[[TensorType], bool] = lambda ty: True) -> ir.Value:
        found = [v for v in self.values if condition(type_of(v))]
        return self.random.choice(found[-12:])

    def like(self, ty: TensorType) -> ir.Value:
        """A value of type `ty`: an earlier one, a constant, or a broadcast scalar."""
        found = [v for v in self.values if type_of(v) == ty]
        kind = self.random.random()
        if found and kind < 0.6:
            return self.random.choice(found[-6:])
        if kind < 0.85 or ty.dtype != "f32":
            value = self.random.choice(CONSTANTS if ty.dtype == "f32" else (0, 1, -1, 2))
            return builder.splat(value, ty)
        scalars = [v for v in self.values if type_of(v) == TensorType((), ty.dtype)]
        scalar = scalars[-1] if scalars else builder.splat(2.0, TensorType((), ty.dtype))
        return builder.broadcast(scalar, ty.shape, ())

    def step(self, most: int) -> None:
        """Add an op; its result is dropped if it has more than `most` elements."""
        x = self.pick(lambda ty: ty.dtype == "f32")
        ty = type_of(x)
        choice = self.random.choice
        kind = choice(self.kinds)
        build = builder.build
        if kind == "unary":
            x = build(choice(UNARY), [x])
        elif kind == "binary":
            pair = [x, self.like(ty)]
            self.random.shuffle(pair)
            x = build(choice(BINARY), pair)
        elif kind == "pow":
            exponent = builder.splat(choice((0.0, 1.0, 2.0, 3.0, -1.0, -2.0)), ty)
            x = build("pow", [x, exponent])
        elif kind == "reshape":
            shape = choice([(ty.numel,), (*ty.shape, 1), (1, *ty.shape), ty.shape[::-1]])
            x = build("reshape", [x], {"shape": shape})
        elif kind == "transpose":
            x = build(
                "transpose", [x], {"permutation": self.random.sample(range(ty.rank), ty.rank)}
            )
        elif kind == "broadcast" and ty.rank <= 3:
            at = self.random.randint(0, ty.rank)
            shape = (*ty.shape[:at], choice((1, 3)), *ty.shape[at:])
            dims = [d for d in range(ty.rank + 1) if d != at]
            shape = tuple(choice((s, 2)) if s == 1 else s for s in shape)
            x = build("broadcast", [x], {"shape": shape, "dims": dims})
        elif kind == "slice":
            starts = [self.random.randint(0, s // 2) for s in ty.shape]
            limits = [self.random.randint(a, s) if s else 0 for a, s in zip(starts, ty.shape)]
            limits = [max(a + 1, b) if s else 0 for a, b, s in zip(starts, limits, ty.shape)]
            steps = [choice((1, 1, 2)) for _ in ty.shape]
            attrs = {"starts": starts, "limits": limits, "strides": steps}
            x = build("slice", [x], attrs)
        elif kind == "pad":
            value = builder.splat(choice((0.0, 1.0)), TensorType((), "f32"))
            low, high = ([choice((0, 0, 1)) for _ in ty.shape] for _ in range(2))
            x = build("pad", [x, value], {"low": low, "high": high})
        elif kind == "concatenate" and ty.rank:
            xs = [x, *(self.like(ty) for _ in range(self.random.randint(0, 2)))]
            x = build("concatenate", xs, {"dim": self.random.randrange(ty.rank)})
        elif kind == "reduce":
            dims = [d for d in range(ty.rank) if self.random.random() < 0.4]
            empty = any(ty.shape[d] == 0 for d in dims)
            x = build(
                "reduce",
                [x],
                {"kind": choice(("sum", "max", "min")) if not empty else "sum", "dims": dims},
            )
        elif kind == "select":
            other = self.like(ty)
            predicate = build(
                "compare", [x, self.like(ty)], {"predicate": choice(("lt", "eq", "ge"))}
            )
            if self.random.random() < 0.4:
                predicate = build("not", [predicate])
            x = build("select", [predicate, x, other])
        elif kind == "convert":
            x = builder.convert(builder.convert(x, choice(("f64", "bf16", "f16"))), "f32")
        elif kind == "reverse" and ty.rank:
            x = build("reverse", [x], {"dims": [self.random.randrange(ty.rank)]})
        elif kind == "matmul" and ty.rank >= 2:
            x = self.matmul(x, ty)
        elif kind == "convolution" and 2 <= ty.rank <= 4:
            x = self.convolution(x, ty)
        if type_of(x).numel <= most and type_of(x).rank <= 5:
            self.values.append(x)

    def half(self, *values: ir.Value) -> list[ir.Value]:
        """Values in a type that is narrower, at times: contractions of it add up in float32."""
        dtype = self.random.choice(("f32", "f32", "f32", "bf16" if self.halves else "f32", "f64"))
        return [v if dtype == "f32" else builder.convert(v, dtype) for v in values]

    def tame(self, x: ir.Value) -> ir.Value:
        """Values of which sums of products stay finite."""
        return builder.build("tanh", [x])

    def matmul(self, x: ir.Value, ty: TensorType) -> ir.Value:
        """A product with another value, itself transposed, a constant, or a slice of what fits."""
        turned = {"permutation": (*range(ty.rank - 2), ty.rank - 1, ty.rank - 2)}
        fitting = [
            v
            for v in self.values
            if type_of(v).rank == ty.rank
            and type_of(v).dtype == ty.dtype
            and type_of(v).shape[:-2] == ty.shape[:-2]
            and type_of(v).shape[-2] == ty.shape[-1]
        ]
        if fitting and self.random.random() < 0.6:
            other = self.random.choice(fitting[-6:])
        elif self.random.random() < 0.6:
            other = builder.build("transpose", [self.like(ty)], turned)
        else:
            columns = self.random.choice((1, 2, 17))
            other = self.like(TensorType((*ty.shape[:-2], ty.shape[-1], columns), ty.dtype))
        pair = self.half(self.tame(x), self.tame(other))
        return builder.convert(builder.build("matmul", pair), "f32")

    def convolution(self, x: ir.Value, ty: TensorType) -> ir.Value:
        """A convolution over one or two dimensions, its operands in one of the two layouts."""
        choice = self.random.choice
        shape = (1,) * (3 - ty.rank) + ty.shape if ty.rank < 3 else ty.shape
        x = builder.build("reshape", [x], {"shape": shape})
        layout, spatial = choice(("NC*", "N*C")), len(shape) - 2
        channels = shape[1] if layout == "NC*" else shape[-1]
        groups = channels if channels and self.random.random() < 0.2 else 1
        sizes = [choice((1, 2, 3)) for _ in range(spatial)]
        own, out = channels // groups, groups * choice((1, 2, 5))
        kernel = (out, own, *sizes) if layout == "NC*" else (out, *sizes, own)
        attrs = {
            "stride": [choice((1, 1, 2)) for _ in sizes],
            "padding": [choice((0, 1)) + s // 2 for s in sizes],
            "dilation": [1 for _ in sizes],
            "groups": groups,
            "layout": layout,
        }
        weight = self.weight(TensorType(kernel, "f32"))
        pair = self.half(self.tame(x), weight)
        return builder.convert(builder.build("convolution", pair, attrs), "f32")

    def weight(self, ty: TensorType) -> ir.Value:
        """A tensor whose elements differ: of positions."""
        build = builder.build
        line = build("iota", [], {"shape": (max(ty.numel, 1),), "dim": 0, "dtype": "f32"})
        if not ty.numel:
            return builder.splat(1.0, ty)
        return build("reshape", [build("sin", [line])], {"shape": ty.shape})


SMALL: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (), (1, 3), (2, 1, 3))
#: large enough for threads, for more than one vector, and for kernels to share a load
LARGE: tuple[tuple[int, ...], ...] = ((40, 50), (50,), (), (40, 1), (2, 20, 50))


def random_module(
    context: ir.Context,
    seed: int,
    ops: int = 40,
    shapes: Sequence[tuple[int, ...]] = SMALL,
    updates: bool = False,
    contractions: bool = False,
    halves: bool = True,
) -> ir.Module:
    """A module with one function `f`, its last few values as results.

    shapes: of the arguments, which are f32.
    contractions: also products of matrices and convolutions. halves: some of them in bf16.
    updates: let results update arguments of their type, some even with another argument.
    """
    generator = Generator(seed, shapes, contractions, halves)
    types = [TensorType(s, "f32") for s in shapes]
    most = max(4000, 4 * max(t.numel for t in types))
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get([t.mlir() for t in types], []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            generator.values = list(block.arguments)
            while len(generator.values) < len(shapes) + ops:
                with ir.Location.name(f"step{len(generator.values)}"):
                    generator.step(most)
            results = generator.values[-6:] + generator.values[len(shapes) :: 7]
            func.ReturnOp(results)
        inputs = [t.mlir() for t in types]
        kind = ir.FunctionType.get(inputs, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        if updates:
            _add_updates(function, results, generator.random)
    return module


def _add_updates(function: func.FuncOp, results: Sequence[ir.Value], choose: random.Random) -> None:
    """Give results the argument of their type that they update (`gflow.alias`)."""
    free = list(enumerate(function.arguments))
    attrs = []
    for v in results:
        fitting = [i for i, argument in free if argument.type == v.type]
        if fitting and choose.random() < 0.7:
            i = choose.choice(fitting)
            free = [pair for pair in free if pair[0] != i]
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), i)
            attrs.append(ir.DictAttr.get({"gflow.alias": number}))
        else:
            attrs.append(ir.DictAttr.get({}))
    function.attributes["res_attrs"] = ir.ArrayAttr.get(attrs)


def random_args(module: ir.Module, seed: int = 0) -> list[torch.Tensor]:
    """Arguments for the one function of `module`."""
    generator = torch.Generator().manual_seed(seed)
    args = []
    with module.context:
        for argument in module.body.operations[0].regions[0].blocks[0].arguments:
            ty = type_of(argument)
            dtype = DTYPES[ty.dtype]
            if dtype.is_floating_point:
                args.append(
                    torch.randn(ty.shape, generator=generator, dtype=torch.float64).to(dtype)
                )
            else:
                args.append(torch.randint(0, 3, ty.shape, generator=generator).to(dtype))
    return args
