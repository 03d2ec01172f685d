"""Steps of a decoder on ranks of this machine (Gloo): graphs beside PyTorch's DDP and FSDP2, and their simulation.

    python -m benchmarks distributed [--rounds 15] [--seconds 1800] [--size default] [--ways a,b] [--quick] [--json F]
    python -m benchmarks distributed --links
    python -m benchmarks distributed --plan STAGE
    python -m benchmarks distributed --torchtitan

Each way has a process for each rank, with one thread. All live at once, and each way takes two steps in each round
while the others wait, so that other work on the machine meets all alike. The first table has medians over the rounds:
the slowest rank's step, by time and by the processor time of its threads (which other work on the machine hardly
changes), their ratios to those of DDP and FSDP2 in the same round, and memory of the largest rank: its own (anonymous)
pages, at their peak within steps after the second, and at their peak from the start on, compilation included. Both are
less what the process held with all libraries loaded, before the model was made. Ratios of time are for equal numbers of
examples: the pipeline's step has four micro-batches. The tensor-parallel step, of another model, has none.

The second table has the simulated step of each graph beside the measured one: collectives by the times of Gloo in the
same rounds, computations by the rates of the same model's step on one rank.

`--links` measures Gloo's collectives alone. `--plan` simulates one step of GPT-2 small (8 x 1,024 tokens a rank, bf16,
AdamW) under a stage of ZeRO on eight H100 of a node, as `--emit=timeline` does, `--torchtitan` the steps of Llama 3 8B
that torchtitan has published.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.distributed import links
from benchmarks.distributed.clocks import CLOCKS
from benchmarks.distributed.ranks import serve
from benchmarks.distributed.turns import Way
from benchmarks.distributed.ways import ALONE, MICRO_BATCHES, WAYS, Size
from benchmarks.harness import machine

SIZES = {
    "quick": Size(64, 2, 32, 2),
    "default": Size(512, 4, 128, 2),
    "large": Size(1024, 6, 128, 2),
}
MIB = 1 << 20
CLOCK_NAMES = {"time": "step", "processor": "processor time"}
#: by way and clock, of each round
Seconds = dict[str, dict[str, list[float]]]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks distributed", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way")
    parser.add_argument("--seconds", type=float, default=1800.0, help="no round begins after these")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, beside ddp and fsdp2")
    parser.add_argument("--size", choices=SIZES, default="default", help="of the decoder")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--links", action="store_true", help="measure Gloo's collectives alone")
    parser.add_argument(
        "--plan", type=int, metavar="STAGE",
        help="simulate GPT-2 on 8 x H100, ZeRO's stage; run nothing",
    )  # fmt: skip
    parser.add_argument(
        "--torchtitan", action="store_true",
        help="simulate Llama 3 8B on H100s, beside published figures; run nothing",
    )  # fmt: skip
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.quick:
        args.size, args.rounds = "quick", 2
    if args.rank:
        rank, store, name = json.loads(args.rank)
        serve(rank, args.ranks, store, name, SIZES[args.size])
        return 0
    if args.plan is not None or args.torchtitan:
        # only here: the ranks' processes need none of it
        from benchmarks.distributed import plans

        print(plans.torchtitan() if args.torchtitan else plans.planned(args.plan))
        return 0
    chosen = list(dict.fromkeys(["ddp", "fsdp2", *filter(None, args.ways.split(","))]))
    if unknown := [name for name in chosen if name not in WAYS]:
        parser.error(f"no way {unknown[0]!r}; there are {', '.join(WAYS)}")
    found: dict[str, Any] = {"ranks": args.ranks, "size": vars(SIZES[args.size])}
    found["machine"] = machine.describe()
    if args.links:
        chosen = []
    measure(args, chosen, found)
    found["load_at_end"] = round(os.getloadavg()[0], 2)
    print(text_of(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measure(args: argparse.Namespace, chosen: list[str], found: dict[str, Any]) -> None:
    """Add all that is measured, and simulated of graphs, by way."""
    graphs = [name for name in chosen if WAYS[name][0] == "gflow"]
    names = [*chosen, "links", *dict.fromkeys(map(_alone, graphs))]
    ways: dict[str, Way] = {}
    try:
        for name in names:
            # one after the other: kernels are raced while a step is compiled, and the others would disturb that
            ways[name] = Way(name, args.ranks, ["--size", args.size])
            ways[name].wait()
        _turns(args, ways, chosen, found)
    finally:
        for way in ways.values():
            way.end()


def _turns(
    args: argparse.Namespace, ways: dict[str, Way], chosen: list[str], found: dict[str, Any]
) -> None:
    first = {name: max(ways[name].ask(do="peak")) for name in chosen}
    seconds: Seconds = {n: {c: [] for c in CLOCKS} for n in [*chosen, *ALONE] if n in ways}
    gloo: dict[str, list[links.Found]] = {clock: [] for clock in CLOCKS}
    until = time.monotonic() + args.seconds
    done = 0
    while done < args.rounds and (not done or time.monotonic() < until):
        done += 1
        for name, turns in seconds.items():
            by_rank = ways[name].ask(do="steps", count=3)
            for clock in CLOCKS:
                # the first step after the others' has no caches yet
                slowest = [max(steps) for steps in zip(*(rank[clock] for rank in by_rank))][1:]
                turns[clock].append(median(slowest))
        answers = ways["links"].ask(do="links", sizes=links.SIZES)
        for clock in CLOCKS:
            gloo[clock].append(links.slowest([answer[clock] for answer in answers]))
    steady = {name: max(ways[name].ask(do="peak")) for name in chosen}
    found |= {"rounds": done, "ways": {}}
    found["links"] = {clock: links.medians(rounds) for clock, rounds in gloo.items()}
    for name in chosen:
        row = {"step": seconds[name], "peak": first[name], "peak_of_steps": steady[name]}
        batches = MICRO_BATCHES if name == "gflow-pipeline" else args.ranks
        row["examples"] = batches * SIZES[args.size].batch
        if WAYS[name][0] == "gflow":
            row |= ways[name].ask(do="program")[0]
        found["ways"][name] = row
    if chosen:
        for clock in CLOCKS:
            _simulate(found, ways, {name: turns[clock] for name, turns in seconds.items()}, clock)


def _alone(name: str) -> str:
    """The way of one rank that has the model of a graph's way."""
    return "alone-tp" if name == "gflow-tp" else "alone"


def _simulate(
    found: dict[str, Any], ways: dict[str, Way], seconds: dict[str, list[float]], clock: str
) -> None:
    """Add the simulated step of each graph, by what a clock has measured. Processor time has no bubble."""
    # only here: measuring links alone needs no compiler
    from benchmarks.distributed import prediction

    network = links.network_of(found["links"][clock], found["ranks"])
    numbers = prediction.as_numbers(network)
    factors: dict[str, dict[str, float]] = {}
    for name in ALONE.keys() & ways.keys():
        rows = ways[name].ask(do="rates")
        rates = {key: median(row[key] for row in rows) for key in rows[0]}
        alone = ways[name].ask(do="predict", factors=rates, network=numbers)[0]["seconds"]
        scale = median(seconds[name]) / alone
        factors[name] = {key: rate * scale for key, rate in rates.items()}
        found.setdefault("alone", {}).setdefault(name, {})[clock] = {
            "step": seconds[name], "slower": factors[name],
        }  # fmt: skip
    for name, row in found["ways"].items():
        pipeline = name == "gflow-pipeline"
        if WAYS[name][0] != "gflow":
            continue
        rates = factors[_alone(name)]
        answers = ways[name].ask(do="predict", factors=rates, network=numbers)
        if pipeline and clock == "processor":
            line = prediction.work_of_pipeline(answers, network)
        else:
            line = prediction.of_pipeline(answers, network) if pipeline else answers[0]
        row.setdefault("simulated", {})[clock] = line


def text_of(found: dict[str, Any]) -> str:
    """The tables."""
    ranks, ways = found["ranks"], found["ways"]
    lines = [f"{ranks} ranks, Gloo, one thread each; medians of {found['rounds']} rounds"]
    lines[0] += f"; load {found['machine']['load_at_start']} to {found['load_at_end']}"
    for clock, gloo in found["links"].items():
        network = links.network_of(gloo, ranks)
        lines += ["", f"Gloo, {CLOCK_NAMES[clock]}", links.text_of(gloo, network, ranks)]
    return "\n".join(lines + (_beside(ways) + _simulated(ways) if ways else []))


def _beside(ways: dict[str, Any]) -> list[str]:
    head = f"{'':16}"
    for clock in CLOCKS:
        head += f"{CLOCK_NAMES[clock]:>17}{'of DDP':>8}{'of FSDP2':>10}"
    head += f"{'peak of steps':>15}{'of FSDP2':>10}{'whole peak':>12}{'of FSDP2':>10}{'sent':>11}"
    lines = ["", head]
    for name, row in ways.items():
        text = f"{name:16}"
        for clock, turns in row["step"].items():
            text += f"{1e3 * median(turns):>14.1f} ms"
            for peer, width in (("ddp", 8), ("fsdp2", 10)):
                examples = ways[peer]["examples"] / row["examples"]
                ratio = median(a / b for a, b in zip(turns, ways[peer]["step"][clock])) * examples
                text += f"{'':{width}}" if name == "gflow-tp" else f"{ratio:>{width}.2f}"
        for key, width in (("peak_of_steps", 11), ("peak", 8)):
            text += f"{row[key] / MIB:>{width}.0f} MiB{row[key] / ways['fsdp2'][key]:>10.2f}"
        lines.append(text + (f"{row['sent'] / MIB:>7.1f} MiB" if row.get("sent") else ""))
    return lines


def _simulated(ways: dict[str, Any]) -> list[str]:
    lines = []
    for clock in CLOCKS:
        lines += ["", f"{CLOCK_NAMES[clock]:16}{'measured':>11}{'simulated':>12}{'error':>8}"]
        lines[-1] += f"{'collectives':>14}"
        for name, row in ways.items():
            if line := row.get("simulated", {}).get(clock):
                took = median(row["step"][clock])
                error = 100 * (line["seconds"] / took - 1)
                lines.append(
                    f"{name:16}{1e3 * took:>8.1f} ms{1e3 * line['seconds']:>9.1f} ms{error:>+6.0f} %"
                    f"{1e3 * line['waiting']:>11.1f} ms"
                )
    return lines
