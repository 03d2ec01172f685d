"""Whole values and what ranks hold of them, and programs run both ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import torch
from ir_interpreter import run_module
from rank_interpreter import Traffic, run_ranks

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.dialects.attributes import from_mlir
from gflow.dialects.distribution.mesh import Mesh
from gflow.dialects.distribution.sharding import reduction, split_dim
from gflow.dialects.mlir import ir
from gflow.dialects.opdef import Attr

Tensor = torch.Tensor
Placed = Sequence[str]

PIPELINE = "builtin.module(func.func(gflow-propagate-shardings,gflow-partition))"


def places(mesh: Mesh) -> list[tuple[int, ...]]:
    """The coordinates of the ranks in order."""
    return list(product(*map(range, mesh.sizes)))


def cut(x: Tensor, placed: Placed, mesh: Mesh, choose: random.Random) -> list[Tensor]:
    """What each rank holds of `x`; terms of sums are random ones."""
    parts: dict[tuple[int, ...], Tensor] = {(): x}
    for placement, size in zip(placed, mesh.sizes):
        found = {}
        for at, part in parts.items():
            d, combined = split_dim(placement), reduction(placement)
            if d is not None:
                pieces = list(part.chunk(size, d))
            elif combined is None:
                pieces = [part] * size
            else:
                pieces = _terms(part, size, combined, choose)
            assert len(pieces) == size
            found.update({(*at, n): piece for n, piece in enumerate(pieces)})
        parts = found
    return [parts[at].contiguous() for at in places(mesh)]


def _terms(x: Tensor, size: int, combined: str, choose: random.Random) -> list[Tensor]:
    generator = torch.Generator().manual_seed(choose.randrange(1 << 30))
    noise = [torch.randint(0, 3, x.shape, generator=generator).to(x.dtype) for _ in range(size)]
    if combined == "sum":
        return [*noise[1:], x - sum(noise[1:], torch.zeros_like(x))]
    if combined == "avg":
        return [*noise[1:], x * size - sum(noise[1:], torch.zeros_like(x))]
    sign = -1 if combined == "max" else 1
    noise[choose.randrange(size)] = torch.zeros_like(x)
    return [x + sign * n for n in noise]


def joined(parts: Sequence[Tensor], placed: Placed, mesh: Mesh) -> Tensor:
    """The whole that ranks hold parts of; those that hold the same part must agree bit by bit."""
    found = dict(zip(places(mesh), parts))
    for axis in reversed(range(len(mesh.sizes))):
        d, combined = split_dim(placed[axis]), reduction(placed[axis])
        lines: dict[tuple[int, ...], list[Tensor]] = {}
        for at, part in sorted(found.items()):
            lines.setdefault(at[:axis], []).append(part)
        for at, line in lines.items():
            if d is not None:
                lines[at] = [torch.cat(line, d)]
            elif combined == "sum":
                lines[at] = [torch.stack(line).sum(0)]
            elif combined is None:
                assert all(torch.equal(p, line[0]) or p.isnan().any() for p in line[1:])
            else:
                raise AssertionError(f"a result is never {placed[axis]} unless it is asked for")
        found = {at: line[0] for at, line in lines.items()}
    return found[()]


def shardings(module: ir.Module, listed: str) -> list[tuple[str, ...]]:
    """Those of the function's arguments or results; the token's is none."""
    with module.context:
        (function,) = module.body.operations
        found = []
        for given in ir.ArrayAttr(function.attributes[listed]):
            attrs = ir.DictAttr(given)
            if "gflow.sharding" in attrs:
                found.append(tuple(from_mlir(Attr("str[]"), attrs["gflow.sharding"])))
        return found


def both_ways(
    module: ir.Module, args: Sequence[Tensor], mesh: Mesh, choose: random.Random
) -> tuple[list[Tensor], list[Tensor], Traffic]:
    """The results of the whole program, those of its ranks put together, and what rank 0 sent; `module` is
    cut into ranks."""
    wanted = run_module(module, args)
    with module.context:
        run_pipeline(module, PIPELINE)
    given = [cut(x, p, mesh, choose) for x, p in zip(args, shardings(module, "arg_attrs"))]
    traffic: list[Traffic] = []
    ranks = run_ranks(module, [[g[n] for g in given] for n in range(len(places(mesh)))], traffic)
    ends = shardings(module, "res_attrs")
    found = [joined([rank[n] for rank in ranks], placed, mesh) for n, placed in enumerate(ends)]
    return wanted, found, traffic[0]
