"""gflow.index_copy: slices written at indices, into a copy or over the argument that a graph updates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ir_interpreter import run_module
from test_triton_indexing import check, op
from triton_interpreter import run_program

import gflow as flow
from gflow.compiler import compile_module
from gflow.compiler.driver.compile import CompileOptions
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import pipeline_for
from gflow.compiler.emit.triton.accesses import accesses
from gflow.compiler.memory.plan_check import problems
from gflow.dialects import builder
from gflow.dialects.dialect import make_context
from gflow.dialects.docs import _function
from gflow.dialects.mlir import ir
from gflow.runtime import Executable
from gflow.runtime.cuda.fake import dry_run

Tensor = torch.Tensor

CASES = [
    ((2, 12, 9, 20), (3,), 2, "f32", "i64"), ((5, 37), (8,), 0, "f32", "i32"), ((40,), (90,), 0, "bf16", "i64"),
    ((3, 6), (5,), 1, "i1", "i64"), ((3, 4, 5), (2,), 1, "i64", "i32"), ((6, 4), (0,), 0, "f32", "i64"),
    ((7, 50, 40), (30,), 0, "ui8", "i64"), ((4, 3, 0), (2,), 1, "f32", "i64"),
]  # fmt: skip


def _given(
    shape: tuple[int, ...], index: tuple[int, ...], dim: int, dtype: str, wide: str
) -> tuple[list[str], list[Tensor]]:
    source = (*shape[:dim], *index, *shape[dim + 1 :])
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "i1": torch.bool, "i64": torch.int64,
             "ui8": torch.uint8, "i32": torch.int32}  # fmt: skip
    x, y = (torch.randint(0, 100, s).to(kinds[dtype]) for s in (shape, source))
    at = torch.randint(shape[dim], index).to(kinds[wide])
    types = ["x".join([*map(str, t.shape), d]) for t, d in ((x, dtype), (at, wide), (y, dtype))]
    return types, [x, at, y]


@pytest.mark.parametrize(("shape", "index", "dim", "dtype", "wide"), CASES)
def test_op(
    shape: tuple[int, ...], index: tuple[int, ...], dim: int, dtype: str, wide: str
) -> None:
    """Repeated indices, on the CPU and by Triton: the last one counts."""
    types, args = _given(shape, index, dim, dtype, wide)
    with make_context():
        module = ir.Module.parse(_function(types, op("index_copy", dim=dim)))
        (wanted,) = run_module(module, args)
        program = compile_module(module, CompileOptions())
    (found,) = Executable(program)(args)
    assert torch.equal(found, wanted)
    check(types, op("index_copy", dim=dim), args)


def test_views() -> None:
    """Operands are read where they lie."""

    def body(args: list[ir.Value]) -> list[ir.Value]:
        x = builder.transpose(args[0], (1, 2, 0))
        attrs = {"starts": [1], "limits": [8], "strides": [2]}
        index = builder.build("slice", [args[1]], attrs)
        source = builder.transpose(args[2], (2, 1, 0))
        return [builder.build("index_copy", [x, index, source], {"dim": 1})]

    args = [torch.randn(3, 4, 5), torch.randint(5, (9,), dtype=torch.int32), torch.randn(3, 4, 4)]
    types = ["3x4x5xf32", "9xi32", "3x4x4xf32"]
    check(types, body, args)
    with make_context():
        module = ir.Module.parse(_function(types, body))
        (wanted,) = run_module(module, args)
        program = compile_module(module, CompileOptions())
    (found,) = Executable(program)(args)
    assert torch.equal(found, wanted)


# -- graphs that update arguments

POSITIONS = 9
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def _copied(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
    cache.index_copy_(2, at, k)
    return cache.sum(2)


def _put(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
    cache[:, :, at] = k
    return cache.sum(2)


def _put_from_the_end(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
    cache[:, :, at - POSITIONS] = k
    return cache.sum(2)


def _scattered(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
    cache.scatter_(2, at.view(1, 1, -1, 1).expand(*k.shape), k)
    return cache.sum(2)


def _filled(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
    cache.scatter_(2, at.view(1, 1, -1, 1).expand(*k.shape), 3)
    return cache.sum(2) + k.sum()


class Caching(flow.nn.Graph):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def build(self, cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
        return self.step(cache, at, k)


def _call(count: int) -> tuple[Tensor, Tensor, Tensor]:
    at = torch.randperm(POSITIONS)[:count]
    return torch.randn(2, 3, POSITIONS, 16), at, torch.randn(2, 3, count, 16)


@pytest.mark.parametrize(
    ("step", "target"),
    [
        (_copied, "cpu"), (_put, "cpu"), (_put_from_the_end, "cpu"), (_scattered, "cpu"), (_filled, "cpu"),
        (_copied, "cuda:90"),
    ],
)  # fmt: skip
def test_in_place(step: Step, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the cache is copied."""
    monkeypatch.setenv("GFLOW_CUDA_DEVICE", "interpreter")
    graph = Caching(step)
    graph.config.compile_options = CompileOptions(target=target)
    for _ in range(2):
        cache, at, k = _call(2)
        wanted = cache.clone()
        expected = step(wanted, at, k)
        torch.testing.assert_close(graph(cache, at, k), expected)
        assert torch.equal(cache, wanted)
    text = graph.ir(generic=True)
    (line,) = [line for line in text.splitlines() if '"gflow.index_copy"(' in line]
    assert '"arg:0"' in line
    assert text.count('"arg:0"') == 1


def test_a_view_of_a_cache() -> None:
    """The argument's strides; what lies between is not touched."""
    whole = torch.randn(2, 3, 2 * POSITIONS, 16)
    cache, at, k = whole[:, :, ::2], torch.tensor([4, 1]), torch.randn(2, 3, 2, 16)
    wanted = whole.clone()
    expected = _copied(wanted[:, :, ::2], at, k)
    torch.testing.assert_close(Caching(_copied)(cache, at, k), expected)
    assert torch.equal(whole, wanted)


def test_the_old_value_is_read_later() -> None:
    """It is copied then, not lost; read earlier it is not."""

    def late(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
        old = cache.clone()
        cache.index_copy_(2, at, k)
        return (cache * 2).sum() + (old * cache).sum(2)

    def early(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
        total = cache.sum()
        cache.index_copy_(2, at, k * total)
        return cache.sum(2)

    for step, in_place in ((late, False), (early, True)):
        graph, (cache, at, k) = Caching(step), _call(2)
        wanted = cache.clone()
        expected = step(wanted, at, k)
        torch.testing.assert_close(graph(cache, at, k), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cache, wanted)
        (line,) = [x for x in graph.ir(generic=True).splitlines() if '"gflow.index_copy"(' in x]
        assert ('"arg:0"' in line) == in_place


def test_source_of_the_cache_itself() -> None:
    """Slices that move within a cache are read before they are written."""

    def step(cache: Tensor, at: Tensor, k: Tensor) -> Tensor:
        cache.index_copy_(2, at, cache[:, :, :2] + k)
        return cache.sum(2)

    graph, (cache, _, k) = Caching(step), _call(2)
    at = torch.tensor([1, 0])
    wanted = cache.clone()
    expected = step(wanted, at, k)
    torch.testing.assert_close(graph(cache, at, k), expected)
    torch.testing.assert_close(cache, wanted)


@pytest.mark.parametrize("step", [_copied, _put, _scattered])
def test_out_of_range(step: Step) -> None:
    """As eager raises, and the cache keeps its values."""
    graph, (cache, at, k) = Caching(step), _call(2)
    graph(cache.clone(), at, k)
    for bad in (POSITIONS, -POSITIONS - 1):
        at = torch.tensor([0, bad])
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            step(cache.clone(), at, k)
        before = cache.clone()
        with pytest.raises(wanted.type, match="out of bounds"):
            graph(cache, at, k)
        assert torch.equal(cache, before)


TWO_READERS = """
func.func @f(%cache: tensor<4x8xf32>, %at: tensor<1xi64>, %k: tensor<1x8xf32>)
    -> (tensor<4x8xf32> {gflow.alias = 0 : i64}, tensor<4x8xf32>) {
  %0 = "gflow.index_copy"(%cache, %at, %k) {dim = 0 : i64}
     : (tensor<4x8xf32>, tensor<1xi64>, tensor<1x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.exp"(%cache) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1 : tensor<4x8xf32>, tensor<4x8xf32>
}
"""


def test_a_plan_that_reads_the_old_value_later_is_refused() -> None:
    with make_context():
        module = ir.Module.parse(TWO_READERS)
        run_pipeline(module, pipeline_for("cpu"))
        (function,) = module.body.operations
        assert not list(problems(function))
        block = function.operation.regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        copy, exp = ops if "index_copy" in ops[0].name else (ops[1], ops[0])
        assert "arg:0" in str(copy.attributes["gflow.buffers"])
        exp.move_after(copy)
        found = [text for text, _ in problems(function)]
        assert any("reads argument 0 after gflow.index_copy updated it" in text for text in found)


def test_steps_on_a_gpu() -> None:
    """One launch in place, and it writes nothing else."""
    with make_context():
        module = ir.Module.parse(TWO_READERS)
        args = [torch.randn(4, 8), torch.tensor([2]), torch.randn(1, 8)]
        wanted = run_module(module, args)
        program = compile_module(module, CompileOptions(target="cuda:90"))
    assert len(program.steps) == 2
    assert dry_run(program, accesses(program), calls=2).runs == 2
    found = run_program(program, [a.clone() for a in args])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
