"""Our propagation of shardings beside Shardy's, which is in jaxlib: equal, or ours sends no more bytes.

A program goes to Shardy as StableHLO with the shardings of its arguments. Shardy propagates them, and makes the
collectives explicit; what these send is counted as ours is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod

import pytest
import torch
from sharded import PIPELINE, shardings
from test_sharding import _MEGATRON as MEGATRON
from test_sharding import AXES, sharded_step
from test_sharding import _Layer as Layer

from gflow.compiler.distribution.network import sent
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.engines.stablehlo.write import write_function
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.reports.timeline import step_on_ranks
from gflow.compiler.targets import DEVICES
from gflow.compiler.targets.links import NETWORKS
from gflow.dialects.attributes import from_mlir
from gflow.dialects.distribution.sharding import split_dim
from gflow.dialects.mlir import ir
from gflow.dialects.opdef import Attr

mlir = pytest.importorskip("jaxlib.mlir.ir", reason="jaxlib is not installed")

#: propagation, then the collectives that it asks for
PASSES = (
    "builtin.module(sdy-propagation-pipeline,func.func("
    "sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives))"
)
#: kinds of Shardy's collectives that send, which are called as ours; and where each says over which axes
KINDS = {
    "all_reduce": "reduction_axes",
    "all_gather": "gathering_axes",
    "reduce_scatter": "reduce_scatter_axes",
    "all_to_all": "params",
}


@dataclass(frozen=True)
class Found:
    """nbytes: that a rank sends in a ring. kinds: of the collectives. results: by result, dimensions by the axes that
    split them."""

    nbytes: int
    kinds: Counter[str]
    results: list[tuple[str, ...]]


def both(module: ir.Module, sizes: tuple[int, ...]) -> tuple[Found, Found]:
    """What we have found, and Shardy."""
    with module.context:
        text = str(write_function(entry_function(module)).module)
        given = _given(module)
    theirs = _by_shardy(text, given, sizes)
    with module.context:
        run_pipeline(module, PIPELINE)
    line = step_on_ranks(entry_function(module), DEVICES["cpu"], NETWORKS["gloo"])
    kinds = Counter(e.label.split()[0] for e in line.events if e.kind == "start")
    with module.context:
        results = list(module.body.operations[0].type.results)
        ranks = [len(ir.RankedTensorType(ty).shape) for ty in results]
    placed = [_dims(p, rank) for p, rank in zip(shardings(module, "res_attrs"), ranks)]
    return Found(line.sent, kinds, placed), theirs


def _given(module: ir.Module) -> list[tuple[str, ...]]:
    """The placements of the arguments; () where none is given."""
    (function,) = module.body.operations
    found = []
    for entry in ir.ArrayAttr(function.attributes["arg_attrs"]):
        attrs = ir.DictAttr(entry)
        has = "gflow.sharding" in attrs
        found.append(tuple(from_mlir(Attr("str[]"), attrs["gflow.sharding"])) if has else ())
    return found


def _dims(placed: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """By dimension the axes that split it."""
    split = [split_dim(p) for p in placed]
    return tuple(",".join(a for a, d in zip(AXES, split) if d == n) for n in range(rank))


def _by_shardy(text: str, given: list[tuple[str, ...]], sizes: tuple[int, ...]) -> Found:
    # only here: they are loaded once jaxlib is known to be there
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import passmanager

    axes = ", ".join(f'"{a}"={n}' for a, n in zip(AXES, sizes))
    text = text.replace("module {", f"module {{\n  sdy.mesh @mesh = <[{axes}]>", 1)
    with make_ir_context():
        module = mlir.Module.parse(text)
        function = module.body.operations[1]
        attrs = []
        for placed, ty in zip(given, function.type.inputs):
            dims = _dims(placed, mlir.RankedTensorType(ty).rank)
            listed = ", ".join("{" + (f'"{a}"' if a else "") + "}" for a in dims)
            sharding = mlir.Attribute.parse(f"#sdy.sharding<@mesh, [{listed}]>")
            attrs.append(mlir.DictAttr.get({"sdy.sharding": sharding}))
        function.attributes["arg_attrs"] = mlir.ArrayAttr.get(attrs)
        passmanager.PassManager.parse(PASSES).run(module.operation)
        kinds: Counter[str] = Counter()
        nbytes = 0
        for op in function.regions[0].blocks[0].operations:
            kind = op.operation.name.removeprefix("sdy.")
            # what else would send (a permutation, a reshard that is left) is in no case here
            known = (*KINDS, "all_slice", "constant")
            assert kind in known or kind == op.operation.name, kind
            if kind in KINDS:
                kinds[kind] += 1
                nbytes += _sent(kind, op.operation, dict(zip(AXES, sizes)))
        given_to = function.attributes
        ends = list(given_to["res_attrs"]) if "res_attrs" in given_to else []
        results = [("",) * mlir.RankedTensorType(ty).rank for ty in function.type.results]
        for n, entry in enumerate(map(mlir.DictAttr, ends)):
            if "sdy.sharding" in entry:
                results[n] = _listed(str(entry["sdy.sharding"]))
    return Found(nbytes, kinds, results)


def _listed(sharding: str) -> tuple[str, ...]:
    """The axes of each dimension of a sharding in Shardy's text."""
    dims = re.search(r"\[(.*)\]", sharding)
    assert dims is not None, sharding
    return tuple(
        ",".join(re.findall(r'"(\w+)"', dim)) for dim in re.findall(r"\{[^{}]*\}", dims[1])
    )


def _sent(kind: str, op: mlir.Operation, sizes: dict[str, int]) -> int:
    ty = mlir.RankedTensorType(op.results[0].type)
    after = _listed(str(op.attributes["out_sharding"]))
    listed = op.attributes[KINDS[kind]]
    ranks = prod(sizes[a] for a in re.findall(r'"(\w+)"', str(listed)))
    split = prod(sizes[a] for dim in after for a in dim.split(",") if a)
    part = prod(ty.shape) * int(re.findall(r"\d+", str(ty.element_type))[0]) // 8 // split
    return sent(kind, ranks, part * ranks if kind == "reduce_scatter" else part)


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))


BATCH = {"x": ["S(0)"]}
COLUMNS_ROWS = {"0.weight": ["S(0)"], "0.bias": ["S(0)"], "2.weight": ["S(1)"]}


def on_two_axes(how: dict[str, list[str]]) -> dict[str, list[str]]:
    """The second axis of a mesh as `how` says, the batch over the first."""
    return {"x": ["S(0)", "B"], **{end: ["B", *placed] for end, placed in how.items()}}


@pytest.mark.parametrize(("how", "sizes"), [(BATCH, (4,)), (COLUMNS_ROWS, (2,))])
def test_the_same_as_shardy(how: dict[str, list[str]], sizes: tuple[int, ...]) -> None:
    """Data parallelism, and columns and then rows: shardings of results, collectives and bytes are Shardy's."""
    torch.manual_seed(0)
    ours, theirs = both(sharded_step(mlp(), (8, 16), sizes, how), sizes)
    assert ours == theirs


@pytest.mark.parametrize("sizes", [(2,), (8,)])
def test_a_decoder_layer_sends_less_than_shardys(sizes: tuple[int, ...]) -> None:
    """The gradients of q, k and v by the layer's input are three partial sums. We add them up and then reduce once;
    Shardy reduces each, which is two collectives more."""
    torch.manual_seed(0)
    ours, theirs = both(sharded_step(Layer(32, 8), (2, 8, 32), sizes, MEGATRON), sizes)
    assert ours.kinds == {"all_reduce": 4}
    assert theirs.kinds == {"all_reduce": 6}
    assert ours.nbytes * 6 == theirs.nbytes * 4
    assert ours.results == theirs.results


def test_two_axes() -> None:
    """A split batch over one axis, columns and rows over the other."""
    torch.manual_seed(0)
    sizes = (2, 2)
    module = sharded_step(mlp(), (8, 16), sizes, on_two_axes(COLUMNS_ROWS))
    ours, theirs = both(module, sizes)
    assert ours.results == theirs.results
    assert ours.nbytes <= theirs.nbytes
