"""A signature of a saved graph: inputs and outputs of a call, and the programs that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gflow.dialects.extents import Extent, formula, leaves
from gflow.dialects.program import Argument, Program
from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides, share_memory

from ..arena import Arena
from ..calls import result_names
from ..composed.micro_batches import MicroBatches, Ready, Split
from ..loading import load_program
from ..sizes import times
from ..tensors import DTYPES, dtype_named, overlap, storage_of
from .bundle import ArtifactError


@record
class TensorInfo:
    """An input or output: its dotted name, shape and dtype. A dynamic size is a string in the shape: "n", or a formula
    of n ("2*n + 1")."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] = ()
    """In elements; () of an input whose size varies, which is row-major."""

    @property
    def varies(self) -> bool:
        """Whether it has a dynamic dimension."""
        return any(isinstance(s, str) for s in self.shape)

    @property
    def is_shared(self) -> bool:
        """Whether elements share memory."""
        shape = [s for s in self.shape if isinstance(s, int)]
        return not self.varies and share_memory(tuple(shape), self.strides)

    def strides_for(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The strides that a program takes this tensor in."""
        return row_major_strides(tuple(tensor.shape)) if self.varies else self.strides

    def __str__(self) -> str:
        parts = (str(s) if str(s).isalnum() else f"({s})" for s in self.shape)
        shape = "×".join(parts) or "scalar"
        return f"{self.name}: {str(self.dtype).removeprefix('torch.')} {shape}"


class Variant:
    """What one signature runs, a program or the two of a step in micro-batches, and what its arguments
    are."""

    def __init__(self, programs: Sequence[Program], described: dict[str, Any]) -> None:
        split = described.get("split")
        self.split = None if split is None else Split(**split)
        self.programs = list(programs)
        self.call, self.outputs = described["call"], described["outputs"]
        self.parameters = described["parameters"]
        self.size = self.programs[0].size
        self.sources: list[list[Any]] = described["arguments"]
        self.size_at = next((n for n, (kind, _) in enumerate(self.sources) if kind == "size"), -1)
        self.form = self._form()
        self.inputs = [self._info(i) for i in described["inputs"]]
        self.guards, self.numbers = described["guards"], described["numbers"]
        self.arguments: list[torch.Tensor | None] = []
        self._weights_in: dict[int, list[int]] | None = None  # storage → weights in it
        self.written = {
            places[r.alias]
            for program, places in self._places()
            for r in program.results
            if r.alias is not None
        }
        self.run: Callable[[list[Any]], list[torch.Tensor]] | None = None

    def _form(self) -> tuple[int, int]:
        """The dynamic size of the inputs, rest + step * k, in terms of the program's dynamic size k."""
        program, places = self._places()[0]
        split = [] if self.split is None else self.split.inputs
        for position, argument in zip(places, program.arguments):
            if self.sources[position][0] != "input":
                continue
            for d, size in enumerate(argument.type.shape):
                if isinstance(size, Extent):
                    count = 1 if d or position not in split else self.split.count  # type: ignore[union-attr]
                    rest, step = leaves(size.coefficients)
                    return rest * count, step * count
        return 0, 1

    def _info(self, given: dict[str, Any]) -> TensorInfo:
        """An input as the manifest describes it; its dynamic dimensions are None."""
        size, strides = self.size, given["strides"]
        name = "" if size is None else formula(self.form, size.name)
        shape = tuple(name if s is None else s for s in given["shape"])
        dense = () if strides is None else tuple(strides)
        return TensorInfo(given["name"], shape, dtype_named(given["dtype"]), dense)

    def _places(self) -> list[tuple[Program, Sequence[int]]]:
        """Each program, with the positions of its arguments among those of the signature."""
        if self.split is None:
            return [(self.programs[0], range(len(self.sources)))]
        return list(zip(self.programs, (self.split.forward, self.split.update)))

    def argument_types(self) -> list[Argument | None]:
        """The type of each argument; None where there is none, or only that of a part.

        Raises:
            ArtifactError: a program has another number of arguments than the manifest says, or an argument is of
                different types for the two.
        """
        found: list[Argument | None] = [None] * len(self.sources)
        for program, places in self._places():
            rng = len(program.arguments) - len(places)
            if rng not in ((0,) if self.split is None else (0, 1)):
                raise ArtifactError("the manifest does not fit the program")
            for position, argument in zip(places, program.arguments):
                other = found[position] or argument
                if (other.type, other.strides) != (argument.type, argument.strides):
                    raise ArtifactError(
                        f"the manifest does not fit the program: argument {position} of both"
                    )
                found[position] = argument
        return found

    def prepare(self, arena: Arena, where: torch.device) -> None:
        """Load the programs."""
        ready = [load_program(program, arena, where=where) for program in self.programs]
        if self.split is None:
            self.run = ready[0]
            return
        forward, update = (
            Ready(run, len(program.arguments) > len(places))
            for run, (program, places) in zip(ready, self._places())
        )
        self.run = MicroBatches(forward, update, self.split)

    def result_infos(self) -> list[TensorInfo]:
        """Name, shape and element type of each tensor of the result; of a call in micro-batches, of all of them."""
        names = result_names(self.outputs)
        results = self.programs[0].results
        count = 1 if self.split is None else self.split.count
        infos = []
        for n, name in names.items():
            shape = results[n].type.shape
            if self.split is not None and self.split.stacked:
                shape = shape or (1,)
            rows = [times(rows, count) for rows in shape[:1]]
            whole = tuple([self._named(s) for s in (*rows, *shape[1:])])
            infos.append(TensorInfo(name, whole, DTYPES[results[n].type.dtype]))
        return infos

    def _named(self, size: Any) -> int | str:
        """A size of a result: a number, or a formula of the dynamic size."""
        if self.size is None or not isinstance(size, Extent):
            return int(size)
        return formula(size.coefficients, self.size.name)

    def size_of(self, tensors: Sequence[torch.Tensor]) -> int:
        """The dynamic size of a call, for a signature with a dynamic dimension."""
        rest, step = self.form
        return next(
            (tensor.shape[d] - rest) // step
            for info, tensor in zip(self.inputs, tensors)
            for d, s in enumerate(info.shape)
            if isinstance(s, str)
        )

    def unfit(self, given: Mapping[str, torch.Tensor], device: torch.device) -> str | None:
        """The reason why the program does not take these tensors."""
        varying: dict[str, int] = {}
        for info in self.inputs:
            if info.name not in given:
                return f"input {info.name!r} ({info}) is missing"
            tensor = given[info.name]
            problem = self._wrong_shape(info, tensor, varying)
            if problem is not None:
                return f"input {info.name!r} has shape {list(tensor.shape)}, {problem}"
            if tensor.dtype != info.dtype:
                return f"input {info.name!r} is {tensor.dtype}, {info.dtype} expected"
            if tensor.stride() != info.strides and info.is_shared:
                return (
                    f"input {info.name!r} has strides {list(tensor.stride())}, and the graph was saved for a "
                    f"tensor whose elements share memory, of strides {list(info.strides)}; save a graph that "
                    "was called with a dense one"
                )
            if tensor.device != device or tensor.layout != torch.strided:
                return (
                    f"input {info.name!r} is {tensor.layout} on {tensor.device}, dense on "
                    f"{_device_name(device)} expected"
                )
        names = [i.name for i in self.inputs]
        unknown = next((name for name in given if name not in names), None)
        if unknown is None:
            return None
        return f"there is no input {unknown!r}; known: {', '.join(names)}"

    def clash(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The reason why the program cannot update these inputs, or its weights beside them: tensors that it updates
        share memory with others, and it was compiled for separate ones."""
        given = [(n, where) for n, (kind, where) in enumerate(self.sources) if kind == "input"]
        if not self.written:
            return None
        if self._weights_in is None:
            self._weights_in = {}
            for n, ((kind, _), held) in enumerate(zip(self.sources, self.arguments, strict=True)):
                if kind == "weights" and held is not None:
                    self._weights_in.setdefault(storage_of(held), []).append(n)
        for n, where in given:
            tensor, name = tensors[where], self.inputs[where].name
            if n in self.written and share_memory(tuple(tensor.shape), tensor.stride()):
                return f"input {name!r} is updated, and its own elements share memory; pass a copy (.clone()) of it"
            beside = [
                (m, tensors[other], f"input {self.inputs[other].name!r}")
                for m, other in given
                if m != n
            ]
            for m in self._weights_in.get(storage_of(tensor), ()):
                held = self.arguments[m]
                assert held is not None
                beside.append((m, held, "a tensor of the graph's state"))
            for m, held, what in beside:
                if (n in self.written or m in self.written) and overlap(tensor, held):
                    return (
                        f"input {name!r} shares memory with {what}, and the program updates one of them; pass a copy "
                        "(.clone()) of it"
                    )
        return None

    def _wrong_shape(
        self, info: TensorInfo, tensor: torch.Tensor, varying: dict[str, int]
    ) -> str | None:
        """The message about an input's shape: expected and found. varying: the dynamic sizes of the inputs before it,
        by name."""
        wanted = "[" + ", ".join(map(str, info.shape)) + "] expected"
        if tensor.dim() != len(info.shape):
            return wanted
        for found, size in zip(tensor.shape, info.shape):
            if isinstance(size, int):
                if found != size:
                    return wanted
                continue
            assert self.size is not None
            k, rest = divmod(found - self.form[0], self.form[1])
            if rest or not self.size.least <= k <= self.size.most:
                return f"{wanted}, {self.size.name} in [{self.size.least}, {self.size.most}]"
            if varying.setdefault(size, found) != found:
                return f"{wanted}, where {size} is {varying[size]}"
        return None

    @property
    def moved_on(self) -> str:
        """The reason why it does not run although its inputs fit."""
        names = ", ".join(self.numbers)
        return (
            f"its program was compiled for other values of {names}; save a graph that was called with "
            "the present ones"
        )


def _device_name(device: torch.device) -> str:
    return "CPU" if device.type == "cpu" else str(device)
