"""Programs of one launch that access what another one writes: found by the interpreter, in whatever order they run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gflow.dialects.program import (
    Argument,
    LaunchStep,
    Place,
    Program,
    Result,
    TritonConfig,
    TritonKernel,
)
from gflow.dialects.types import TensorType
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice, _shuffled
from gflow.runtime.cuda.ownership import Owners, Race
from gflow.runtime.device import DeviceError

pytest.importorskip("triton")

HEAD = """import triton
import triton.language as tl


@triton.jit
def kernel(x, y, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
"""
ROWS, BLOCK = 4, 16
TYPE = TensorType((ROWS * BLOCK,), "f32")


def run(body: list[str], grid: tuple[int, int, int] = (ROWS, 1, 1)) -> torch.Tensor:
    """y of a kernel with such lines, beside x = 0, 1, 2, …"""
    source = HEAD + "".join(f"    {line}\n" for line in body)
    kernel = TritonKernel(
        "kernel", source, {"x": "*fp32", "y": "*fp32"}, {}, (), (TritonConfig({"BLOCK": BLOCK}),), ("1",)
    )  # fmt: skip
    step = LaunchStep("kernel", (Place("arg", 0, 0), Place("result", 0, 0)), 0, grid, "kernel")
    program = Program(
        "p", "", [Argument("input", "x", TYPE, (1,))], [Result("y", TYPE, None)], [step], {}, {}, 64,
        target="cuda:90", triton={"kernel": kernel},
    )  # fmt: skip
    (y,) = Executable(program, InterpreterDevice())([torch.arange(float(ROWS * BLOCK))])
    return y


def test_programs_that_keep_to_themselves() -> None:
    y = run(["tl.store(y + i, tl.load(x + i) + tl.load(x))", "tl.store(y + i, tl.load(y + i) * 2)"])
    assert y.tolist() == [2.0 * n for n in range(ROWS * BLOCK)]


@pytest.mark.parametrize(
    "body",
    [
        ["tl.store(y + tl.arange(0, BLOCK), tl.load(x + i))"],
        ["tl.store(y + i, tl.load(x + i))", "tl.store(y + i, tl.load(y + (i + BLOCK) % 64))"],
        ["tl.store(y + i, 1.0)", "tl.store(y + (i + 1) % 64, 0.0, mask=i % BLOCK == BLOCK - 1)"],
        ["tl.store(x + i, tl.load(x + (i + 1) % 64))"],
    ],
)
def test_what_another_one_writes(body: list[str]) -> None:
    wanted = r"Race: program \d (reads|writes) what .*: programs of a launch have no order"
    with pytest.raises(DeviceError, match=wanted):
        run(body)


def test_masked_elements_are_not_accessed() -> None:
    y = run(
        [
            "tl.store(y + tl.arange(0, BLOCK) + 16 * p, 1.0)",
            "tl.store(y + i + 1, 2.0, mask=i % BLOCK < BLOCK - 1)",
        ]
    )
    assert y.reshape(ROWS, BLOCK)[:, 1:].eq(2).all()


def test_atomic_updates_may_meet() -> None:
    y = run(["tl.store(y + i, 0.0)", "tl.atomic_add(x, 1.0)"])
    assert not y.any()


def test_programs_of_all_axes_count() -> None:
    with pytest.raises(DeviceError, match="Race"):
        run(["tl.store(y + i, tl.load(x + i))"], (ROWS, 2, 1))


def test_the_order_is_none_and_comes_again() -> None:
    order = _shuffled(50, "kernel")
    assert order != [*range(50)]
    assert sorted(order) == [*range(50)]
    assert order == _shuffled(50, "kernel") != _shuffled(50, "another")


def test_of_two_that_meet_the_later_one_is_told_of() -> None:
    one, far = np.array([4096], np.uint64), np.array([1 << 40, 4096], np.uint64)
    for first, second, what in (
        (Owners.load, Owners.store, "program 2 writes what program 1 reads"),
        (Owners.store, Owners.load, "program 2 reads what program 1 writes"),
        (Owners.store, Owners.store, "program 2 writes what program 1 writes"),
    ):
        owners = Owners()
        owners.program = 1
        first(owners, one)
        owners.program = 2
        with pytest.raises(Race, match=what):
            second(owners, far)


def test_readers_may_be_several() -> None:
    owners, at = Owners(), np.array([8], np.uint64)
    for owners.program in (0, 1, 0):
        owners.load(at)
    with pytest.raises(Race, match="program 0 writes what another one reads"):
        owners.store(at)
