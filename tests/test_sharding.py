"""Sharding rules, propagation and partitioning: what ranks compute together is what one computes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from function_trace import trace_graph
from ir_interpreter import DTYPES, random_numbers
from random_ir import random_args, random_module
from rank_interpreter import run_ranks
from sharded import PIPELINE, Tensor, both_ways, cut

from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.dialects import builder
from gflow.dialects.attributes import to_mlir
from gflow.dialects.dialect import make_context
from gflow.dialects.distribution.mesh import MESH, Mesh
from gflow.dialects.distribution.sharding import parse
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, tensor_type
from gflow.lowering import lower

MESHES = [(2,), (4,), (8,), (3,), (2, 2), (2, 4), (4, 2), (2, 3), (2, 2, 2)]
AXES = ("dp", "tp", "pp")

Case = tuple[list[TensorType], dict[str, Any]]


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "f32")


def size(choose: random.Random) -> int:
    return choose.choice((2, 4, 6, 8, 12, 5, 1))


def shape(choose: random.Random, rank: int) -> list[int]:
    return [size(choose) for _ in range(rank)]


def _reshape(r: random.Random) -> Case:
    dims = shape(r, 3)
    other = r.choice([
        (dims[0] * dims[1], dims[2]), (dims[0], dims[1] * dims[2]), (*dims, 1), (1, *dims),
        (dims[0] * dims[1] * dims[2],), (dims[2], dims[1], dims[0]),
        tuple(x for d in dims for x in ((2, d // 2) if d % 2 == 0 else (d,))),
    ])  # fmt: skip
    return [f32(*dims)], {"shape": other}


def _broadcast(r: random.Random) -> Case:
    dims = shape(r, 3)
    kept = sorted(r.sample(range(3), r.randint(0, 3)))
    return [f32(*(r.choice((1, dims[d])) for d in kept))], {"shape": dims, "dims": kept}


def _slice(r: random.Random) -> Case:
    dims = shape(r, 3)
    ends = [r.choice(((0, s, 1), (0, s, 1), (s // 3, s, 2))) for s in dims]
    starts, limits, strides = zip(*ends)
    return [f32(*dims)], {"starts": starts, "limits": limits, "strides": strides}


def _pad(r: random.Random) -> Case:
    low, high = ([r.choice((0, 0, 2)) for _ in range(2)] for _ in range(2))
    return [f32(*shape(r, 2)), f32()], {"low": low, "high": high}


def _matmul(r: random.Random) -> Case:
    *batch, m, k, n = shape(r, r.choice((3, 4, 5)))
    return [f32(*batch, m, k), f32(*batch, k, n)], {}


def _concatenate(r: random.Random) -> Case:
    dims, dim = shape(r, 2), r.randrange(2)
    parts = [f32(*(size(r) if d == dim else s for d, s in enumerate(dims))) for _ in range(3)]
    return parts, {"dim": dim}


def _take(r: random.Random) -> Case:
    dims, dim = shape(r, r.choice((1, 2, 3))), 0
    dim = r.randrange(len(dims))
    return [f32(*dims), TensorType(tuple(shape(r, r.choice((0, 1, 2)))), "i64")], {"dim": dim}


def _gather(r: random.Random) -> Case:
    dims, dim = shape(r, 2), r.randrange(2)
    index = [size(r) if d == dim else r.choice((s, max(1, s // 2))) for d, s in enumerate(dims)]
    return [f32(*dims), TensorType(tuple(index), r.choice(("i64", "i32")))], {"dim": dim}


def _index_add(r: random.Random) -> Case:
    dims = shape(r, 2)
    dim, index = r.randrange(2), shape(r, r.choice((1, 2)))
    source = (*dims[:dim], *index, *dims[dim + 1 :])
    return [f32(*dims), TensorType(tuple(index), "i64"), f32(*source)], {"dim": dim}


def _index_copy(r: random.Random) -> Case:
    dims, dim = shape(r, 3), r.randrange(3)
    index = size(r)
    source = (*dims[:dim], index, *dims[dim + 1 :])
    return [f32(*dims), TensorType((index,), "i64"), f32(*source)], {"dim": dim}


def _reduce(r: random.Random) -> Case:
    dims = sorted(r.sample(range(3), r.randint(1, 3)))
    kind = r.choice(("sum", "sum", "max", "min", "argmax", "prod"))
    return [f32(*shape(r, 3))], {"kind": kind, "dims": dims[:1] if kind == "argmax" else dims}


def _conv(which: str) -> Callable[[random.Random], Case]:
    def case(r: random.Random) -> Case:
        n, c, o, layout = (
            size(r),
            r.choice((2, 4, 6)),
            r.choice((2, 4, 8)),
            r.choice(("NC*", "N*C")),
        )
        groups = r.choice((1, 1, 2, c))
        o *= groups
        own = c // groups
        first = layout == "NC*"
        x = (n, c, 5, 6) if first else (n, 5, 6, c)
        w = (o, own, 3, 3) if first else (o, 3, 3, own)
        y = (n, o, 5, 6) if first else (n, 5, 6, o)
        attrs = {
            "stride": (1, 1),
            "padding": (1, 1),
            "dilation": (1, 1),
            "groups": groups,
            "layout": layout,
        }
        if which == "convolution":
            return [f32(*x), f32(*w)], attrs
        if which == "convolution_input_grad":
            return [f32(*y), f32(*w)], {**attrs, "shape": x}
        return [f32(*x), f32(*y)], {**attrs, "shape": w}

    return case


_POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "layout": "N*C"}


def _pool(name: str) -> Callable[[random.Random], Case]:
    def case(r: random.Random) -> Case:
        n, c = size(r), size(r)
        if name == "max_pool":
            return [f32(n, 4, 4, c)], {**_POOL, "positions": r.choice(("none", "plane"))}
        if name == "avg_pool":
            return [f32(n, 4, 4, c)], dict(_POOL)
        positions = [TensorType((n, 2, 2, c), "i64")] if name == "max_pool_grad" else []
        return [f32(n, 2, 2, c), *positions], {**_POOL, "shape": (n, 4, 4, c)}

    return case


def _attention(r: random.Random, grad: bool = False) -> Case:
    b, h, group, s, t = size(r), r.choice((2, 4)), r.choice((1, 2)), r.choice((4, 6)), 4
    q, k, sums = f32(b, s, h * group, 4), f32(b, t, h, 4), f32(b, h * group, s)
    types = [q, q, k, k, q, sums] if grad else [q, k, k]
    if r.random() < 0.5:
        whole = (b, h * group, s, t)
        types.append(f32(*(r.choice((1, d)) for d in whole)))
    return types, {"scale": 0.5, "causal": r.random() < 0.5}


def _elementwise(name: str) -> Callable[[random.Random], Case]:
    definition = OPS[name]

    def case(r: random.Random) -> Case:
        dims = tuple(shape(r, 2))
        if name == "select":
            return [TensorType(dims, "i1"), f32(*dims), f32(*dims)], {}
        dtype = {"integer": "i32", "bits": "i32"}.get(definition.dtypes, "f32")
        attrs = {"predicate": "lt"} if name == "compare" else {}
        if name == "convert":
            attrs = {"dtype": r.choice(("f64", "bf16"))}
        return [TensorType(dims, dtype)] * len(definition.operands), attrs

    return case


CASES: dict[str, Callable[[random.Random], Case]] = {
    "iota": lambda r: ([], {"shape": shape(r, 2), "dim": r.randrange(2), "dtype": r.choice(("i64", "f32"))}),
    "reshape": _reshape, "broadcast": _broadcast, "slice": _slice, "pad": _pad, "matmul": _matmul,
    "transpose": lambda r: ([f32(*shape(r, 3))], {"permutation": r.sample(range(3), 3)}),
    "reverse": lambda r: ([f32(*shape(r, 2))], {"dims": [r.randrange(2)]}),
    "concatenate": _concatenate, "take": _take, "gather": _gather, "index_add": _index_add,
    "index_copy": _index_copy,
    "reduce": _reduce, "attention": _attention, "attention_grad": lambda r: _attention(r, True),
    "max_pool_grad": _pool("max_pool_grad"),
    **{n: _conv(n) for n in ("convolution", "convolution_input_grad", "convolution_weight_grad")},
    **{n: _pool(n) for n in ("max_pool", "avg_pool", "avg_pool_grad")},
    **{n: _elementwise(n) for n, op in OPS.items() if op.category == "elementwise"},
    "optimization_barrier": lambda r: ([f32(*shape(r, 2)), f32(*shape(r, 1))], {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


def placement(ty: TensorType, ranks: int, choose: random.Random, partial: bool = True) -> str:
    """One that a value of this type can have."""
    options = ["B"] + [f"S({d})" for d, s in enumerate(ty.shape) if s % ranks == 0] * 2
    if ty.dtype == "f32" and partial:
        options += ["P(sum)", choose.choice(("P(max)", "P(min)", "P(avg)"))]
    return choose.choice(options)


def placements(
    ty: TensorType, mesh: Mesh, choose: random.Random, partial: bool = True
) -> list[str]:
    """One for each axis: parts of parts are even too."""
    found: list[str] = []
    rest = list(ty.shape)
    for ranks in mesh.sizes:
        one = placement(TensorType(tuple(rest), ty.dtype), ranks, choose, partial)
        if one.startswith("P") and any(p.startswith("P") and p != one for p in found):
            one = "B"
        if one.startswith("S"):
            rest[int(one[2:-1])] //= ranks
        found.append(one)
    return found


def program(
    context: ir.Context,
    mesh: Mesh,
    types: Sequence[TensorType],
    given: Sequence[Sequence[str] | None],
    body: Callable[[list[ir.Value]], Sequence[ir.Value]],
    wanted: Callable[[TensorType], Sequence[str] | None] = lambda ty: None,
) -> ir.Module:
    """A function of arguments with shardings. wanted: of results."""

    def attrs(sharding: Sequence[str] | None) -> ir.Attribute:
        if sharding is None:
            return ir.DictAttr.get({})
        return ir.DictAttr.get({"gflow.sharding": to_mlir(Attr("str[]"), sharding)})

    with context, ir.Location.file("model.py", 7, 0):
        module = ir.Module.create()
        module.operation.attributes[MESH] = mesh.mlir()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get([t.mlir() for t in types], []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            results = list(body(list(block.arguments)))
            func.ReturnOp(results)
        kind = ir.FunctionType.get([t.mlir() for t in types], [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([attrs(g) for g in given])
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [attrs(wanted(tensor_type(v.type))) for v in results]
        )
    return module


def numbers(ty: TensorType, choose: random.Random, most: int = 1 << 30) -> Tensor:
    generator = torch.Generator().manual_seed(choose.randrange(1 << 30))
    dtype = DTYPES[ty.dtype]
    if ty.dtype == "f32":
        return torch.randint(-8, 9, ty.shape, generator=generator).to(dtype) / 4
    return torch.randint(0, max(1, min(most, 5)), ty.shape, generator=generator).to(dtype)


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", sorted(CASES))
def test_rule(context: ir.Context, name: str) -> None:
    """One op under random shardings of its operands and result, on random meshes."""
    choose = random.Random(f"rule of {name}")
    rounds = 6 if OPS[name].category == "elementwise" else 30
    for n in range(rounds):
        sizes = choose.choice(MESHES)
        mesh = Mesh(AXES[: len(sizes)], sizes)
        types, attrs = CASES[name](choose)
        given = [placements(ty, mesh, choose) for ty in types]

        def wanted(ty: TensorType, mesh: Mesh = mesh) -> Sequence[str] | None:
            return placements(ty, mesh, choose, False) if choose.random() < 0.4 else None

        with context:
            module = program(
                context, mesh, types, given,
                lambda xs, attrs=attrs: list(builder.build_op(name, xs, attrs).results), wanted,
            )  # fmt: skip
            most = (
                types[0].shape[attrs["dim"]]
                if name in ("take", "gather", "index_add", "index_copy")
                else 99
            )
            args = [numbers(ty, choose, most) for ty in types]
            if name == "div":  # terms of x / 0 are infinities of either sign
                args[1] = args[1].abs() + 1
            told = f"{n}: {sizes} {types} {attrs} {given}"
            try:
                whole, parts, _ = both_ways(module, args, mesh, choose)
                for a, b in zip(parts, whole, strict=True):
                    close(a, b)
            except Exception as error:
                raise AssertionError(told) from error


def test_every_op_has_a_rule_or_a_reason() -> None:
    """Ops without a rule: calls of PyTorch's, checks, and what stands for many ranks or for kernels already."""
    without = {name for name, op in OPS.items() if op.sharding is None}
    assert without == {
        "aten", "check", "collective_start", "collective_wait", "engine", "engine_yield",
        "fused", "packed_product", "partial_sums", "put", "quantized_matmul", "scaled_matmul", "shard",
        "softmax_runs", "yield",
    }  # fmt: skip
    covered = set(CASES) | {"collective", "constant", "random", "reshard"} | without
    assert set(OPS) == covered


def test_text_of_rules() -> None:
    operands, results = parse("... m (k r), ... k n -> ... m n _")
    assert operands == ((("...",), ("m",), ("k", "r")), (("...",), ("k",), ("n",)))
    assert results == ((("...",), ("m",), ("n",), ()),)
    with pytest.raises(ValueError, match="'->'"):
        parse("m k, k n")


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(context: ir.Context, seed: int) -> None:
    """Programs of many ops under random shardings of their arguments."""
    choose = random.Random(seed)
    sizes = choose.choice(MESHES)
    mesh = Mesh(AXES[: len(sizes)], sizes)
    shapes = ((8, 6), (6,), (), (8, 1), (2, 8, 6), (24, 8))
    with context:
        module = random_module(context, seed, 30, shapes, contractions=seed % 2 == 0, halves=False)
        module.operation.attributes[MESH] = mesh.mlir()
        (function,) = module.body.operations
        types = [TensorType(s, "f32") for s in shapes]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {"gflow.sharding": to_mlir(Attr("str[]"), placements(ty, mesh, choose, False))}
                )
                for ty in types
            ]
        )
        args = random_args(module, seed)
        whole, parts, _ = both_ways(module, args, mesh, choose)
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4, equal_nan=True)


def sharded_step(
    model: torch.nn.Module,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    how: dict[str, list[str]],
) -> ir.Module:
    """A training step with SGD; parameters, by the ends of their names, lie as `how` says."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def build(x: Tensor) -> Tensor:
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss

    trace = trace_graph("step", build, [torch.randn(shape)], {}, {"model": model}, [optimizer])
    module = lower(trace)
    with module.context:
        module.operation.attributes[MESH] = Mesh(AXES[: len(sizes)], sizes).mlir()
        (function,) = module.body.operations
        attrs = []
        for given in ir.ArrayAttr(function.attributes["arg_attrs"]):
            own = {e.name: e.attr for e in ir.DictAttr(given)}
            name = ir.StringAttr(own["gflow.name"]).value
            found = next((p for end, p in how.items() if name.endswith(end)), None)
            if found is not None:
                own["gflow.sharding"] = to_mlir(Attr("str[]"), found)
            attrs.append(ir.DictAttr.get(own))
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(attrs)
    return module


def real_args(module: ir.Module, choose: random.Random) -> list[Tensor]:
    with module.context:
        types = [tensor_type(a.type) for a in module.body.operations[0].arguments]
    return [
        numbers(ty, choose) / 4 if ty.dtype == "f32" else numbers(ty, choose).clamp(0, 1)
        for ty in types
    ]


class _Layer(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.n1(x)
        parts = (
            f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.n2(x))))


_COLUMNS = {f".{n}.{p}": ["S(0)"] for n in ("q", "k", "v", "up") for p in ("weight", "bias")}
_MEGATRON = {**_COLUMNS, ".o.weight": ["S(1)"], ".down.weight": ["S(1)"]}


@pytest.mark.parametrize("ranks", [2, 8])
def test_decoder_layer_has_no_more_collectives_than_megatron(ranks: int) -> None:
    """Two all-reduces forward, two backward, of activations; nothing else is sent."""
    torch.manual_seed(0)
    model = _Layer(32, 8)
    module = sharded_step(model, (2, 8, 32), (ranks,), _MEGATRON)
    choose = random.Random(0)
    args = real_args(module, choose)
    whole, parts, traffic = both_ways(module, args, Mesh(("dp",), (ranks,)), choose)
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert traffic.made == ["all_reduce"] * 4
    assert traffic.sent == 4 * 2 * (ranks - 1) / ranks * (2 * 8 * 32 * 4)


def test_what_the_author_leaves_open_stays(context: ir.Context) -> None:
    """A reshard that names one of two axes lets the other be: rows that ranks along dp hold are not put together."""
    mesh = Mesh(("dp", "tp"), (2, 2))

    def body(xs: list[ir.Value]) -> list[ir.Value]:
        y = builder.build("matmul", xs)
        return [builder.build("reshard", [builder.build("exp", [y])], {"sharding": ["?", "S(1)"]})]

    given = [["S(0)", "B"], ["B", "S(1)"]]
    module = program(context, mesh, [f32(8, 4), f32(4, 6)], given, body)
    choose = random.Random(0)
    args = [numbers(f32(8, 4), choose), numbers(f32(4, 6), choose)]
    (whole,), (found,), traffic = both_ways(module, args, mesh, choose)
    close(found, whole)
    assert traffic.made == []


def test_data_parallel_step_sends_each_gradient_once() -> None:
    """A batch that is split, parameters that all ranks have: 2P (W - 1) / W bytes, and a loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
    module = sharded_step(model, (8, 16), (4,), {"x": ["S(0)"]})
    choose = random.Random(0)
    whole, parts, traffic = both_ways(
        module, real_args(module, choose), Mesh(("dp",), (4,)), choose
    )
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    count = sum(p.numel() for p in model.parameters())
    assert traffic.sent == 2 * 3 / 4 * 4 * (count + 1)


@pytest.mark.parametrize("how", ["S(0)", "B"])
def test_batch_norm_is_of_the_whole_batch(how: str) -> None:
    """In the global view statistics are those of the batch, however it is split; ranks' own are of the other view."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    module = sharded_step(model, (4, 3, 6, 6), (2,), {"x": [how]})
    choose = random.Random(0)
    args = [a + 1 for a in real_args(module, choose)]
    whole, parts, _ = both_ways(module, args, Mesh(("dp",), (2,)), choose)
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_random_numbers_differ_by_part_and_agree_between_copies(context: ir.Context) -> None:
    """Ranks that hold one part draw the same, parts of one value draw others."""
    mesh = Mesh(("dp", "tp"), (2, 2))
    attrs = {"kind": "uniform", "stream": 0, "shape": (64, 8), "dtype": "f32"}

    def body(xs: list[ir.Value]) -> list[ir.Value]:
        return [builder.build("mul", [xs[0], builder.build("random", [xs[1]], attrs)])]

    with context:
        types = [f32(64, 8), TensorType((2,), "i64")]
        module = program(context, mesh, types, [["S(0)", "B"], None], body)
        run_pipeline(module, PIPELINE)
    rng = torch.tensor([7, 3])
    parts = cut(torch.ones(64, 8), ["S(0)", "B"], mesh, random.Random(0))
    found = [r[0] for r in run_ranks(module, [[x, rng] for x in parts])]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert (found[0] != found[2]).float().mean() > 0.9
    assert torch.equal(found[0], random_numbers("uniform", 7, 3, 0, (32, 8), "f32"))
    assert abs(torch.cat(found).mean() - 0.5) < 0.05


def test_what_cannot_lie_so_is_refused(context: ir.Context) -> None:
    mesh = Mesh(("dp",), (4,))
    for given, told in ((["S(0)"], "evenly"), (["S(3)"], "rank 2"), (["P(sum)", "B"], "each of")):
        module = program(context, mesh, [f32(6, 8)], [given], lambda xs: xs)
        with context, pytest.raises(PipelineError, match=told):
            run_pipeline(module, PIPELINE)


def test_ops_without_a_rule_say_so(context: ir.Context) -> None:
    """A call of PyTorch's runs on whole values on every rank."""

    def body(xs: list[ir.Value]) -> list[ir.Value]:
        call = {"overload": "aten.topk.default", "args": '[[{"t": 0}, 2], {}]'}
        types = [f32(4, 2), TensorType((4, 2), "i64")]
        return [builder.build_op("aten", xs, call, types).results[0]]

    with context:
        module = program(context, Mesh(("dp",), (2,)), [f32(4, 8)], [["S(0)"]], body)
        run_pipeline(module, "builtin.module(func.func(gflow-propagate-shardings))")
        assert "since gflow.aten has no sharding rule" in str(module)
        assert "operand 0 comes as S(0)" in str(module)
