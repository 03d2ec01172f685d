"""gflow, eager PyTorch and torch.compile on the same work: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, report
from benchmarks.harness.measure import Plan, measure, note
from benchmarks.harness.peers import PEERS
from benchmarks.workloads.items import ITEMS

#: modules here with a `main(argv)` of their own; a command is the last part of its name
MODULES = {
    "compile_time.scaling": "compile time against depth",
    "compile_time.passes": "each pass against the number of ops",
    "fusion": "what fusion saves",
    "frozen": "frozen inference beside torch.compile with freezing; decoding with weights of 8 and 4 bits",
    "dynamic": "one program for a range of batches, beside one for each",
    "shapes": "shapes that change at each call, and caches that grow",
    "memory": "planned memory against eager's",
    "amp": "mixed precision on and off",
    "transformers": "models of the transformers library",
    "break_even": "after how many steps a first call has paid for itself",
    "numerics": "rounding errors of training steps beside eager's",
    "kernels.products": "products of matrices: own, MKL, oneDNN, and the peak",
    "kernels.attention": "attention: own, that of ATen, and written out",
    "engines": "XLA, ONNX Runtime and OpenVINO beside our own code",
    "kernels.linalg": "kernels through upstream's linalg and transform dialects beside our own",
    "kernels.cubins": "kernels of training steps as machine code, without a GPU",
    "kernels.loops": "main loops of kernels by a model of machine code, without a GPU",
    "distributed": "steps on several ranks beside DDP and FSDP2",
    "compile_time.planning": "how long a rank of many plans a step, without the others",
    "gpu": "numerics and times on a GPU (scripts/gpu_check.sh)",
}
COMMANDS = {module.rpartition(".")[2]: module for module in MODULES}


def parse(argv: list[str]) -> tuple[list[str], Plan, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="gflow, eager PyTorch and torch.compile on the same work. Other measurements: "
        + "; ".join(
            f"`python -m benchmarks {name}`: {MODULES[at]}" for name, at in COMMANDS.items()
        ),
        epilog="items: " + "; ".join(f"{item.name}: {item.description}" for item in ITEMS.values()),
    )
    add = parser.add_argument
    add("--models", default="all", help="items by name, separated by commas; all, training, kernel")
    add("--peers", default="eager,compile,gflow", help=f"of {', '.join(PEERS)}")
    add("--rounds", type=int, default=15, help="samples of each peer, taken in turn")
    add("--threads", type=int, help="PyTorch's threads (default: its own choice)")
    add("--json", type=Path, help="write everything that was measured to this file")
    add("--quick", action="store_true", help="small sizes and few rounds: does it run?")
    add("--no-first-call", dest="first_call", action="store_false")
    add("--no-memory", dest="memory", action="store_false")
    add("--busy", action="store_true", help="measure steps also beside a process on one core")
    add("--timeout", type=float, default=1800.0, help="seconds for one measurement")
    args = parser.parse_args(argv)

    names: list[str] = []
    for name in args.models.split(","):
        group = [i.name for i in ITEMS.values() if name in ("all", i.name, i.kind)]
        if not group:
            parser.error(f"no item {name!r}; there are {', '.join(ITEMS)}")
        names += [found for found in group if found not in names]
    peers = args.peers.split(",")
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"no peer {peer!r}; there are {', '.join(PEERS)}")
    rounds = min(args.rounds, 3) if args.quick else args.rounds
    plan = Plan(
        peers,
        rounds,
        args.quick,
        args.first_call,
        args.memory,
        args.busy,
        args.threads,
        args.timeout,
    )
    return names, plan, args.json


def main(argv: list[str]) -> int:
    if argv and argv[0] in COMMANDS:
        return importlib.import_module(f"benchmarks.{COMMANDS[argv[0]]}").main(argv[1:])
    names, plan, path = parse(argv)
    result: dict[str, Any] = {"machine": machine.describe(), "quick": plan.quick}
    result["rounds"], result["rows"] = plan.rounds, []
    for number, name in enumerate(names, 1):
        note(f"[{number}/{len(names)}] {ITEMS[name].description}")
        result["rows"].append({**measure(name, plan), "description": ITEMS[name].description})
        if path:  # after every item: a long run that is stopped keeps what it has
            path.write_text(json.dumps(result, indent=1) + "\n")
    found = result["machine"]
    print(
        f"{found['processor']}, {found['cores']} cores, {found['threads']} threads, "
        f"{found['simd']}; torch {found['versions']['torch']}; {found['date']}"
    )
    if plan.quick:
        print("--quick: small sizes, so these numbers compare nothing")
    print(report.render(result["rows"]))
    return 1 if report.failed(result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
