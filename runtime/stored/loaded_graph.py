"""A graph from a file: `LoadedGraph` runs it, and updates its weights."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from gflow.dialects.program import Program

from ..arena import Arena
from ..calls import bind, decode_results, encode_call, fits, result_names
from ..cpu import jit, machine
from ..cpu.objects import ObjectError
from ..device import DeviceError
from ..interrupts import held
from ..loading import gpu_for, interpreted
from ..numbers import holds
from ..recorded import function_modes, recorder
from ..schedules.data import restore
from ..seeds import Seeds
from ..tensors import DTYPES, with_strides
from . import checkpoint
from .bundle import ArtifactError, Bundle, write_bundle
from .manifest import check_fit, check_manifest, check_seal
from .program_files import OBJECT, WEIGHTS, all_kernels, read_program, runner_text
from .signature import TensorInfo, Variant

_log = logging.getLogger("gflow")

#: makes a program again from its IR
Regenerate = Callable[[Program], Program]


class LoadedGraph:
    """A graph from a file: call it as the graph that was saved.

    A training graph takes a step at each call and updates its own weights. Calls from several
    threads are serialized.
    """

    def __init__(
        self,
        bundle: Bundle,
        weights: dict[str, Any],
        native: bool = True,
        regenerate: Regenerate | None = None,
    ) -> None:
        manifest = bundle.manifest
        check_manifest(manifest)
        self.target: str = manifest["target"]
        self.device = _device(self.target)
        self._bundle, self._weights = bundle, weights
        self._lock = threading.Lock()
        self.name: str = manifest["name"]
        self.training: bool = manifest["training"]
        self.frozen: bool = manifest.get("frozen", False)
        self.versions: dict[str, Any] = manifest["versions"]
        described = manifest["programs"]
        programs = [read_program(bundle, n, c) for n, c in enumerate(weights["constants"])]
        native = native and not (self.target != "cpu" and interpreted())
        if not native:
            if regenerate is None:
                raise ArtifactError(
                    "without its stored code it is compiled from its IR, which takes gflow.load"
                )
            check_seal(manifest)
            programs = [regenerate(p) for p in programs]
        for program in programs:
            if program.target != self.target:
                raise ArtifactError(
                    f"it was saved for {self.target}, and has a program for {program.target}"
                )
        firsts = [d.get("program", n) for n, d in enumerate(described)]
        if len(programs) != sum(2 if d.get("split") else 1 for d in described):
            raise ArtifactError("the manifest and the weights are not of one graph")
        self._numbers = {k: v["tensor"] for k, v in weights["numbers"].items()}
        self._seeds = Seeds()
        self._schedulers = [
            None if d is None else self._restored(n, d)
            for n, d in enumerate(manifest.get("schedulers", ()))
        ]
        self._gradients: dict[str, torch.Tensor] = {}
        self._variants = [
            Variant(programs[n : n + (2 if d.get("split") else 1)], d)
            for n, d in zip(firsts, described)
        ]
        if any(t.numel() != 1 for t in self._numbers.values()):
            raise ArtifactError("one of its numbers is none")
        for variant, entry in zip(self._variants, described):
            check_fit(entry, variant.programs, variant.argument_types())
            self._bind(variant)
            self._guards_hold(variant)  # they can be evaluated
        check_seal(manifest)
        if (saved := weights["state"].get("graph.rng")) is not None:
            self._seeds.load(saved)
        if native:
            self._adopt(programs)
        arena = Arena()  # one runs at a time
        for variant in self._variants:
            variant.prepare(arena, self.device)

    def _adopt(self, programs: Sequence[Program]) -> None:
        """Use the machine code if it is for this machine; kernels are compiled from text if not."""
        if self.target != "cpu":
            return
        described = self._bundle.manifest.get("object")
        data = self._bundle.files.get(OBJECT)
        if data is None or described is None or not machine.runs(described, runner_text()):
            _log.info("%s has no machine code for this machine, compiling its kernels", self.name)
            return
        try:
            jit.adopt_object(data, all_kernels(programs)[0])
        except ObjectError as error:
            _log.warning("machine code of %s cannot be loaded, compiling: %s", self.name, error)

    def _restored(self, n: int, described: dict[str, Any]) -> Any:
        state = self._weights["state"]
        groups = state[f"graph.optimizer.{described['optimizer']}"]["param_groups"]
        return restore(described, state[f"graph.lr_scheduler.{n}"], groups)

    def _bind(self, variant: Variant) -> None:
        """Find the tensor of each argument that is no input."""
        for source, argument in zip(variant.sources, variant.argument_types(), strict=True):
            kind, where = source
            if kind == "input":
                variant.arguments.append(None)
                continue
            if kind == "rng":
                variant.arguments.append(self._seeds.value)
                continue
            if argument is None:
                raise ArtifactError("the manifest does not fit the program")
            if kind == "size":
                variant.arguments.append(torch.zeros((), dtype=torch.int64, device="cpu"))
                continue
            shape, dtype = argument.type.shape, DTYPES[argument.type.dtype]
            if kind == "number":
                tensor = self._numbers[where]
            elif kind == "gradient":
                blank = torch.empty_strided(
                    shape, argument.strides, dtype=dtype, device=self.device
                ).zero_()
                tensor = self._gradients.setdefault(where, blank)
            else:
                tensor = _at(self._weights, where)
                if tensor.device != self.device:
                    tensor = tensor.to(self.device)
                    _put(self._weights, where, tensor)
            if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
                raise ArtifactError(f"the weights do not fit the program at {argument.name}")
            if tensor.numel() > 1 and tensor.stride() != tuple(argument.strides):
                tensor = with_strides(tensor, tuple(argument.strides))
                _put(self._weights, where, tensor)
            variant.arguments.append(tensor)

    # calls

    @property
    def inputs(self) -> list[TensorInfo]:
        """The tensors of a call, in order, of the latest signature."""
        return list(self._variants[0].inputs)

    @property
    def outputs(self) -> list[TensorInfo]:
        """The tensors that a call gives, in order, of the latest signature."""
        return self._variants[0].result_infos()

    @property
    def signatures(self) -> list[tuple[list[TensorInfo], list[TensorInfo]]]:
        """Inputs and outputs of every program."""
        return [(list(v.inputs), v.result_infos()) for v in self._variants]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once.

        Raises:
            ValueError: no saved program takes such arguments.
        """
        variant, tensors, numbers = self._choose(args, kwargs)
        return decode_results(variant.outputs, self._run(variant, tensors, numbers))

    def run_named(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run on tensors by the names of `inputs`; results by the names of `outputs`.

        Raises:
            ValueError: no saved program takes such tensors.
        """
        problems = []
        for variant in self._variants:
            problem = variant.unfit(given, self.device)
            if problem is None and self._guards_hold(variant):
                results = self._run(variant, [given[i.name] for i in variant.inputs])
                return {name: results[n] for n, name in result_names(variant.outputs).items()}
            problems.append(problem or variant.moved_on)
        raise ValueError(f"{self.name}: {_first(problems)}")

    def _choose(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Variant, list[torch.Tensor], dict[str, float]]:
        problems: list[str] = []
        close: list[str] = []  # of programs that take such arguments, but for their tensors
        for variant in self._variants:
            try:
                bound = bind(variant.parameters, args, kwargs)
            except TypeError as error:
                problems.append(f"the arguments do not fit: {error}")
                continue
            for shared in (True, False):
                tensors: list[torch.Tensor] = []
                try:
                    structure = encode_call(variant.parameters, bound, tensors, shared)
                except TypeError as error:
                    raise ValueError(f"{self.name}: {error}, which no graph takes") from None
                numbers: dict[str, float] = {}
                if fits(structure, variant.call, numbers):
                    break
            else:
                problems.append(
                    "the arguments differ from those of the saved graph by more than their tensors "
                    f"({', '.join(map(str, variant.inputs))})"
                )
                continue
            named = {i.name: t for i, t in zip(variant.inputs, tensors)}
            problem = variant.unfit(named, self.device)
            if problem is None and self._guards_hold(variant, numbers):
                return variant, tensors, numbers
            close.append(problem or variant.moved_on)
        raise ValueError(f"{self.name}: {_first([*close, *problems])}")

    def _guards_hold(
        self, variant: Variant, given: Mapping[str, float] = MappingProxyType({})
    ) -> bool:
        if not variant.guards:
            return True
        numbers = [
            given[name] if name in given else self._numbers[name].item() for name in variant.numbers
        ]
        return all(holds(guard, numbers) for guard in variant.guards)

    def _run(
        self,
        variant: Variant,
        tensors: Sequence[torch.Tensor],
        numbers: Mapping[str, float] = MappingProxyType({}),
    ) -> list[torch.Tensor]:
        """Run on the tensors of a call. numbers: its floats that are inputs, by name.

        Raises:
            ValueError: the program updates one of two tensors that share memory, or a tracer or a mode acts on
                PyTorch's calls.
        """
        if name := recorder() or function_modes():
            raise ValueError(
                f"{self.name}: it is called within {name}, which records or acts on PyTorch's calls; a saved program "
                "makes none that it would see"
            )
        if (problem := variant.clash(tensors)) is not None:
            raise ValueError(f"{self.name}: {problem}")
        arguments: Any = variant.arguments.copy()
        copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        for at, (kind, where) in enumerate(variant.sources):
            if kind != "input":
                continue
            tensor = tensors[where]
            strides = variant.inputs[where].strides_for(tensor)
            if tensor.numel() > 1 and tensor.stride() != strides:
                dense = torch.empty_strided(
                    tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
                )
                dense.copy_(tensor.detach())
                if at in variant.written:
                    copied.append((tensor, dense))
                tensor = dense
            arguments[at] = tensor
        assert variant.run is not None
        with self._lock:
            for name, value in numbers.items():
                self._numbers[name].fill_(value)
            if variant.size is not None:
                arguments[variant.size_at].fill_(variant.size_of(tensors))
            run: Any = variant.run
            run.done = False
            try:
                if any(kind == "rng" for kind, _ in variant.sources):
                    self._seeds.draw()
                results = run(arguments)
            except BaseException:
                if not run.done:
                    self._seeds.undo()
                    raise
                with held():
                    self._ran()
                raise
            with held():
                self._ran()
        with torch.no_grad():
            for tensor, dense in copied:
                tensor.copy_(dense)
        return results

    def _ran(self) -> None:
        """Count a step, and step the schedulers."""
        self._seeds.keep()
        state = self._weights["state"]
        state["graph.step"] = state.get("graph.step", 0) + 1
        if any(self._schedulers):
            self._schedule()

    def _schedule(self) -> None:
        """Step the schedulers, which read and write the parameter groups in the state."""
        state = self._weights["state"]
        in_groups = [
            (entry["where"], self._numbers[name])
            for name, entry in self._weights["numbers"].items()
            if entry["where"] is not None and entry["where"][1] == "param_groups"
        ]
        for where, tensor in in_groups:
            _put(state, where, tensor.item())
        for n, scheduler in enumerate(self._schedulers):
            if scheduler is not None:
                scheduler.step()
                state[f"graph.lr_scheduler.{n}"] = scheduler.state_dict()
        for where, tensor in in_groups:
            tensor.fill_(_at(state, where))

    # state

    @property
    def numbers(self) -> dict[str, float]:
        """Learning rates, other hyperparameters and counters of the optimizers, by their names."""
        return {name: tensor.item() for name, tensor in self._numbers.items()}

    def set_number(self, name: str, value: float) -> None:
        """Set one of `numbers`, e.g. `optimizer.0.group0.lr`.

        Raises:
            KeyError: there is none of that name.
        """
        if name not in self._numbers:
            known = ", ".join(self._numbers) or "none"
            raise KeyError(f"{self.name} has no number {name!r}; known: {known}")
        self._numbers[name].fill_(value)

    def synchronize(self) -> None:
        """Wait until all calls have run; on the CPU they have."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state_dict(self) -> OrderedDict[str, Any]:
        """The state as `Graph.state_dict()` gives it, to go on with in a graph of the same kind.

        Raises:
            ValueError: the graph was saved frozen, without the parameters as they were.
        """
        if self.frozen:
            raise ValueError(
                f"{self.name} was saved frozen: what was computed of its parameters is there, not the parameters. Save "
                "the graph with frozen=False for its state"
            )
        with self._lock:
            self._refresh()
            state: OrderedDict[str, Any] = self._weights["state"]
            return OrderedDict(state)

    def _refresh(self) -> None:
        """Copy state that programs keep in their arguments into the state dict."""
        state = self._weights["state"]
        for name, entry in self._weights["numbers"].items():
            if entry["where"] is not None:
                for where in (entry["where"], *entry.get("also", ())):
                    _put(state, where, self._numbers[name].item())
        scaler = state.get("graph.grad_scaler")
        extra = self._weights["extra"]
        for key, name in (("scale", "scaler.scale"), ("_growth_tracker", "scaler.growth_tracker")):
            if scaler and key in scaler and name in extra:
                scaler[key] = extra[name].item()
        state["graph.rng"] = self._seeds.state()

    def save(self, path: Path, key: bytes | None = None) -> None:
        """Save it again, with the weights as they are now. `gflow.save` calls this.

        key: signs it.
        """
        with self._lock:
            self._refresh()
            weights = copy.copy(self._weights)
            weights["numbers"] = {
                name: {**entry, "tensor": self._numbers[name]}
                for name, entry in self._weights["numbers"].items()
            }
            manifest = {k: v for k, v in self._bundle.manifest.items() if k not in _WRITTEN}
            bundle = Bundle(manifest, self._bundle.files)
            write: Callable[[Path], None] = lambda file: checkpoint.write(weights, file)  # noqa: E731
            write_bundle(path, bundle, {WEIGHTS: write}, key)

    def __repr__(self) -> str:
        kind = "training graph" if self.training else "graph"
        return f"LoadedGraph({self.name}, {kind}, {len(self._variants)} programs)"


_WRITTEN = ("format", "version", "files", "sha256", "seal")


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _put(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Set an entry of nested dicts, lists and tuples."""
    if isinstance(_at(tree, path[:-1]), tuple):
        items = list(_at(tree, path[:-1]))
        items[path[-1]] = value
        _put(tree, path[:-1], tuple(items))
    else:
        _at(tree, path[:-1])[path[-1]] = value


def _device(target: str) -> torch.device:
    """Where a graph for a target runs.

    Raises:
        ArtifactError: it is not here.
    """
    if target == "cpu":
        return torch.device("cpu")
    try:
        return gpu_for(target).where
    except DeviceError as error:
        raise ArtifactError(f"it was saved for {target}: {error}") from None


def _first(problems: Sequence[str]) -> str:
    more = len(set(problems)) - 1
    if more < 1:
        return problems[0]
    return f"{problems[0]} ({more} other signature{'s do' if more > 1 else ' does'} not fit either)"
