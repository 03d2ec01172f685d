"""Training graphs of any number of ops, to measure how the compiler's time grows.

decoder   deep and narrow: one chain of layers, AdamW
towers    shallow and wide: N towers of convolution, batch norm and ReLU between one stem and
          one classifier, so that one value has N readers and one op N operands; SGD, momentum
mixture   random ops of all kinds on random earlier values, some far back; the result updates
          arguments
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.items import Work, decoder, sgd

#: tensors of the mixture
_SHAPES = ((64, 32), (64, 32), (64,), (32,), (32, 32), ())
_UNARY = ("neg", "exp", "sqrt", "tanh", "sigmoid", "abs", "rsqrt")
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")


class Towers(nn.Module):
    """N towers beside each other; their features are concatenated."""

    def __init__(self, towers: int, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.towers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU6(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(channels, channels),
                nn.GELU(),
            )
            for _ in range(towers)
        )
        self.classifier = nn.Linear(towers * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.classifier(torch.cat([tower(x) for tower in self.towers], 1))


def make_decoder(depth: int) -> Work:
    return decoder(depth, width=64, heads=2, batch=2, tokens=32, vocabulary=512)


def make_towers(towers: int) -> Work:
    model = Towers(towers)
    return Work(model, (torch.randn(4, 3, 8, 8), torch.randint(10, (4,))), sgd(model))


#: how a graph of so many layers or towers is made
MODELS: dict[str, Callable[[int], Work]] = {"decoder": make_decoder, "towers": make_towers}
GRAPHS = (*MODELS, "mixture")


class _Mixture:
    """Grows a function; `recent` holds a few late values of each type, `all` every one."""

    def __init__(self, arguments: Sequence[Any], seed: int) -> None:
        from gflow.dialects import builder

        self.builder = builder
        self.choose = random.Random(seed)
        self.all: dict[Any, list[Any]] = {}
        for value in arguments:
            self.add(value)

    def add(self, value: Any) -> None:
        self.all.setdefault(self.builder.type_of(value), []).append(value)

    def pick(self, ty: Any) -> Any:
        """Mostly a late value, sometimes any."""
        values = self.all[ty]
        return self.choose.choice(values[-8:] if self.choose.random() < 0.9 else values)

    def step(self) -> None:
        """Add one to three ops."""
        builder, build, choose = self.builder, self.builder.build, self.choose
        ty = choose.choice(list(self.all))
        x, kind = self.pick(ty), choose.random()
        if kind < 0.25 or not ty.shape:
            x = build(choose.choice(_UNARY), [x])
        elif kind < 0.6:
            x = build(choose.choice(_BINARY), [x, self.pick(ty)])
        elif kind < 0.7:
            x = build("mul", [x, builder.splat(choose.choice((0.5, 3.0, 0.1)), ty)])
        elif kind < 0.8:
            dim = choose.randrange(ty.rank)
            sums = build("reduce", [x], {"kind": "sum", "dims": (dim,)})
            kept = tuple(d for d in range(ty.rank) if d != dim)
            x = build("sub", [x, builder.broadcast(sums, ty.shape, kept)])
            self.add(sums)
        elif kind < 0.88 and ty.rank == 2:
            square = type(ty)((ty.shape[1], ty.shape[1]), ty.dtype)
            x = build("matmul", [x, self.pick(square)])
        elif kind < 0.94:
            positive = build("compare", [x, self.pick(ty)], {"predicate": "gt"})
            x = build("select", [positive, x, self.pick(ty)])
        elif ty.rank == 2:
            x = builder.transpose(builder.transpose(x, (1, 0)), (1, 0))
        self.add(x)


def make_mixture(ops: int, seed: int = 0) -> str:
    """The text of a module of about `ops` ops whose results update its arguments."""
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import func, ir
    from gflow.dialects.types import TensorType

    count = max(1, ops // 40)
    types = [TensorType(shape, "f32") for shape in _SHAPES] * count
    with make_context(), ir.Location.unknown():
        inputs = [ty.mlir() for ty in types]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("mixture", ir.FunctionType.get(inputs, inputs))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            mixture = _Mixture(list(block.arguments), seed)
            operations = block.operations
            for n in range(ops):
                if n % 64 == 0 and len(operations) >= ops:
                    break
                with ir.Location.name(f"forward:step{n}"):
                    mixture.step()
            func.ReturnOp([mixture.all[ty].pop() for ty in types])
        i64 = ir.IntegerType.get_signless(64)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({"gflow.alias": ir.IntegerAttr.get(i64, i)})
                for i in range(len(types))
            ]
        )
        return module.operation.get_asm(enable_debug_info=True)
