"""Whole training steps, planned for CUDA, on a device that runs nothing and checks everything; faults are put
in, and each is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gflow
from gflow.compiler.emit.triton.accesses import accesses
from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, TensorRef
from gflow.dialects.program.accesses import Access, Accesses, Unit
from gflow.dialects.types import TensorType
from gflow.execution.executor import programs_for
from gflow.runtime import Executable
from gflow.runtime.cuda.fake import FakeDevice, dry_run
from gflow.runtime.device import DeviceError
from gflow.runtime.tensors import DTYPES


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Train(gflow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.add_optimizer(torch.optim.Adam(self.net.parameters()))

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


@pytest.fixture(scope="module")
def step() -> tuple[Program, Accesses]:
    """A training step, and what its steps read and write."""
    graph = Train()
    graph(torch.randn(4, 3, 8, 8), torch.randint(10, (4,)))
    plan: Any = graph._state.latest
    (program,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    return program, accesses(program)


def test_a_training_step_keeps_all_rules(step):
    program, found = step
    launches = [s for s in program.steps if isinstance(s, LaunchStep)]
    assert len(launches) > 10
    assert found.units[0].begin == 0
    assert found.units[-1].end == len(program.steps)
    assert dry_run(program, found, calls=4).runs == 4  # by itself, and as a graph


def refused(program: Program, found: Accesses) -> str:
    with pytest.raises(DeviceError) as caught:
        dry_run(program, found, calls=1)
    return str(caught.value)


def changed(program: Program, at: int, **fields: Any) -> Program:
    """A program with another step."""
    other = copy.copy(program)
    other.steps = list(program.steps)
    other.steps[at] = replace(program.steps[at], **fields)  # type: ignore[type-var]
    return other


def pointing(program: Program, wanted: Callable[[Place], bool]) -> tuple[int, int]:
    """A launch, and which of its arguments is such a place."""
    for n, s in enumerate(program.steps):
        for i, arg in enumerate(s.args if isinstance(s, LaunchStep) else ()):
            if isinstance(arg, Place) and wanted(arg):
                return n, i
    raise AssertionError("none")


def with_argument(program: Program, at: int, i: int, value: Any) -> Program:
    step = program.steps[at]
    assert isinstance(step, LaunchStep)
    return changed(program, at, args=(*step.args[:i], value, *step.args[i + 1 :]))


def test_an_address_in_memory_that_its_ops_do_not_name(step):
    program, found = step
    n, i = pointing(program, lambda p: p.space == "arena")
    label = program.steps[n].label
    message = refused(with_argument(program, n, i, Place("arg", 3, 0)), found)
    assert "of arg 3, of which its ops know nothing" in message
    assert label in message
    beyond = Place("arena", 0, program.arena_bytes + 4096)
    message = refused(with_argument(program, n, i, beyond), found)
    assert f"of the arena, of {program.arena_bytes}" in message
    nowhere = Place("arg", 999, 0)
    assert "arg 999, which there is none of" in refused(
        with_argument(program, n, i, nowhere), found
    )


def test_an_address_or_number_that_is_no_multiple(step):
    program, found = step
    n, i = pointing(program, lambda p: p.space == "arena")
    step_ = program.steps[n]
    kernel = program.triton[step_.kernel]
    assert list(kernel.parameters)[i] in kernel.multiples
    place = step_.args[i]
    odd = Place("arena", 0, place.offset + 4)
    assert "promised to be a multiple of 16" in refused(with_argument(program, n, i, odd), found)


def test_launches_that_no_device_takes(step):
    program, found = step
    assert "(1, 70000, 1) programs" in refused(changed(program, 0, grid=(1, 70_000, 1)), found)
    assert "(0, 1, 1) programs" in refused(changed(program, 0, grid=(0, 1, 1)), found)
    assert "has no config 99" in refused(changed(program, 0, config=99), found)


def test_steps_in_another_order(step):
    program, found = step
    n = len(program.steps) // 2
    other = copy.copy(program)
    other.steps = [
        *program.steps[:n],
        program.steps[n + 1],
        program.steps[n],
        *program.steps[n + 2 :],
    ]
    run = Executable(other, device := FakeDevice(found))
    device.check(program)  # what is due
    args = [
        torch.empty_strided(a.type.shape, a.strides, dtype=DTYPES[a.type.dtype])
        for a in program.arguments
    ]
    with pytest.raises(DeviceError, match=f"step {n} is due"):
        run(args)


def units(found: Accesses, at: int, **fields: Any) -> Accesses:
    every = list(found.units)
    every[at] = replace(every[at], **fields)
    return replace(found, units=tuple(every))


def reading(found: Accesses) -> int:
    """A unit that reads what another one wrote to the arena."""
    written: set[int] = set()
    for n, unit in enumerate(found.units):
        if any(a.value in written for a in unit.reads):
            return n
        written |= {a.value for a in unit.writes if a.ref.place.space == "arena"}
    raise AssertionError("none")


def test_values_that_are_not_there(step):
    program, found = step
    first = found.units[0]
    early = Access(10_000, TensorRef(Place("arena", 0, 0), TensorType((4,), "f32"), (1,)))
    message = refused(program, units(found, 0, reads=(*first.reads, early)))
    assert "what is read was never written: bytes 0 to 16 of the arena" in message
    assert program.steps[0].label in message
    # another value is written where one is expected
    n = reading(found)
    value = next(a.value for a in found.units[n].reads if a.value not in found.arguments)
    maker = next(i for i, u in enumerate(found.units) if value in [a.value for a in u.writes])
    message = refused(program, units(found, maker, writes=exchanged(found.units[maker], value)))
    assert "what is read was overwritten" in message
    assert program.steps[found.units[n].begin].label in message


def exchanged(unit: Unit, value: int) -> tuple[Access, ...]:
    """What a unit writes, with another value in a value's place."""
    return tuple(Access(10_000, a.ref) if a.value == value else a for a in unit.writes)


def test_results_over_what_is_read(step):
    program, found = step
    n = reading(found)
    unit = found.units[n]
    read = next(a for a in unit.reads if a.ref.place.space == "arena")
    over = units(found, n, writes=(Access(9_999, read.ref), *unit.writes), in_place=frozenset())
    assert "is written over operand" in refused(program, over)
    twice = units(found, n, writes=(*unit.writes, unit.writes[0]))
    assert "are written to the same memory" in refused(program, twice)
    place = unit.writes[0].ref.place
    if place.space == "arena":
        scratch = ((place.offset, place.offset + 64),)
        assert "scratch overlaps" in refused(program, units(found, n, scratch=scratch))


def test_tensors_larger_than_their_memory(step):
    program, found = step
    unit = found.units[0]
    large = TensorType((1 << 40,), "f32")
    read = Access(unit.reads[0].value, TensorRef(unit.reads[0].ref.place, large, (1,)))
    message = refused(program, units(found, 0, reads=(read, *unit.reads[1:])))
    assert f"ends at byte {4 << 40}" in message
    assert program.steps[0].label in message


def test_results_that_are_not_written(step):
    program, found = step
    value, place = found.returned[0]
    n = next(i for i, u in enumerate(found.units) if value in [a.value for a in u.writes])
    message = refused(program, units(found, n, writes=exchanged(found.units[n], value)))
    assert f"result {place.index} was overwritten, or is not all there" in message


def test_what_pytorch_is_called_on_is_checked_too(step):
    program, found = step
    ref = found.units[0].reads[0].ref
    flip = AtenStep(
        "aten.flip.default", '[[{"t": 0}, [0]], {}]', (ref,), (ref,), "flip at net.py:7"
    )
    other = copy.copy(program)
    other.steps = [flip, *program.steps[1:]]
    assert dry_run(program, found, calls=1).runs == 1
    elsewhere = replace(ref, place=Place("arg", 3, 0))
    other.steps[0] = replace(flip, inputs=(elsewhere,))
    message = refused(other, found)
    assert "of which its ops know nothing" in message
    assert "flip at net.py:7" in message


def test_the_ir_must_come_to_the_same_steps(step):
    program, _ = step
    with pytest.raises(ValueError, match="comes to other steps"):
        accesses(changed(program, 0, label="another"))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.dropout(self.out(y.transpose(1, 2).reshape(b, t, w)))


class Language(gflow.nn.Graph):
    """A language model's training step in mixed precision, with a scaled loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(50, 32), Block(32, 2)
        self.head = nn.Linear(32, 50, bias=False)
        parts = (self.embedding, self.block, self.head)
        self.add_optimizer(torch.optim.AdamW([p for m in parts for p in m.parameters()]))
        self.config.enable_amp(dtype=torch.float16)
        self.set_grad_scaler(gflow.amp.GradScaler(device="cpu"))

    def build(self, x, y):
        logits = self.head(self.block(self.embedding(x)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        return loss


def test_a_language_model_keeps_all_rules():
    graph = Language()
    graph(torch.randint(50, (2, 16)), torch.randint(50, (2, 16)))
    plan: Any = graph._state.latest
    (program,) = programs_for(plan.trace, plan.compiled.options, "cuda:80", code=False)
    assert not [s for s in program.steps if isinstance(s, AtenStep)]
    assert {"rng", "scaler_state"} <= {a.role for a in program.arguments}
    assert dry_run(program, accesses(program)).runs == 3
