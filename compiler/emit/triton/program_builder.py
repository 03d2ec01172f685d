"""Adding launches of Triton kernels to a program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import GPU_FIELDS, WARP, Choice, Way, choice_of
from gflow.compiler.targets import Target
from gflow.compiler.targets.devices import MMA_TF32, TF32X3
from gflow.dialects.mlir import func
from gflow.dialects.program import LaunchStep, Place, TritonConfig, TritonKernel
from gflow.dialects.records import record

from ..placement import Placement
from .language.grid import grid_of

#: stands for the kernel's name in a source
NAME = "KERNEL"
#: what Triton may assume of a parameter: it is a multiple of this many bytes, or of this number
ALIGNMENT = 16


@record
class Source:
    """A kernel before it has a name: as `TritonKernel`, with `KERNEL` for the name in `text`.

    stem: how the name starts; readable.
    configs: with warps of `WARP` threads.
    hints: the parameters that get a kernel of their own where they are multiples of 16; all if None.
    comment: what the kernel comes from, for readers; of the first launch.
    """

    stem: str
    text: str
    parameters: dict[str, str]
    configs: tuple[TritonConfig, ...]
    grid: tuple[str, ...]
    constants: dict[str, int]
    hints: frozenset[str] | None = None
    comment: Callable[[], str] | None = field(default=None, compare=False)


@record
class Held:
    """A kernel, and what a launch of it alone would pass."""

    source: Source
    args: tuple[int | float | Place, ...]


class Builder(Placement):
    """What a program gets, step by step.

    target: the device that it is for.
    triton: kernels so far, by name.
    units: the ops that steps are of: ops, the first step, the one behind the last.
    choice: of the op whose launches are added; taken: how many of its ways have been.
    tried: for each launch of an op alone, or of products, the ways to run it, and which of the op's launches it is.
    held: launches that are to be one, while they are collected.
    """

    def __init__(self, function: func.FuncOp, target: Target) -> None:
        super().__init__(function)
        self.target = target
        self.triton: dict[str, TritonKernel] = {}
        self.units: list[tuple[tuple[Op, ...], int, int]] = []
        self.choice, self.taken = Choice("none"), 0
        self.tried: dict[int, tuple[tuple[TritonConfig, ...], int]] = {}
        self.held: list[Held] | None = None

    @contextmanager
    def unit(self, ops: Sequence[Op]) -> Iterator[None]:
        """What is added in here is of these ops."""
        begin = len(self.steps)
        yield
        if len(self.steps) > begin:
            self.units.append((tuple(ops), begin, len(self.steps)))

    @contextmanager
    def chosen(self, o: Op) -> Iterator[None]:
        """What is added in here runs as was chosen for an op.

        Raises:
            CannotLower: the choice has a field that its kind has no use of, or too few ways, or too many.
        """
        self.choice, self.taken = choice_of(o.op), 0
        yield
        self.choice.check_fields(GPU_FIELDS)
        count = len(self.choice.ways)
        self.choice.check(
            self.taken == count,
            f"has entries for {count} launches, and its kernels make {self.taken}",
        )
        self.choice, self.taken = Choice("none"), 0

    @contextmanager
    def holding(self) -> Iterator[list[Held]]:
        """The launches that are added in here, which are not the program's yet."""
        self.held = []
        yield self.held
        self.held = None

    def way(self, precise: bool = False) -> Way:
        """How the next launch of the op runs. precise: whether it makes products, whose precision is chosen."""
        ways = self.choice.ways
        self.choice.check(
            self.taken < len(ways),
            f"has entries for {len(ways)} launches, and its kernels make more",
        )
        self.taken += 1
        way = ways[self.taken - 1]
        way.check(precise or not way.precision, "has a precision where no products are made")
        return way

    def next_precision(self, dtype: str) -> str:
        """How the next launch of the op makes products, as `precision` has it."""
        ways = self.choice.ways
        return self.precision(ways[self.taken] if self.taken < len(ways) else Way(), dtype)

    def precision(self, way: Way | Choice, dtype: str) -> str:
        """How products of elements of a type are made: "ieee", "tf32" or "tf32x3".

        Raises:
            CannotLower: the device, or the type, has none of the precision that was chosen.
        """
        feature = {"tf32": MMA_TF32, "tf32x3": TF32X3}.get(way.precision)
        known = feature is None or (dtype == "f32" and self.target.has(feature))
        way.check(known, f"has a precision that {self.target} has no products of {dtype} of")
        return way.precision or "ieee"

    def ways(
        self, model: Sequence[TritonConfig], precise: bool = False
    ) -> tuple[TritonConfig, ...]:
        """Ways to run the next launch of the op: the one that was chosen, then the model's others."""
        way, names = self.way(precise), model[0].constants
        way.check(len(way.block) == len(names), f"needs a block of {len(names)} sizes")
        way.check(way.warps > 0 and way.stages > 0, "needs warps and stages")
        first = TritonConfig(dict(zip(names, way.block)), way.warps, way.stages)
        return (first, *(c for c in model if c != first))

    def launch(self, source: Source, args: Sequence[int | float | Place], label: str) -> None:
        """Add a launch, with the source's first config.

        args: one for each of the source's parameters.
        """
        if self.held is not None:
            self.held.append(Held(source, tuple(args)))
            return
        if self.choice.tuned:  # nothing is left to try
            source = replace(source, configs=source.configs[:1])
        kernel = self._named(source, _multiples(source, args))
        grid = grid_of(kernel, kernel.configs[0], args)
        if 0 not in grid:
            if self.taken:
                self.tried[len(self.steps)] = source.configs, self.taken - 1
            self.steps.append(LaunchStep(kernel.name, tuple(args), 0, grid, label))

    def _with_warps(self, config: TritonConfig) -> TritonConfig:
        """As many threads, in warps of the device's size."""
        warp = self.target.device.warp
        if warp == WARP:
            return config
        return replace(config, num_warps=max(1, config.num_warps * WARP // warp))

    def _named(self, source: Source, multiples: tuple[str, ...]) -> TritonKernel:
        """The kernel of a source; launches that may assume the same of its parameters share it."""
        kernel = TritonKernel(
            source.stem, source.text, source.parameters, source.constants, multiples,
            tuple(self._with_warps(c) for c in source.configs), source.grid,
        )  # fmt: skip
        digest = hashlib.sha256(repr(kernel).encode()).hexdigest()[:12]
        name = f"{source.stem}_{digest}"
        if name not in self.triton:
            text = source.text.replace(f"def {NAME}(", f"def {name}(")
            if source.comment is not None:
                text = _commented(text, source.comment())
            self.triton[name] = replace(kernel, name=name, source=text)
        return self.triton[name]


def _commented(text: str, comment: str) -> str:
    """The source with a comment over its last function."""
    head, mark, tail = text.rpartition("@triton.jit\n")
    return f"{head}{''.join(f'# {line}'.rstrip() + chr(10) for line in comment.splitlines())}{mark}{tail}"


def _multiples(source: Source, args: Sequence[int | float | Place]) -> tuple[str, ...]:
    """The parameters that are multiples of 16 here; bases of places are, whatever they are."""
    found = []
    for name, value in zip(source.parameters, args, strict=True):
        number = value.offset if isinstance(value, Place) else value
        wanted = source.hints is None or name in source.hints
        if wanted and isinstance(number, int) and number % ALIGNMENT == 0:
            found.append(name)
    return tuple(found)
