"""Checks a program from a file before any of it runs.

The declarations give the types (`gflow.dialects.program.form`). This file checks the numbers: every tensor and address
of a step is inside of the arena, argument, result or constant that it names, with everything that the step may access;
counts agree; names of kernels, overloads and data types exist. `CHECKS` has the check of each kind of step; a kind
without one is refused. The code of kernels itself cannot be checked: signatures protect it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

from gflow.dialects import limits
from gflow.dialects.extents import Extent, N
from gflow.dialects.opdef import VerifyError
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import KINDS, REDUCTIONS, shard_size
from gflow.dialects.program import (
    AtenStep,
    CollectiveStep,
    EngineStep,
    KernelAddress,
    KernelGroup,
    KernelStep,
    LaunchStep,
    Place,
    Program,
    Ranks,
    ShardStep,
    Size,
    Step,
    TensorRef,
    WaitStep,
)
from gflow.dialects.program.form import ProgramError, check_types, seal, unpacked
from gflow.dialects.types import TensorType, is_row_major, row_major_strides, share_memory

from ..engines.packages import PACKAGES
from ..failures import ERRORS, REPORT_WORDS
from ..sizes import fixed, fixed_ref, fixed_type
from .aten_check import check_call

#: no memory is larger: addresses have 48 bits, of which processes have one half
_MOST_BYTES = 1 << 47
_MOST_THREADS = 1 << 16
_MOST_GRID = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)
_NAME = re.compile(r"[A-Za-z_][\w.$]*")
_TARGET = re.compile(r"cpu|cuda:\d{2,3}|hip:gfx[0-9a-f]{3,4}")
#: how kernels' text reads word n, and what it takes it for
_FIRST = re.compile(r"%\w+ = llvm\.load %w : !llvm\.ptr -> (\S+)")
_WORD = re.compile(
    r"(%\w+) = llvm\.getelementptr %w\[(\d+)\] : \(!llvm\.ptr\) -> !llvm\.ptr, i64\n"
    r"\s*%\w+ = llvm\.load \1 : !llvm\.ptr -> (\S+)"
)
_NUMBERS = re.compile(r"([iu])(1|8|16|32|64)|fp(16|32|64)|bf16")


def check_program(program: Program) -> None:
    """Check a program: the types of its fields, then their numbers.

    Raises:
        ProgramError: the program is malformed; the message says where.
    """
    check_types(program)
    check_contents(program)
    if program.seal != seal(program):
        raise ProgramError("its seal does not fit: it was changed since it was compiled")


def check_contents(program: Program) -> None:
    """Check the numbers of a program whose types are right.

    Raises:
        ProgramError: they are inconsistent; the message says where.
    """
    _check_head(program)
    for n in _samples(program):
        memory = _Memory(program, n)
        for number, step in enumerate(program.steps):
            if type(step) not in CHECKS:
                raise ProgramError(f"step {number} is a {type(step).__name__}")
            try:
                CHECKS[type(step)](program, memory, step)
            except ValueError as error:
                raise ProgramError(f"step {number} ({step.label[:80]}): {error}") from None
        memory.check_results(program)


def _samples(program: Program) -> list[N]:
    """The dynamic sizes to check at; -1 for a program without one."""
    size = program.size
    if size is None:
        return [-1]
    found = _samples_of(program, size)
    if size.second is None:
        return [*found]
    if size.second.second is not None:
        raise ProgramError("it has more than two sizes")
    return [*product(found[::4], _samples_of(program, size.second)[::4])]


def _samples_of(program: Program, size: Size) -> list[int]:
    if not 0 <= size.least <= size.most < 1 << 31:
        raise ProgramError(f"its size goes from {size.least} to {size.most}")
    if not 0 <= size.argument < len(program.arguments):
        raise ProgramError(f"its size is argument {size.argument}")
    if program.arguments[size.argument].type != TensorType((), "i64"):
        raise ProgramError(f"its size is {program.arguments[size.argument].type}")
    span = size.most - size.least
    return sorted({size.least + span * k // 8 for k in range(9)})


def _check_head(program: Program) -> None:
    def wanted(holds: bool, message: str) -> None:
        if not holds:
            raise ProgramError(message)

    wanted(_TARGET.fullmatch(program.target) is not None, f"its target is {program.target!r}")
    wanted(0 <= program.arena_bytes < _MOST_BYTES, f"its arena has {program.arena_bytes} bytes")
    wanted(0 < program.max_threads <= _MOST_THREADS, f"it is for {program.max_threads} threads")
    types = [a.type for a in program.arguments]
    aliases = [r.alias for r in program.results if r.alias is not None]
    wanted(len(set(aliases)) == len(aliases), "two results update one argument")
    for result in program.results:
        if result.alias is None:
            continue
        wanted(0 <= result.alias < len(types), f"result {result.name!r} is argument {result.alias}")
        wanted(
            types[result.alias] == result.type,
            f"result {result.name!r} is {result.type}, its argument {types[result.alias]}",
        )
    if program.target == "cpu":
        wanted(
            not program.triton and not program.device_code,
            "it is for the CPU and has code for a GPU",
        )
    else:
        wanted(
            not program.kernels and not program.declarations,
            "it is for a GPU and has code for the CPU",
        )
        wanted(program.size is None, "it is for a GPU and has a size")
    for name, text in (*program.kernels.items(), *program.declarations.items()):
        wanted(_NAME.fullmatch(name) is not None, f"a kernel is named {name!r}")
        wanted(f"@{name}(" in text, f"the text of {name} is of something else")
        beyond = limits.problem(text)
        wanted(beyond is None, f"the text of {name}: {beyond and beyond[0]}")
    for name, kernel in program.triton.items():
        wanted(
            _NAME.fullmatch(name) is not None and name == kernel.name, f"a kernel is named {name!r}"
        )
        wanted(1 <= len(kernel.configs) <= 10_000, f"{name} has {len(kernel.configs)} configs")
        wanted(1 <= len(kernel.grid) <= 3, f"{name} has a grid of {len(kernel.grid)} dimensions")
        known = kernel.parameters.keys()
        wanted(
            known >= set(kernel.multiples), f"{name} has multiples that it has no parameters for"
        )
        for config in kernel.configs:
            wanted(config.num_warps in (1, 2, 4, 8, 16, 32), f"{name} has {config.num_warps} warps")
            wanted(0 <= config.num_stages <= 64, f"{name} has {config.num_stages} stages")
    for key, code in program.device_code.items():
        kernel_name, _, number = key.rpartition("/")
        wanted(
            kernel_name in program.triton
            and number.isdigit()
            and int(number) < len(program.triton[kernel_name].configs),
            f"there is code for {key!r}, and no such kernel",
        )
        wanted(0 <= code.shared < 1 << 20, f"{key} wants {code.shared} bytes of shared memory")
        wanted(0 < code.warps <= 32, f"{key} has {code.warps} warps")
        wanted(0 <= code.scratch < 1 << 30, f"{key} wants {code.scratch} bytes of scratch")
    for check in program.checks:
        wanted(check.error in ERRORS, f"a check raises {check.error!r}")
    wanted(
        0 <= program.first_write <= len(program.steps),
        f"step {program.first_write} is the first that writes into an argument, of {len(program.steps)}",
    )
    for race in program.races:
        wanted(0 <= race.step < len(program.steps), f"a race is of step {race.step}")


class _Memory:
    """How many bytes there are of each space, for a size of `n`."""

    def __init__(self, program: Program, n: N) -> None:
        self.n = n
        arguments = [
            _bytes(fixed_type(a.type, n), fixed(a.strides, n), f"argument {a.name!r}")
            for a in program.arguments
        ]
        results = []
        for r in program.results:
            ty = fixed_type(r.type, n)
            dense = prod(_sizes(ty, f"result {r.name!r}")) * ty.itemsize
            if not dense < _MOST_BYTES:
                raise ProgramError(f"result {r.name!r} has {dense} bytes")
            results.append(dense if r.alias is None else arguments[r.alias])
        #: shape, strides and bytes of an element of what is the caller's
        self.types: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        for i, a in enumerate(program.arguments):
            ty = fixed_type(a.type, n)
            self.types["arg", i] = ty.shape, fixed(a.strides, n), ty.itemsize
        for i, r in enumerate(program.results):
            ty = fixed_type(r.type, n)
            self.types["result", i] = ty.shape, row_major_strides(ty.shape), ty.itemsize
        self.spaces: dict[str, Sequence[int]] = {
            "arena": [program.arena_bytes],
            "arg": arguments,
            "result": results,
            "constant": [max(len(c), 1) for c in program.constants],
            "status": [8 * REPORT_WORDS, 8 * len(program.checks)],
        }

        #: how far steps reach into each result
        self.reached = [0] * len(program.results)

    def check_results(self, program: Program) -> None:
        """Check that steps write each result that is not an argument up to its end; otherwise it would contain
        uninitialized memory. Tokens, which order collectives, have no contents.

        Raises:
            ProgramError: none does.
        """
        ordered = any(isinstance(s, CollectiveStep) for s in program.steps)
        last = len(program.results) - 1
        for n, (result, size) in enumerate(zip(program.results, self.spaces["result"])):
            if ordered and n == last and result.name == "order" and size == 1:
                continue
            if result.alias is None and self.reached[n] < size:
                raise ProgramError(
                    f"result {result.name!r} has {size} bytes, of which steps reach {self.reached[n]}"
                )

    def check(self, place: Place, reach: Any) -> None:
        """Check that a memory has so many bytes from an address on. A reach that depends on the call's size is negative
        for a piece that begins behind the end: such a piece is empty."""
        offset, size = fixed(place.offset, self.n), fixed(reach, self.n)
        spaces = self.spaces[place.space]
        if not (type(place.index) is int and 0 <= place.index < len(spaces)):
            raise ValueError(f"there is no {place.space} {place.index}")
        possible = size >= 0 or isinstance(reach, Extent)
        if not (offset >= 0 and possible and offset + size <= spaces[place.index]):
            raise ValueError(
                f"bytes {offset} to {offset + size} of {place.space} {place.index}, which has "
                f"{spaces[place.index]}"
            )
        if place.space == "result" and size > 0:
            self.reached[place.index] = max(self.reached[place.index], offset + size)

    def check_ref(self, ref: TensorRef) -> None:
        """Check that a tensor is inside of its memory, at a multiple of its element size."""
        found = fixed_ref(ref, self.n)
        self.check(found.place, _bytes(found.type, found.strides, str(found.type)))
        if found.place.offset % min(found.type.itemsize, 8):
            raise ValueError(f"a {found.type} at byte {found.place.offset}")
        holder = self.types.get(found.place[:2])
        if holder is None:
            return
        shape, strides, size = holder
        if size != found.type.itemsize and (
            not shape or strides[-1] != 1 or shape[-1] * size % found.type.itemsize
        ):  # PyTorch takes such memory for no other type
            raise ValueError(f"a {found.type} in {found.place.space} {found.place.index}")


def _sizes(ty: TensorType, what: str) -> tuple[int, ...]:
    if any(s < 0 for s in ty.shape) or len(ty.shape) > 64:
        raise ProgramError(f"{what} has shape {list(ty.shape)[:9]}")
    return ty.shape


def _bytes(ty: TensorType, strides: tuple[int, ...], what: str) -> int:
    """The bytes that a strided tensor spans, from its first element on."""
    shape = _sizes(ty, what)
    if len(strides) != len(shape) or any(s < 0 for s in strides):
        raise ProgramError(f"{what} has shape {list(shape)} and strides {list(strides)[:9]}")
    if 0 in shape:
        return 0
    size = (1 + sum((n - 1) * s for n, s in zip(shape, strides))) * ty.itemsize
    if size >= _MOST_BYTES or prod(shape) >= _MOST_BYTES:
        raise ProgramError(f"{what} has shape {list(shape)} and strides {list(strides)}")
    return size


# steps


def _check_kernel(program: Program, memory: _Memory, step: KernelStep) -> None:
    if program.target != "cpu":
        raise ValueError("a kernel for the CPU")
    if step.kernel not in program.kernels:
        raise ValueError(f"there is no kernel {step.kernel!r}")
    kinds = words_of(program.kernels[step.kernel])
    if not kinds.keys() <= set(range(len(step.words))):
        raise ValueError(f"{step.kernel} reads {max(kinds) + 1} words, and gets {len(step.words)}")
    for n, word in enumerate(step.words):
        if n in kinds and (kinds[n] == "!llvm.ptr") != isinstance(word, Place):
            raise ValueError(f"word {n} of {step.kernel} is {word}, read as {kinds[n]}")
        if isinstance(word, KernelAddress):
            if word.kernel not in program.kernels:
                raise ValueError(f"there is no kernel {word.kernel!r}")
        elif not isinstance(word, Place):
            number = fixed(word, memory.n)
            if not (isinstance(number, int) and -(1 << 63) <= number < 1 << 63):
                raise ValueError(f"word {n} of {step.kernel} is {word}")
    if not 0 <= step.from_size < 1 << 63:
        raise ValueError(f"{step.kernel} is parallel from a size of {step.from_size} on")
    _check_reach(memory, step.words, step.reach)


def _check_reach(memory: _Memory, words: Sequence[Any], reach: Sequence[Any]) -> None:
    places = [w for w in words if isinstance(w, Place)]
    if len(places) != len(reach):
        raise ValueError(f"{len(places)} addresses, and the reach of {len(reach)}")
    for place, size in zip(places, reach):
        memory.check(place, size)


def _check_group(program: Program, memory: _Memory, step: KernelGroup) -> None:
    if not step.members:
        raise ValueError("a group without members")
    for member in step.members:
        _check_kernel(program, memory, member)


def _check_aten(program: Program, memory: _Memory, step: AtenStep) -> None:
    for ref in step.inputs:
        memory.check_ref(ref)
    for output in step.outputs:
        if output is not None:
            memory.check_ref(output)
            found = fixed_ref(output, memory.n)
            if share_memory(found.type.shape, found.strides):
                raise ValueError(
                    f"elements of a result share memory, by strides {list(found.strides)}"
                )
    device = "cpu" if program.target == "cpu" else "cuda"
    check_call(step, device, 0 if program.size is None else memory.n)


def _check_collective(program: Program, memory: _Memory, step: CollectiveStep) -> None:
    for ref in (step.input, step.output):
        if ref is not None:
            memory.check_ref(ref)
            if not is_row_major(ref.type.shape, ref.strides):
                raise ValueError(f"a collective on a tensor with strides {list(ref.strides)}")
    _check_ranks(program, step.ranks)
    attrs: dict[str, Any] = {
        "kind": step.kind, "axes": step.ranks.axes, "group": step.ranks.group, "ranks": step.ranks.count,
        "sequence": step.sequence, "reduction": step.reduction or None, "sends": step.sends or None,
        "takes": step.takes or None, "root": None if step.root < 0 else step.root,
        "peer": None if step.peer < 0 else step.peer,
        "type": step.output.type if step.kind == "recv" and step.output is not None else None,
    }  # fmt: skip
    if step.kind not in KINDS or step.reduction not in ("", *REDUCTIONS):
        raise ValueError(f"no collective {step.kind!r} {step.reduction!r}")
    infer = OPS["collective"].infer
    assert infer is not None
    try:
        wanted = infer([] if step.input is None else [step.input.type], attrs)
    except (VerifyError, IndexError) as error:
        raise ValueError(str(error)) from None
    if (step.output is None) != (step.kind == "send") or (
        step.output is not None and step.output.type != wanted[0]
    ):
        raise ValueError(f"{step.kind} gives a {wanted[0]}, no {step.output and step.output.type}")
    if sum(isinstance(s, WaitStep) and s.sequence == step.sequence for s in program.steps) != 1:
        raise ValueError(f"{step.kind} number {step.sequence} needs one wait")


def _check_wait(program: Program, memory: _Memory, step: WaitStep) -> None:
    for before in program.steps[: program.steps.index(step)]:
        if isinstance(before, CollectiveStep) and before.sequence == step.sequence:
            return
    raise ValueError(f"waits for number {step.sequence}, which has not begun")


def _check_shard(program: Program, memory: _Memory, step: ShardStep) -> None:
    for ref in (step.input, step.output):
        memory.check_ref(ref)
        if not is_row_major(ref.type.shape, ref.strides):
            raise ValueError(f"a piece of a tensor with strides {list(ref.strides)}")
    _check_ranks(program, step.ranks)
    size = shard_size(step.input.type, step.ranks.count)
    if step.output.type != TensorType((size,), step.input.type.dtype):
        raise ValueError(f"a piece of {step.input.type} in a {step.output.type}")


def _check_ranks(program: Program, ranks: Ranks) -> None:
    if ranks.axes:
        if not set(ranks.axes) <= set(program.mesh) or len(set(ranks.axes)) != len(ranks.axes):
            raise ValueError(f"no mesh axes {', '.join(ranks.axes)}")
        if prod(program.mesh[a] for a in ranks.axes) != ranks.count:
            raise ValueError(f"{ranks.count} ranks along {', '.join(ranks.axes)}")
    if bool(ranks.axes) == bool(ranks.group) or ranks.count < 1:
        raise ValueError("ranks along axes, or of a group")


def _check_engine(program: Program, memory: _Memory, step: EngineStep) -> None:
    if step.engine not in PACKAGES:
        raise ValueError(f"there is no engine {step.engine!r}")
    for ref in (*step.inputs, *step.outputs):
        memory.check_ref(ref)
    for output in step.outputs:
        found = fixed_ref(output, memory.n)
        if not is_row_major(found.type.shape, found.strides):
            raise ValueError(f"a result with strides {list(found.strides)}")
    unpacked(step.code)
    if step.exact:
        unpacked(step.exact)


def _check_launch(program: Program, memory: _Memory, step: LaunchStep) -> None:
    if program.target == "cpu":
        raise ValueError("a kernel for a GPU")
    kernel = program.triton.get(step.kernel)
    if kernel is None:
        raise ValueError(f"there is no kernel {step.kernel!r}")
    if len(step.args) != len(kernel.parameters):
        raise ValueError(f"{len(step.args)} arguments for {len(kernel.parameters)} parameters")
    for (name, kind), value in zip(kernel.parameters.items(), step.args):
        if isinstance(value, Place) != kind.startswith("*"):
            raise ValueError(f"{name} is {value}, a {kind}")
        if not isinstance(value, Place):
            _check_number(name, kind, value)
        number = value.offset if isinstance(value, Place) else value
        if name in kernel.multiples and (not isinstance(number, int) or number % 16):
            raise ValueError(f"{name} is {number}, promised to be a multiple of 16")
    if not 0 <= step.config < len(kernel.configs):
        raise ValueError(f"{step.kernel} has no config {step.config}")
    if len(step.grid) != 3 or not all(0 < g <= most for g, most in zip(step.grid, _MOST_GRID)):
        raise ValueError(f"its grid is {list(step.grid)}")
    _check_reach(memory, step.args, step.reach)


def _check_number(name: str, kind: str, value: int | float) -> None:
    match = _NUMBERS.fullmatch(kind)
    if match is None:
        raise ValueError(f"{name} is of kind {kind!r}")
    if match[1] is None:
        return
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value}, a {kind}")
    bits = int(match[2])
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if match[1] == "i" else (0, 1 << bits)
    if not low <= value < max(high, 2):
        raise ValueError(f"{name} is {value}, which is no {kind}")


@cache
def words_of(text: str) -> Mapping[int, str]:
    """The words that a kernel's text reads, by number, and their types."""
    first = _FIRST.search(text)
    return ({} if first is None else {0: first[1]}) | {
        int(number): kind for _, number, kind in _WORD.findall(text)
    }


#: the check of each kind of step
CHECKS: Mapping[type[Step], Callable[[Program, _Memory, Any], None]] = {
    KernelStep: _check_kernel,
    KernelGroup: _check_group,
    AtenStep: _check_aten,
    EngineStep: _check_engine,
    LaunchStep: _check_launch,
    CollectiveStep: _check_collective,
    WaitStep: _check_wait,
    ShardStep: _check_shard,
}
