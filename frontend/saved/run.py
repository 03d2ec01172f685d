"""`gflow-run DIR --input x.npy --output y.npy`: run a saved graph on numpy files."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gflow.runtime.stored import atomic
from gflow.runtime.stored.bundle import ArtifactError
from gflow.runtime.stored.loaded_graph import LoadedGraph

from .saving import load_saved


class UsageError(Exception):
    """The command's arguments do not fit the graph."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command `gflow-run`. Returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        graph = load_saved(Path(options.graph), native=options.native, key=options.key)
        if options.info or not (options.input or options.output or options.repeat):
            print(describe(graph))
            return 0
        run(graph, options)
    except (ArtifactError, UsageError, OSError, MemoryError) as error:
        print(f"gflow-run: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gflow-run",
        description="Run a graph that gflow.save(graph, DIR) wrote, on numpy files.",
    )
    add = parser.add_argument
    add("graph", metavar="DIR", help="the saved graph")
    add("--input", action="append", default=[], metavar="[NAME=]FILE.npy",
        help="an input, by its name or the next one; once for each")  # fmt: skip
    add("--output", action="append", default=[], metavar="[NAME=]FILE.npy",
        help="where to write an output, by its name or the next one")  # fmt: skip
    add("--key", metavar="FILE",
        help="a file with the key that the graph must be signed with; it is refused if it is not")  # fmt: skip
    add(
        "--no-native",
        dest="native",
        action="store_false",
        help="run no code that is stored: compile the graph's IR here, which takes gflow's compiler",
    )
    add("--info", action="store_true", help="print the graph's inputs and outputs, and do nothing")
    add("--repeat", type=int, default=0, metavar="N", help="run N times more and print the times")
    add("--threads", type=int, default=0, metavar="N", help="threads to run on")
    return parser


def run(graph: LoadedGraph, options: Any) -> None:
    """Run the graph once, write the outputs, and measure.

    Raises:
        UsageError: inputs or outputs do not fit, or the graph refuses values in them.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    paths = _named(options.input, [i.name for i in graph.inputs], "input")
    targets = _named(options.output, [o.name for o in graph.outputs], "output")
    inputs = {name: _read(Path(path)).to(graph.device) for name, path in paths.items()}
    try:
        results = graph.run_named(inputs)
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        # inputs that do not fit, and errors of PyTorch's ops about their values, of any type
        raise UsageError(error.args[0]) from None
    for name, path in targets.items():
        _write(Path(path), results[name])
    if options.repeat > 0:
        print(_measure(graph, inputs, options.repeat))


def describe(graph: LoadedGraph) -> str:
    """A graph's signature, as text."""
    versions = ", ".join(f"{k} {v}" for k, v in graph.versions.items() if v)
    lines = [f"{graph.name}: {'training graph' if graph.training else 'graph'} ({versions})"]
    for n, (inputs, outputs) in enumerate(graph.signatures):
        if len(graph.signatures) > 1:
            lines.append(f"program {n}")
        lines += [f"  input   {info}" for info in inputs]
        lines += [f"  output  {info}" for info in outputs]
    return "\n".join(lines)


def _named(given: Sequence[str], names: list[str], what: str) -> dict[str, str]:
    """Files given as `NAME=FILE`, and other files in the order of the remaining names."""
    found: dict[str, str] = {}
    unnamed = []
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            unnamed.append(text)
        elif name not in names:
            raise UsageError(f"there is no {what} {name!r}; known: {', '.join(names)}")
        else:
            found[name] = path
    left = [name for name in names if name not in found]
    if len(unnamed) > len(left):
        raise UsageError(f"{len(given)} {what}s were given; the graph has {len(names)}")
    return {**found, **dict(zip(left, unnamed))}


def _read(path: Path) -> torch.Tensor:
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{path} holds several arrays; one in a .npy file was expected")
        return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    except (ValueError, EOFError, TypeError, SyntaxError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is no .npy file of a tensor: {reason}") from None


def _write(path: Path, tensor: torch.Tensor) -> None:
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:  # NumPy has no such dtype; float32 represents its values
        plain = plain.float()
    with atomic.new_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, plain.numpy(), allow_pickle=False)


def _measure(graph: LoadedGraph, inputs: dict[str, torch.Tensor], repeat: int) -> str:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        graph.run_named(inputs)
        graph.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    median = statistics.median(times)
    last = times[min(len(times) - 1, int(0.95 * len(times)))]
    return (
        f"{repeat} runs: median {median:.3f} ms, least {times[0]:.3f} ms, 95 % under {last:.3f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
