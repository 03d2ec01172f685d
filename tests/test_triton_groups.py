"""Products that nothing waits for share launches: updates by gradients of weights under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.emit.triton.build import built_again
from gflow.compiler.emit.triton.language.grid import grid_of
from gflow.compiler.emit.triton.winners import with_winners
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import LaunchStep, Program

Sizes = Sequence[tuple[int, int, int]]

#: m, n, k of products of one kernel: none fills its last tile, and their K differ
ODD: Sizes = ((144, 80, 128), (48, 208, 256), (80, 112, 128))


def updates(sizes: Sizes, target: str) -> Program:
    """w0 −= x0ᵀ y0, w1 −= x1ᵀ y1, …, with the arguments x0, y0, w0, x1, …"""
    types = [
        t
        for m, n, k in sizes
        for t in (f"tensor<{k}x{m}xbf16>", f"tensor<{k}x{n}xbf16>", f"tensor<{m}x{n}xbf16>")
    ]
    lines, given = [], ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    for i, (m, _, k) in enumerate(sizes):
        x, y, w = types[3 * i : 3 * i + 3]
        t = f"tensor<{m}x{k}xbf16>"
        lines += [
            f'%t{i} = "gflow.transpose"(%a{3 * i}) {{permutation = array<i64: 1, 0>}} : ({x}) -> {t}',
            f'%p{i} = "gflow.matmul"(%t{i}, %a{3 * i + 1}) : ({t}, {y}) -> {w}',
            f'%r{i} = "gflow.sub"(%a{3 * i + 2}, %p{i}) : ({w}, {w}) -> {w}',
        ]
    return _compiled(types, given, lines, target)


def _compiled(types: Sequence[str], given: str, lines: Sequence[str], target: str) -> Program:
    """The program of the lines, whose values r0, r1, … update every third argument."""
    updated = range(2, len(types), 3)
    out = ", ".join(f"{types[i]} {{gflow.alias = {i} : i64}}" for i in updated)
    back = ", ".join(f"%r{i // 3}" for i in updated)
    text = f"func.func @f({given}) -> ({out}) {{ {chr(10).join(lines)}\n return {back} : {', '.join(types[2::3])} }}"
    with make_context():
        return compile_module(ir.Module.parse(text), CompileOptions(target=target))


def weight_gradients(sizes: Sizes, target: str) -> Program:
    """The same updates where the gradients are those of pointwise convolutions over 4×4 positions."""
    types = [
        t
        for m, n, k in sizes
        for t in (
            f"tensor<{k // 16}x4x4x{m}xbf16>", f"tensor<{k // 16}x4x4x{n}xbf16>", f"tensor<{m}x1x1x{n}xbf16>"
        )
    ]  # fmt: skip
    lines, given = [], ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    for i, (m, n, _) in enumerate(sizes):
        dy, x, w = types[3 * i : 3 * i + 3]
        attributes = (
            'stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, '
            f'layout = "N*C", shape = array<i64: {m}, 1, 1, {n}>'
        )  # fmt: skip
        lines += [
            f'%p{i} = "gflow.convolution_weight_grad"(%a{3 * i + 1}, %a{3 * i}) {{{attributes}}} : ({x}, {dy}) -> {w}',
            f'%r{i} = "gflow.sub"(%a{3 * i + 2}, %p{i}) : ({w}, {w}) -> {w}',
        ]
    return _compiled(types, given, lines, target)


def launches(program: Program) -> list[str]:
    return [s.kernel for s in program.steps if isinstance(s, LaunchStep)]


def given(sizes: Sizes) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(shape).to(torch.bfloat16)
        for m, n, k in sizes
        for shape in ((k, m), (k, n), (m, n))
    ]


def _images(args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments of `weight_gradients`, as views."""
    return [
        a[:, None, None, :] if n % 3 == 2 else a.view(-1, 4, 4, a.shape[1])
        for n, a in enumerate(args)
    ]


def expected(args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [
        w.float() - x.float().T @ y.float() for x, y, w in zip(args[::3], args[1::3], args[2::3])
    ]


def close(args: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    for w, value in zip(args[2::3], want):
        torch.testing.assert_close(w.float(), value, rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("made", [updates, weight_gradients])
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_products_of_other_sizes(target: str, made: Callable[[Sizes, str], Program]) -> None:
    """By pointers and by descriptors, in one launch."""
    program = made(ODD, target)
    (name,) = launches(program)
    assert name.startswith("grouped_matmul")
    args = given(ODD)
    want = expected(args)
    run_program(program, args if made is updates else _images(args))
    close(args, want)


def test_another_tile() -> None:
    """Measuring may choose another tile, with other numbers of programs, for all products of a launch."""
    sizes = ODD[:2]
    program = updates(sizes, "cuda:90")
    (step,) = program.steps
    assert isinstance(step, LaunchStep)
    kernel = program.triton[step.kernel]
    config = next(n for n, c in enumerate(kernel.configs) if c.constants["BLOCK_M"] == 64)
    found = replace(step, config=config, grid=grid_of(kernel, kernel.configs[config], step.args))
    assert found.grid != step.grid
    tuned = with_winners(program, replace(program, steps=[found]), {}, "a device")
    assert tuned.ir.count('tuned = "a device"') == 2
    with built_again(tuned) as (_, _, again):
        (step,) = again.steps
        assert isinstance(step, LaunchStep)
        assert step.grid == found.grid
    args = given(sizes)
    want = expected(args)
    run_program(tuned, args)
    close(args, want)


def test_depthwise_weight_gradients() -> None:
    """Gradients over 64, 48 and 64 positions, of channels that fill no block, in one launch."""
    layers = ((4, 4, 4, 23), (3, 4, 4, 41), (2, 8, 4, 9))  # images, height, width, channels
    types, lines = [], []
    for i, (n, h, w, c) in enumerate(layers):
        image, weight = f"tensor<{n}x{h}x{w}x{c}xf32>", f"tensor<{c}x3x3x1xf32>"
        types += [image, image, weight]
        lines += [
            f'%p{i} = "gflow.convolution_weight_grad"(%a{3 * i}, %a{3 * i + 1}) {{stride = array<i64: 1, 1>, '
            f"padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = {c} : i64, layout = "
            f'"N*C", shape = array<i64: {c}, 3, 3, 1>}} : ({image}, {image}) -> {weight}',
            f'%r{i} = "gflow.sub"(%a{3 * i + 2}, %p{i}) : ({weight}, {weight}) -> {weight}',
        ]
    program = _compiled(
        types, ", ".join(f"%a{i}: {t}" for i, t in enumerate(types)), lines, "cuda:90"
    )
    (name,) = launches(program)
    assert name.startswith("grouped_depthwise_weight_grad")
    torch.manual_seed(0)
    args, want = [], []
    for n, h, w, c in layers:
        x, dy, weight = torch.randn(n, h, w, c), torch.randn(n, h, w, c), torch.randn(c, 3, 3, 1)
        args += [x, dy, weight]
        images = (t.double().permute(0, 3, 1, 2) for t in (x, dy))
        x, dy = images
        shape = (c, 1, 3, 3)
        gradient = torch.nn.grad.conv2d_weight(x, shape, dy, padding=1, groups=c)
        want.append(weight.double() - gradient.permute(0, 2, 3, 1))
    run_program(program, args)
    for found, exact in zip(args[2::3], want):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
