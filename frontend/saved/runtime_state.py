"""`graph.runtime_state_dict()`: a compiled graph as a dict of bytes, in place of a directory.

    {"gflow_version": "0.1.0", "graph_name": "Net_0", "target": "cpu", "training": False,
     "files": {"manifest.json": uint8 tensor, …}}       those that `gflow.save(graph, directory)` writes

It holds machine code, which runs when the dict is loaded and called: load those of people whose programs you would run.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.tracing.context.checked_values import flag
from gflow.tracing.context.location import here


class RuntimeState:
    """Methods of `Graph` that save and load its programs."""

    def enable_save_runtime_state_dict(self, mode: bool = True) -> None:
        """Whether `runtime_state_dict()` may be called. It costs nothing before.

        Raises:
            GraphError: `mode` is no bool.
        """
        state: Any = self._checked()  # type: ignore[attr-defined]
        state.saves_runtime = flag("enable_save_runtime_state_dict", mode)

    def runtime_state_dict(
        self, destination: dict[str, Any] | None = None, with_eager: bool = False
    ) -> dict[str, Any]:
        """The graph's programs with its weights, for `gflow.save` and `load_runtime_state_dict`.

        destination: a dict that takes the entries. with_eager: in OneFlow whether weights of modules are saved; here
        they always are.

        Raises:
            GraphError: `enable_save_runtime_state_dict()` was not called, the graph was not called yet, or it trains:
                `gflow.save(graph, directory)` saves a training graph.
        """
        flag("runtime_state_dict(with_eager=…)", with_eager)
        state: Any = self._checked()  # type: ignore[attr-defined]
        if not state.saves_runtime:
            raise GraphError(
                f"{here()}: runtime_state_dict() needs enable_save_runtime_state_dict(), or "
                "super().__init__(enable_get_runtime_state_dict=True)"
            )
        if state.optimizers:
            raise GraphError(
                f"{here()}: {state.name} has an optimizer; gflow.save(graph, directory) saves training graphs, and "
                "gflow.load(directory) runs them"
            )
        # start-up: few graphs are saved
        from .export import export

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "graph"
            export(self, place, None)
            files = {
                str(f.relative_to(place)): torch.frombuffer(
                    bytearray(f.read_bytes()), dtype=torch.uint8
                )
                for f in sorted(place.rglob("*"))
                if f.is_file() and f.stat().st_size
            }
        found: dict[str, Any] = OrderedDict() if destination is None else destination
        target = state.latest.compiled.program.target
        found.update(
            gflow_version=metadata.version("gflow-compiler"),
            graph_name=state.name,
            target=target,
            files=files,
        )
        return found

    def load_runtime_state_dict(
        self, state_dict: Mapping[str, Any], *, warmup_with_run: bool = True
    ) -> None:
        """Run the programs of a `runtime_state_dict()`: calls of this graph run them, and `build()` is not traced.
        `nn.Graph()` itself can load one. Modules of the graph keep their values, and the programs read and update
        their tensors.

        Args:
            state_dict: the dict.
            warmup_with_run: in OneFlow, whether to run once as a warm-up. Here this call loads all code, and runs
                nothing.

        Raises:
            GraphError: the graph was called already or has an optimizer, `state_dict` is of another kind, or its
                weights do not fit the graph's modules.
            ArtifactError: it is damaged or of a later version.
        """
        flag("load_runtime_state_dict(warmup_with_run=…)", warmup_with_run)
        state: Any = self._checked()  # type: ignore[attr-defined]
        if state.call.called or state.loaded is not None or state.optimizers:
            raise GraphError(
                f"{here()}: load_runtime_state_dict() is for a graph that was not called yet and has no optimizer; "
                "make a new graph"
            )
        files = state_dict.get("files") if isinstance(state_dict, Mapping) else None
        if not isinstance(files, Mapping) or not all(map(_is_inside, files)):
            raise GraphError(
                f"{here()}: load_runtime_state_dict() takes what runtime_state_dict() gave; what state_dict() gave "
                "goes to load_state_dict(). OneFlow's own files are not read"
            )
        # start-up: few graphs are loaded so
        from .saving import load_saved

        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                place = Path(folder) / "graph" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data.cpu().numpy().tobytes())
            loaded = load_saved(Path(folder) / "graph")
        self._share_weights(loaded.state_dict())
        state.name, state.loaded = loaded.name, loaded

    def _share_weights(self, weights: Mapping[str, Any]) -> None:
        """Make the tensors of the graph's modules those of the loaded programs, with the modules' values."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for root, module in self._roots().items():  # type: ignore[attr-defined]
            own = module.state_dict(keep_vars=True)
            for name, tensor in own.items():
                theirs = weights.get(root, {}).get(name)
                if not isinstance(tensor, torch.Tensor):
                    continue
                if not isinstance(theirs, torch.Tensor) or theirs.shape != tensor.shape:
                    raise GraphError(
                        f"{here()}: the runtime state dict has no {root}.{name} of shape {list(tensor.shape)}; it is "
                        "of a graph with other modules"
                    )
                pairs.append((tensor, theirs))
        with torch.no_grad():
            for tensor, theirs in pairs:
                theirs.copy_(tensor)
                tensor.data = theirs

    @staticmethod
    def runtime_state_dict_to(state_dict: Mapping[str, Any], device: str) -> dict[str, Any]:
        """The same dict for a device of the kind that it was made for.

        Raises:
            GraphError: it is of another kind: `gflow.save(graph, directory, target=…)` compiles for another device.
        """
        kind = torch.device(device).type
        target = str(state_dict.get("target", ""))
        if target.partition(":")[0] != kind:
            raise GraphError(
                f"{here()}: the programs are compiled for {target or 'no known target'} and do not run on {device}; "
                "gflow.save(graph, directory, target='cuda:90') compiles a graph for another device"
            )
        return OrderedDict(state_dict)


def _is_inside(name: Any) -> bool:
    path = Path(name) if isinstance(name, str) else Path("/")
    return not path.is_absolute() and ".." not in path.parts
