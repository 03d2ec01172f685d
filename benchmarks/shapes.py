"""Shapes that change at each call: `torch.compile(backend="gflow")` ("gflow"), `gflow.compile` ("compile") and, for the
encoder, an `nn.Graph` of the whole step ("graph") beside eager and TorchInductor.

    python -m benchmarks shapes [--items NAME,…] [--peers eager,gflow,compile,graph,inductor] [--rounds 7] [--json FILE]

`encoder-training`, `encoder-inference`: a TransformerEncoder of two layers over 22 lengths, an epoch at a time.
`generate-CACHE-HOW`: GPT-2 (six layers, width 256) generates 64 tokens, its cache growing or static, greedy or sampled;
compiled with `dynamic=True`.

Peers take turns; times are medians of whole epochs or generations once each peer has compiled, `cpu` the processor
time of the process, and ratios are medians of pairs beside eager. `compiled` is how many graphs TorchDynamo gave to the
backend in two epochs or generations, and `programs` how many programs gflow made: of them in the first one, through
`gflow.compile` in both, but for those of calls that TorchDynamo divides. Results are compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import gflow
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import table
from benchmarks.workloads.third_party import declare_torchvision_ops

LENGTHS = tuple(range(8, 74, 3))
TOKENS = 64
HEAD = (
    "item",
    "peer",
    "first s",
    "compiled",
    "programs",
    "ms",
    "of eager",
    "cpu of eager",
    "error",
)

Epoch = Callable[[], torch.Tensor]


class _Programs(logging.Handler):
    """How many programs gflow has made."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "is compiled for" in record.getMessage()


@dataclass
class Counts:
    """graphs: how many TorchDynamo gave to a backend. function: what `gflow.compile` made."""

    graphs: int = 0
    function: Any = None


def compiled(
    function: Callable[..., Any], peer: str, counts: Counts, dynamic: bool | None = None
) -> Callable[..., Any]:
    """The function, or what a peer makes of it. dynamic: whether sizes vary from the start."""
    if peer == "eager":
        return function
    if peer == "compile":
        counts.function = gflow.compile(function)
        return counts.function  # type: ignore[no-any-return]
    # TorchDynamo's registry of backends is loaded by who needs it
    from torch._dynamo.backends.registry import lookup_backend

    backend = lookup_backend(peer)

    def counting(module: Any, inputs: Any, **kwargs: Any) -> Any:
        counts.graphs += 1
        return backend(module, inputs, **kwargs)

    return torch.compile(function, backend=counting, dynamic=dynamic)


class Whole(gflow.nn.Graph):
    """A model's inference, or a training step: forward, backward and update in one program."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        super().__init__()
        self.model, self.training_step = model, optimizer is not None
        if optimizer is not None:
            self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training_step:
            return self.model(x).sum()  # type: ignore[no-any-return]
        loss = self.model(x).square().mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]


def encoder(peer: str, counts: Counts, training: bool) -> Epoch:
    """An epoch of a TransformerEncoder; its result tells of all steps."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    batches = [torch.randn(4, length, 64) for length in LENGTHS]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if peer == "graph":
        counts.function = whole = Whole(model, optimizer if training else None)
        return lambda: torch.stack([whole(x) for x in batches])
    run = compiled(model, peer, counts)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def epoch() -> torch.Tensor:
        if training:
            return torch.stack([step(x) for x in batches])
        with torch.no_grad():
            return torch.stack([run(x).sum() for x in batches])

    return epoch


def generate(peer: str, counts: Counts, cache: str, sample: bool) -> Epoch:
    """64 tokens of GPT-2."""
    declare_torchvision_ops()
    # the library is loaded by who measures it
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=6, n_embd=256, n_head=8, vocab_size=1000, n_positions=256, bos_token_id=0, eos_token_id=None
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.disable_compile = True  # what is compiled is the peer's
    model.forward = compiled(model.forward, peer, counts, dynamic=True)
    prompt = torch.randint(0, 1000, (1, 12))
    options = {"cache_implementation": "static"} if cache == "static" else {}

    def run() -> torch.Tensor:
        torch.manual_seed(1)
        return model.generate(prompt, max_new_tokens=TOKENS, do_sample=sample, **options)

    return run


ITEMS: dict[str, Callable[[str, Counts], Epoch]] = {
    "encoder-training": lambda p, c: encoder(p, c, True),
    "encoder-inference": lambda p, c: encoder(p, c, False),
} | {
    f"generate-{cache}-{how}": lambda p, c, cache=cache, how=how: generate(
        p, c, cache, how == "sampled"
    )
    for cache in ("growing", "static")
    for how in ("greedy", "sampled")
}


def measure(name: str, peers: list[str], rounds: int) -> dict[str, Any]:
    """Times of one item."""
    log, programs = logging.getLogger("gflow"), _Programs()
    log.addHandler(programs)
    log.setLevel(logging.INFO)
    torch._dynamo.reset()
    if name.startswith("generate"):
        peers = [p for p in peers if p != "graph"]
    rows: dict[str, Any] = {}
    epochs: dict[str, Epoch] = {}
    first: dict[str, torch.Tensor] = {}
    for peer in peers:
        counts = Counts()
        programs.count = 0
        epochs[peer] = ITEMS[name](peer, counts)
        start = time.perf_counter()
        first[peer] = epochs[peer]()
        rows[peer] = {
            "first_s": time.perf_counter() - start,
            "graphs": counts.graphs,
            "programs": programs.count if peer == "gflow" else None,
            "error": (first[peer] - first["eager"]).abs().max().item(),
        }
        epochs[peer]()
        rows[peer]["graphs_in_all"] = counts.graphs
        if counts.function is not None:
            rows[peer]["programs"] = len(counts.function.explain_recompiles())
    log.removeHandler(programs)
    seconds: dict[str, list[tuple[float, float]]] = {p: [] for p in peers}
    for k in range(rounds):
        for peer in peers[:: -1 if k % 2 else 1]:
            start, cpu = time.perf_counter(), time.process_time()
            epochs[peer]()
            seconds[peer].append((time.perf_counter() - start, time.process_time() - cpu))
    for peer, row in rows.items():
        pairs = list(zip(seconds[peer], seconds["eager"], strict=True))
        row["ms"] = 1e3 * median(wall for wall, _ in seconds[peer])
        row["ratio"] = median(a[0] / b[0] for a, b in pairs)
        row["cpu_ratio"] = median(a[1] / b[1] for a, b in pairs)
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks shapes", description=__doc__)
    parser.add_argument("--items", default=",".join(ITEMS))
    parser.add_argument("--peers", default="eager,gflow,compile,graph,inductor")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    peers = args.peers.split(",")
    if "eager" not in peers:
        parser.error("all peers are measured beside eager")
    result: dict[str, Any] = {"machine": machine.describe(), "rounds": args.rounds, "rows": {}}
    lines: list[tuple[str, ...]] = []
    for name in args.items.split(","):
        note(name)
        found = result["rows"][name] = measure(name, peers, args.rounds)
        for peer, row in found.items():
            lines.append(
                (
                    name,
                    peer,
                    f"{row['first_s']:.1f}",
                    str(row["graphs_in_all"]),
                    "" if row["programs"] is None else str(row["programs"]),
                    f"{row['ms']:.1f}",
                    f"{row['ratio']:.2f}",
                    f"{row['cpu_ratio']:.2f}",
                    f"{row['error']:.0e}",
                )
            )
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(HEAD, lines))
    return 0
