"""Collectives as StableHLO: XLA with as many replicas as a mesh has ranks, beside the dialect's definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from codegen_harness import CONTEXT
from torch import Tensor

from gflow.compiler.engines.form import EngineError
from gflow.compiler.engines.forms import form_of
from gflow.compiler.engines.stablehlo.collectives import groups
from gflow.compiler.engines.stablehlo.write import portable, write_function
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.distribution.mesh import Mesh
from gflow.dialects.mlir import ir
from gflow.runtime.engines.packages import available

needs_xla = pytest.mark.skipif(not available("xla"), reason="jaxlib is not installed")

MESH = Mesh(("dp", "tp"), (2, 2))
RANKS = 4
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.float64: "f64"}


def segments(*counts: int) -> str:
    return f"array<i32: {', '.join(str(c) for c in counts)}>"


def parsed(body: str, given: str, results: str) -> ir.Module:
    text = (
        'module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 2>}} {\n'
        f"func.func @f(%x: {given}) -> ({results}) {{\n{body}\n}}\n}}"
    )
    with CONTEXT:
        return ir.Module.parse(text)


def one(attrs: str, given: str, result: str) -> ir.Module:
    """A program of one collective, or of a start and its wait."""
    pads = ", 0" * 6
    sizes = (
        f"operandSegmentSizes = array<i32: 1, 0{pads}>, resultSegmentSizes = array<i32: 1, 1{pads}>"
    )
    call = f'%y, %t = "gflow.collective"(%x) {{{attrs}, sequence = 0 : i64, {sizes}}}'
    call += f" : ({given}) -> ({result}, tensor<i8>)"
    return parsed(f"{call}\nreturn %y : {result}", given, result)


@cache
def _client() -> tuple[Any, Any, Any]:
    from jaxlib import _jax, xla_client

    client = xla_client.make_cpu_client(asynchronous=True, num_devices=RANKS)
    return client, xla_client.DeviceList(tuple(client.local_devices())), _jax


def run(module: ir.Module, values: list[Tensor]) -> list[Tensor]:
    """What each rank's first result is."""
    import jax
    import numpy as np

    code = portable(write_function(entry_function(module)).module)
    client, devices, jaxlib = _client()
    options = jaxlib.CompileOptions()
    options.num_replicas = RANKS
    assignment = np.arange(RANKS)[:, None]
    options.device_assignment = jaxlib.DeviceAssignment.create(assignment)
    executable = client.compile_and_load(code, devices, options)
    parts = [
        jaxlib.dlpack_managed_tensor_to_buffer(torch.utils.dlpack.to_dlpack(x), d, None)
        for x, d in zip(values, client.local_devices(), strict=True)
    ]
    mesh = jax.sharding.Mesh(np.array(client.local_devices()), ("ranks",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))
    shape = (RANKS * values[0].shape[0], *values[0].shape[1:])
    whole = jax.make_array_from_single_device_arrays(shape, sharding, parts)
    (found,) = executable.execute_sharded([whole]).disassemble_into_single_device_arrays()
    return [torch.from_dlpack(y).clone() for y in found]


# -- what each kind gives, by its definition: the values of a group's ranks, and a place in it

Means = Callable[[list[Tensor], int], Tensor]
COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "avg": lambda x: x.mean(0),
    "product": lambda x: x.prod(0),
    "min": lambda x: x.amin(0),
    "max": lambda x: x.amax(0),
    "band": lambda x: x[0] & x[1],
    "bxor": lambda x: x[0] ^ x[1],
}


def _reduced(kind: str) -> Means:
    return lambda xs, at: COMBINED[kind](torch.stack(xs)).to(xs[0].dtype)


def _scattered(kind: str, dim: int) -> Means:
    return lambda xs, at: (
        COMBINED[kind](torch.stack(xs)).to(xs[0].dtype).chunk(len(xs), dim)[at].contiguous()
    )


def _exchanged(dim: int, to: int) -> Means:
    return lambda xs, at: torch.cat([x.chunk(len(xs), dim)[at] for x in xs], to)


#: attributes, by how many ranks the first and last dimension change, and what it means
KINDS: dict[str, tuple[str, tuple[float, float], Means]] = {
    **{
        f"all_reduce-{kind}": (f'kind = "all_reduce", reduction = "{kind}"', (1, 1), _reduced(kind))
        for kind in ("sum", "avg", "product", "min", "max")
    },
    "all_gather-0": ('kind = "all_gather"', (2, 1), lambda xs, at: torch.cat(xs)),
    "all_gather-1": ('kind = "all_gather", dim = 1 : i64', (1, 2), lambda xs, at: torch.cat(xs, 1)),
    "reduce_scatter-0": ('kind = "reduce_scatter", reduction = "avg"', (0.5, 1), _scattered("avg", 0)),
    "reduce_scatter-1": ('kind = "reduce_scatter", reduction = "sum", dim = 1 : i64', (1, 0.5), _scattered("sum", 1)),
    "all_to_all": ('kind = "all_to_all"', (1, 1), _exchanged(0, 0)),
    "all_to_all-0-1": ('kind = "all_to_all", dim = 0 : i64, concat_dim = 1 : i64', (0.5, 2), _exchanged(0, 1)),
    "broadcast": ('kind = "broadcast", root = 1 : i64', (1, 1), lambda xs, at: xs[1]),
}  # fmt: skip


def values(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return [torch.randn(8, 12, generator=generator).to(dtype) for _ in range(RANKS)]
    return [torch.randint(-9, 9, (8, 12), generator=generator) for _ in range(RANKS)]


def expected(axes: tuple[str, ...], means: Means, xs: list[Tensor]) -> list[Tensor]:
    found = dict[int, Tensor]()
    for group in groups(MESH, axes):
        for at, rank in enumerate(group):
            found[rank] = means([xs[r] for r in group], at)
    return [found[r] for r in range(RANKS)]


def check(attrs: str, grows: tuple[float, float], axes: tuple[str, ...], means: Means,
          dtype: torch.dtype = torch.float32) -> None:  # fmt: skip
    by = MESH.size(axes)
    rows, columns = (
        int(n * (g if g == 1 else by if g > 1 else 1 / by)) for n, g in zip((8, 12), grows)
    )
    listed = ", ".join(f'"{a}"' for a in axes)
    name = NAMES[dtype]
    module = one(f"{attrs}, axes = [{listed}], ranks = {by} : i64",
                 f"tensor<8x12x{name}>", f"tensor<{rows}x{columns}x{name}>")  # fmt: skip
    xs = values(dtype)
    with CONTEXT:
        got = run(module, xs)
    for a, w in zip(got, expected(axes, means, xs), strict=True):
        torch.testing.assert_close(a, w)


def test_groups() -> None:
    assert groups(MESH, ("dp",)) == [[0, 2], [1, 3]]
    assert groups(MESH, ("tp",)) == [[0, 1], [2, 3]]
    assert groups(MESH, ("dp", "tp")) == [[0, 1, 2, 3]]
    assert groups(MESH, ("tp", "dp")) == [[0, 2, 1, 3]]


@needs_xla
@pytest.mark.parametrize("axes", [("dp",), ("tp", "dp")])
def test_kinds(axes: tuple[str, ...]) -> None:
    for attrs, grows, means in KINDS.values():
        check(attrs, grows, axes, means)


@needs_xla
def test_dtypes() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        for kind in ("all_reduce-sum", "all_reduce-max", "all_gather-1", "all_to_all", "broadcast"):
            attrs, grows, means = KINDS[kind]
            check(attrs, grows, ("tp",), means, dtype)
    for kind in ("band", "bxor"):
        attrs = f'kind = "all_reduce", reduction = "{kind}"'
        check(attrs, (1, 1), ("tp",), _reduced(kind), torch.int64)


@needs_xla
def test_a_start_and_its_wait() -> None:
    pads = ", 0" * 6
    body = f"""
      %s, %t = "gflow.collective_start"(%x) {{kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64,
        sequence = 0 : i64, operandSegmentSizes = array<i32: 1, 0{pads}>, resultSegmentSizes = array<i32: 1, 1{pads}>}}
        : (tensor<8x12xf32>) -> (tensor<8x12xf32>, tensor<i8>)
      %y = "gflow.collective_wait"(%s, %x) {{operandSegmentSizes = array<i32: 1, 1{pads}>}}
        : (tensor<8x12xf32>, tensor<8x12xf32>) -> tensor<8x12xf32>
      return %y : tensor<8x12xf32>"""
    xs = values(torch.float32)
    with CONTEXT:
        got = run(parsed(body, "tensor<8x12xf32>", "tensor<8x12xf32>"), xs)
    for a, w in zip(got, expected(("dp",), _reduced("sum"), xs), strict=True):
        torch.testing.assert_close(a, w)


@needs_xla
@pytest.mark.parametrize("axes", [("dp",), ("tp", "dp")])
def test_shards(axes: tuple[str, ...]) -> None:
    """7 × 11 elements leave a rest, which is filled up with zeros."""
    by = MESH.size(axes)
    size = -(-77 // by)
    listed = ", ".join(f'"{a}"' for a in axes)
    result = f"tensor<{size}xf32>"
    body = f'%y = "gflow.shard"(%x) {{axes = [{listed}], ranks = {by} : i64}} : (tensor<7x11xf32>) -> {result}'
    body += f"\nreturn %y : {result}"
    x = torch.randn(7, 11)
    with CONTEXT:
        got = run(parsed(body, "tensor<7x11xf32>", result), [x.clone() for _ in range(RANKS)])
    pieces = torch.nn.functional.pad(x.flatten(), (0, size * by - 77)).chunk(by)
    for a, w in zip(got, expected(axes, lambda _, at: pieces[at], [x] * RANKS), strict=True):
        assert torch.equal(a, w)


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ('kind = "all_reduce", reduction = "sum", group = "0", ranks = 4 : i64', "only gflow knows"),
        ('kind = "send", peer = 1 : i64, axes = ["dp"], ranks = 2 : i64', "one program for all"),
        ('kind = "reduce_scatter", reduction = "sum", group = "dp", ranks = 1 : i64', "only gflow knows"),
        ('kind = "all_to_all", sends = array<i64: 3, 5>, takes = array<i64: 4, 4>, '
         'axes = ["dp"], ranks = 2 : i64', "equal parts"),
    ],
)  # fmt: skip
def test_what_files_cannot_have(attrs: str, why: str) -> None:
    given = "tensor<8x12xf32>"
    result = "tensor<i8>" if "peer" in attrs else given
    module = one(attrs, given, result)
    with CONTEXT, pytest.raises(EngineError, match=why):
        write_function(entry_function(module))


def test_engines_within_ranks_leave_them_to_gflow() -> None:
    for engine in ("xla", "onnxruntime", "openvino"):
        assert "gflow" in form_of(engine).without["collective"]
