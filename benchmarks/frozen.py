"""Frozen inference beside eager and torch.compile with freezing: `python -m benchmarks frozen`.

    python -m benchmarks frozen [--models NAME,…] [--rounds 15] [--quick] [--no-compile] [--json FILE]

All run in one process, in turn, on equal inputs; times are medians, ratios those of rounds. `decode` is GPT-2 small:
each call computes one token, with caches as arguments. It also runs with weights of 8 and 4 bits. The bytes of weights
that are read in a second stand beside those that a copy moves (both directions counted). ONNX Runtime and OpenVINO take
part where they are installed, by PyTorch's exporter and by OpenVINO's importer, but not in decoding: their models don't
update arguments.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import gflow
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import table
from benchmarks.workloads.cached_decoder import CachedDecoder
from benchmarks.workloads.networks import Bert, ResNet18, ResNet50
from examples.mobilenet_v2 import MobileNetV2
from gflow.runtime.engines.packages import available

HEAD = ("model", "peer", "ms", "ratio to eager", "weights GB/s")
_COPY = 1 << 26


class Infer(gflow.nn.Graph):
    """A module, frozen or not."""

    def __init__(self, module: nn.Module, freeze: bool, weights: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.config.freeze(freeze, weights=weights)

    def build(self, *inputs: torch.Tensor) -> Any:
        return self.module(*inputs)


def _images(module: nn.Module, size: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.randn(1, 3, size, size),)


def _decoder(quick: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    sizes = (2, 64, 2, 500, 32) if quick else (12, 768, 12, 50257, 256)
    module = CachedDecoder(*sizes)
    return module, (torch.tensor([7]), torch.tensor([20]), *module.caches())


def _bert(quick: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    module = Bert(2, 64, 2, 500, 32) if quick else Bert()
    tokens = torch.randint(1, 500, (1, 16 if quick else 128))
    return module, (tokens, torch.ones(tokens.shape, dtype=torch.bool))


MODELS: dict[str, Callable[[bool], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "resnet18": lambda quick: _images(ResNet18(10), 32 if quick else 128),
    "resnet50": lambda quick: _images(ResNet50(), 32 if quick else 224),
    "bert": _bert,
    "mobilenet_v2": lambda quick: _images(MobileNetV2(10), 32 if quick else 128),
    "decode": _decoder,
}


def _compiled(module: nn.Module) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(module, options={"freezing": True})


def _onnx_runtime(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """ONNX Runtime on the file that PyTorch exports, with as many threads."""
    import onnxruntime

    names = [f"x{n}" for n in range(len(inputs))]
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # this exporter is PyTorch's older one
        path = Path(folder) / "model.onnx"
        torch.onnx.export(module, inputs, path, input_names=names, dynamo=False)
        data = path.read_bytes()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(*given: torch.Tensor) -> torch.Tensor:
        feed = {name: x.numpy() for name, x in zip(names, given)}
        return torch.from_numpy(session.run(None, feed)[0])

    return run


def _openvino(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """OpenVINO by its importer, in float32, with as many threads."""
    import openvino

    given = inputs if len(inputs) > 1 else inputs[0]
    model = openvino.convert_model(module, example_input=given)
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(model, "CPU", options)

    def run(*given: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(compiled([x.numpy() for x in given])[0])

    return run


#: packages that take part where they are installed
ENGINES = {"onnxruntime": _onnx_runtime, "openvino": _openvino}


def _seconds(run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> float:
    start = time.perf_counter()
    run(*inputs)
    return time.perf_counter() - start


def measure(name: str, rounds: int, quick: bool, compiled: bool = True) -> dict[str, Any]:
    """The times of one model."""
    torch.manual_seed(0)
    module, inputs = MODELS[name](quick)
    module.eval().requires_grad_(False)
    peers: dict[str, Callable[..., Any]] = {
        "eager": module,
        **({"compile, freezing": _compiled(copy.deepcopy(module))} if compiled else {}),
        "gflow": Infer(module, False),
        "gflow frozen": Infer(module, True),
    }
    if name != "decode":
        peers |= {
            engine: make(copy.deepcopy(module), inputs)
            for engine, make in ENGINES.items()
            if available(engine)
        }
    else:
        peers |= {f"gflow {bits}": Infer(module, True, bits) for bits in ("int8", "int4")}
    with torch.no_grad():
        want = module(*inputs)
        for peer, run in peers.items():
            for _ in range(3):
                got = run(*inputs)
            off = ((got - want).norm() / want.norm()).item()
            bound = {"gflow int8": 0.1, "gflow int4": 0.5}.get(peer, 1e-3)
            assert off < bound, f"{name}: {peer} is off by {off:.2g}"
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        for k in range(rounds):
            for peer in [*peers][:: -1 if k % 2 else 1]:
                times[peer].append(_seconds(peers[peer], inputs))
    eager, read = times["eager"], sum(4 * p.numel() for p in module.parameters())
    return {
        peer: {
            "ms": 1e3 * median(found),
            "ratio": median(a / b for a, b in zip(found, eager)),
            "gb_s": read / median(found) / 1e9 if "int" not in peer else None,
        }
        for peer, found in times.items()
    }


def copied(rounds: int) -> float:
    """GB/s that a copy of 256 MiB moves, bytes read and written."""
    x = torch.empty(_COPY)
    y = torch.empty_like(x)
    return 8 * _COPY / min(_seconds(y.copy_, (x,)) for _ in range(rounds)) / 1e9


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks frozen", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rounds = min(args.rounds, 3) if args.quick else args.rounds
    result: dict[str, Any] = {"machine": machine.describe(), "rounds": rounds, "rows": {}}
    result["copy_gb_s"] = copied(5)
    lines: list[tuple[str, ...]] = []
    for name in args.models.split(","):
        note(name)
        found = result["rows"][name] = measure(name, rounds, args.quick, not args.no_compile)
        for peer, row in found.items():
            speed = "" if row["gb_s"] is None else f"{row['gb_s']:.1f}"
            lines.append((name, peer, f"{row['ms']:.2f}", f"{row['ratio']:.2f}", speed))
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"a copy moves {result['copy_gb_s']:.1f} GB/s")
    print(table(HEAD, lines))
    return 0
