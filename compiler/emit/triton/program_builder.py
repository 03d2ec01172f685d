"""The builder of a GPU program: adds launches of Triton kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import PARTS
from gflow.compiler.kernel.selection.choice import GPU_FIELDS, WARP, Choice, Way, choice_of
from gflow.compiler.targets import Target
from gflow.compiler.targets.devices import MMA_TF32, TF32X3
from gflow.dialects.mlir import func
from gflow.dialects.program import LaunchStep, Place, TritonConfig, TritonKernel
from gflow.dialects.records import record

from ..placement import Placement
from .language.grid import grid_of

#: the placeholder of the kernel's name in a source
NAME = "KERNEL"
#: Triton specializes kernels for pointers that are aligned to so many bytes, and for integers that are multiples of it
ALIGNMENT = 16


@record
class Source:
    """A kernel without a name. It has the fields of `TritonKernel`; `KERNEL` stands for the name in `text`.

    Attributes:
        stem: the readable start of the name.
        configs: the configurations, with warps of `WARP` threads.
        hints: the parameters for which the kernel is specialized if they are multiples of 16; None: all.
        comment: the IR that the kernel comes from, for readers.
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
    """A kernel, and the arguments that a launch of it alone would have."""

    source: Source
    args: tuple[int | float | Place, ...]


class Builder(Placement):
    """The builder of a GPU program.

    Attributes:
        target: the target.
        triton: the kernels so far, by name.
        units: for each op or group of ops: the ops, the number of their first step, and the number after their last.
        choice: the choice of the op whose launches are being added.
        taken: how many launches of that op have been added.
        tried: for each launch, its configurations, and its number among the op's launches.
        held: the launches that are being collected into one; None: they are added one by one.
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
        """Inside the context, added steps belong to these ops (`units`)."""
        begin = len(self.steps)
        yield
        if len(self.steps) > begin:
            self.units.append((tuple(ops), begin, len(self.steps)))

    @contextmanager
    def chosen(self, o: Op) -> Iterator[None]:
        """Inside the context, added launches have the parameters that were chosen for an op.

        Raises:
            CannotLower: the choice has a field that its kind does not use, or another number of launches.
        """
        self.choice, self.taken = choice_of(o.op), 0
        yield
        self.choice.check_fields(GPU_FIELDS)
        self.choice.check(self.choice.precision not in PARTS, "has a precision of CPUs")
        count = len(self.choice.ways)
        self.choice.check(
            self.taken == count,
            f"has entries for {count} launches, and its kernels make {self.taken}",
        )
        self.choice, self.taken = Choice("none"), 0

    @contextmanager
    def holding(self) -> Iterator[list[Held]]:
        """Inside the context, launches are collected in the list that is yielded, and not added to the program."""
        self.held = []
        yield self.held
        self.held = None

    def way(self, precise: bool = False) -> Way:
        """The parameters of the op's next launch. precise: whether the launch uses the field `precision`."""
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
        """The precision of products in the op's next launch (see `precision`)."""
        ways = self.choice.ways
        return self.precision(ways[self.taken] if self.taken < len(ways) else Way(), dtype)

    def precision(self, way: Way | Choice, dtype: str) -> str:
        """The precision of products of an element type: "ieee", "tf32" or "tf32x3".

        Raises:
            CannotLower: the device or the element type does not support the chosen precision.
        """
        feature = {"tf32": MMA_TF32, "tf32x3": TF32X3}.get(way.precision)
        known = feature is None or (dtype == "f32" and self.target.has(feature))
        way.check(known, f"has a precision that {self.target} has no products of {dtype} of")
        return way.precision or "ieee"

    def ways(
        self, model: Sequence[TritonConfig], precise: bool = False
    ) -> tuple[TritonConfig, ...]:
        """The configurations of the op's next launch: the chosen one, then the others of the model."""
        way, names = self.way(precise), model[0].constants
        way.check(len(way.block) == len(names), f"needs a block of {len(names)} sizes")
        way.check(way.warps > 0 and way.stages > 0, "needs warps and stages")
        first = TritonConfig(dict(zip(names, way.block)), way.warps, way.stages)
        return (first, *(c for c in model if c != first))

    def launch(self, source: Source, args: Sequence[int | float | Place], label: str) -> None:
        """Add a launch with the source's first configuration.

        args: the value of each parameter of the source.
        """
        if self.held is not None:
            self.held.append(Held(source, tuple(args)))
            return
        if self.choice.tuned:  # already tuned
            source = replace(source, configs=source.configs[:1])
        kernel = self._named(source, _multiples(source, args))
        grid = grid_of(kernel, kernel.configs[0], args)
        if 0 not in grid:
            if self.taken:
                self.tried[len(self.steps)] = source.configs, self.taken - 1
            self.steps.append(LaunchStep(kernel.name, tuple(args), 0, grid, label))

    def _with_warps(self, config: TritonConfig) -> TritonConfig:
        """The configuration with as many threads, in warps of the device's size."""
        warp = self.target.device.warp
        if warp == WARP:
            return config
        return replace(config, num_warps=max(1, config.num_warps * WARP // warp))

    def _named(self, source: Source, multiples: tuple[str, ...]) -> TritonKernel:
        """The kernel of a source, specialized for parameters that are multiples of 16; equal kernels are shared."""
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
    """The source with a comment before its last function."""
    head, mark, tail = text.rpartition("@triton.jit\n")
    return f"{head}{''.join(f'# {line}'.rstrip() + chr(10) for line in comment.splitlines())}{mark}{tail}"


def _multiples(source: Source, args: Sequence[int | float | Place]) -> tuple[str, ...]:
    """The parameters that are multiples of 16 in this launch. The base addresses of buffers always are."""
    found = []
    for name, value in zip(source.parameters, args, strict=True):
        number = value.offset if isinstance(value, Place) else value
        wanted = source.hints is None or name in source.hints
        if wanted and isinstance(number, int) and number % ALIGNMENT == 0:
            found.append(name)
    return tuple(found)
