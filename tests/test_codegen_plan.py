"""What the CPU generator decides about a kernel: loop structure, tiles, what a row keeps, which layers share code."""

from __future__ import annotations

import pytest
from codegen_harness import Arg, b, compile_case, make, reduce, spread

from gflow.compiler.emit.cpu.language.parameters import Plan, plan_of, structure
from gflow.compiler.emit.cpu.region.render import render
from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.compiler.kernel.selection.cpu.loops import loops_of
from gflow.dialects.mlir import ir
from gflow.dialects.program import KernelStep
from gflow.dialects.types import row_major_strides


def _sum(shape: tuple[int, ...], *dims: int) -> Kernel:
    """The kernel of a sum over `dims`."""
    nodes = [Node("load", "f32", slot=0), Node("reduce", "f32", (0,), {"kind": "sum"})]
    kept = tuple(s for d, s in enumerate(shape) if d not in dims)
    own = iter(row_major_strides(kept))
    out = tuple(0 if d in dims else next(own) for d in range(len(shape)))
    load, store = Access(0, "f32", row_major_strides(shape)), Access(0, "f32", out, 1)
    return simplify(Kernel(shape, frozenset(dims), nodes, [load], [], [store]))


def _copy(shape: tuple[int, ...], strides: tuple[int, ...]) -> Kernel:
    load, store = Access(0, "f32", strides), Access(0, "f32", row_major_strides(shape), 0)
    return simplify(Kernel(shape, frozenset(), [Node("load", "f32", slot=0)], [load], [], [store]))


@pytest.mark.parametrize(
    ("kernel", "mode", "sizes"),
    [
        (_copy((1, 1), (1, 1)), "scalar", ()),
        (_copy((3, 1, 50), (50, 50, 1)), "pointwise", (150,)),
        (_copy((30, 50), (1, 30)), "pointwise", (30, 50)),
        (_sum((8, 4, 100), 1, 2), "row", (8, 400)),
        (_sum((8, 4, 100), 0, 1), "column", (32, 100)),
        (_sum((8, 4, 100), 1), "column", (8, 4, 100)),
    ],
)
def test_modes(kernel: Kernel, mode: str, sizes: tuple[int, ...]) -> None:
    assert kernel.sizes == sizes
    assert loops_of(kernel).mode == mode


@pytest.mark.parametrize(
    ("columns", "unroll", "tiled"),
    [(8, 1, "none"), (24, 1, "none"), (32, 2, "all"), (96, 3, "all"), (128, 4, "all"), (100, 4, "some"),
     (112, 4, "some")],
)  # fmt: skip
def test_tiles(columns: int, unroll: int, tiled: str) -> None:
    p = loops_of(_sum((500, columns), 0))
    assert (p.unroll, p.tiled) == (unroll, tiled)


def test_threads_share_what_there_is() -> None:
    splits = [loops_of(_sum(s, *d)).split for s, d in
              [((1 << 20,), (0,)), ((4096, 64), (1,)), ((4096, 64), (0,)), ((4096, 4096), (0,))]]  # fmt: skip
    assert splits == [True, False, True, False]


def test_layers_of_any_size_share_code() -> None:
    def key(k: Kernel) -> tuple[object, ...]:
        return structure(k, plan_of(k, loops_of(k)))

    assert key(_sum((500, 128), 0)) == key(_sum((77, 256), 0))
    assert key(_sum((64, 320), 1)) == key(_sum((9, 48), 1))
    assert key(_sum((64, 320), 1)) != key(_sum((64, 321), 1))


def _softmax(x: ir.Value) -> list[ir.Value]:
    e = b("exp", b("sub", x, spread(reduce("max", x, 1), (64, 200), 0)))
    return [b("div", e, spread(reduce("sum", e, 1), (64, 200), 0))]


def test_softmax_is_one_kernel_with_one_exponential() -> None:
    program = compile_case(make("softmax", [Arg((64, 200))], _softmax))
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    text = program.kernels[step.kernel]
    alone = compile_case(make("exp", [Arg((64, 200), strides=(300, 1))], lambda x: [b("exp", x)]))
    (exp,) = alone.kernels.values()
    # three passes over the row, each with a masked tail; the exponential in the second only
    assert text.count("scf.if") == 3
    assert text.count("math.fma") == exp.count("math.fma") > 0


def test_text_of_a_row_sum() -> None:
    """The smallest kernel with a loop, to the letter where it matters."""
    k = _sum((64, 320), 1)
    p: Plan = plan_of(k, loops_of(k))
    text, externals = render(k, p, "sum")
    assert text.startswith("  llvm.func @sum(%w: !llvm.ptr) {")
    assert text.count("scf.for") == 3  # rows, runs, vectors
    assert "masked" not in text
    assert "vector.reduction <add>" in text
    assert externals == {"omp_get_thread_num", "omp_get_num_threads"}
