"""The engines beside gflow's own code: the same graphs by our kernels, XLA, ONNX Runtime and OpenVINO, in turn.

    python -m benchmarks engines [--models mlp,decoder] [--engines own,xla,onnxruntime,openvino] [--training]
                                 [--importers] [--freeze] [--double] [--clock wall|processor] [--rounds N]
                                 [--threads N] [--quick] [--json FILE]

Each engine runs in the graph that its switch makes (`enable_xla_jit()`, …), on copies of the same parameters and the
same inputs: forwards in evaluation mode by default, whole training steps with `--training` (our code and XLA alone, the
others run no training). What is timed is a call of the graph, so what gflow does around a region, copies of results
too, is in it. Figures are medians of rounds in which all take turns; a ratio is the median of the rounds' ratios to our
own code, below 1 where the engine is faster. The first call is in seconds; it traces, compiles and runs: with
`GFLOW_CACHE=0` in the environment it takes nothing from the cache on disk.

`difference` is the largest to our own results, of the largest element; of training the losses of all steps together,
20 unless `--rounds` says otherwise.
`regions` are the parts that the engine runs; `kept` counts ops that stayed with gflow, but for checks of values and
what only they need. An engine that is not installed is left out, and named. XLA takes all cores, whatever `--threads`
says; the others take as many threads as PyTorch. With `--freeze` weights are constants (`config.freeze()`), as they are
for the tools of ONNX Runtime and OpenVINO. `--double` has parameters and inputs in float64: what differs in float32 by
rounding agrees there, what is computed otherwise does not.

`--importers` runs forwards by the engines' own tools beside, on the same model: XLA on the StableHLO that `flow.save`
writes, its arguments made beforehand; ONNX Runtime on the file of `torch.onnx.export`; OpenVINO by `convert_model`.
`x importer` is how fast an engine in gflow is beside its own tool, the median of the rounds' ratios: above 1 it is
faster. `--clock processor` counts the time that all threads of the process work, which other work on the machine does
not change as much.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import gflow as flow
from benchmarks.frozen import ENGINES as IMPORTERS
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import number, table
from benchmarks.workloads.items import ITEMS, Work, loss_of, make_work
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

#: rounds of forwards; of training steps, which with the first call are 20
ROUNDS = {False: 15, True: 19}
#: what the columns of ratios mean, printed below the table
RATIOS = (
    "x own: time of the engine / time of our own code, below 1 where the engine is faster",
    "x importer: time of the engine's own tool / time of the engine in gflow, above 1 where gflow is faster",
)
#: by name the switch of a graph's configuration
SWITCHES = {
    "own": "",
    "xla": "enable_xla_jit",
    "onnxruntime": "enable_onnxruntime",
    "openvino": "enable_openvino",
}
TRAINS = ("own", "xla")
MODELS = [item.name for item in ITEMS.values() if item.kind == "training"]
HEAD = (
    "model",
    "engine",
    "ms",
    "x own",
    "x importer",
    "first call s",
    "difference",
    "regions",
    "kept",
)
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Step(flow.nn.Graph):
    """A training step, or a forward, with an engine switched on or none."""

    def __init__(self, work: Work, engine: str, training: bool, freeze: bool) -> None:
        super().__init__()
        self.config.freeze(freeze)
        self.model, self.training_step = work.module, training
        if training:
            assert work.optimizer is not None
            self.add_optimizer(work.optimizer)
        if SWITCHES[engine]:
            getattr(self.config, SWITCHES[engine])()

    def build(self, *args: Tensor) -> Tensor:
        if not self.training_step:
            return self.model(*args)
        loss = loss_of(self.model(*args[:-1]), args[-1])
        loss.backward()
        return loss


class Runner:
    """One engine on one model. first: seconds of the first call. found: results to be compared."""

    def __init__(
        self, name: str, engine: str, training: bool, quick: bool, clock: Callable[[], float],
        freeze: bool = False, double: bool = False,
    ) -> None:  # fmt: skip
        self.clock = clock
        work = make_work(name, quick)  # the same parameters and inputs for each engine
        if double:
            work.module.double()
            inputs = [x.double() if x.is_floating_point() else x for x in work.inputs]
            work = replace(work, inputs=tuple(inputs))
        work.module.train(training)
        self.inputs = work.inputs if training else work.inputs[:-1]
        self.training = training
        self.module, self.graph = work.module, Step(work, engine, training, freeze)
        self.run: Callable[..., Tensor] = self.graph
        start = time.perf_counter()
        self.found = [self._call()]
        self.first = time.perf_counter() - start

    def _call(self) -> Tensor:
        with torch.set_grad_enabled(self.training):
            return self.run(*self.inputs).detach().clone()

    def time(self, budget: float) -> float:
        """Seconds of a call: forwards as many as fit in a budget, their mean; one training step, its loss kept."""
        start, count = self.clock(), 0
        while count == 0 or (not self.training and self.clock() - start < budget):
            with torch.set_grad_enabled(self.training):
                out = self.run(*self.inputs)
            count += 1
        taken = (self.clock() - start) / count
        if self.training:
            self.found.append(out.detach().clone())
        return taken

    def regions(self) -> tuple[int, int]:
        """How many the engine runs, and how many ops stayed with gflow."""
        report = self.graph.explain()
        kept = [s for s in report.stayed if s.op != "check" and "a check of values" not in s.why]
        return len(report.engines), sum(s.times for s in kept)


class Imported(Runner):
    """An engine by its own tool, on the module of one of ours."""

    def __init__(self, engine: str, own: Runner) -> None:
        self.clock, self.training, self.inputs = own.clock, False, own.inputs
        start = time.perf_counter()
        with torch.no_grad():
            self.run = (
                _by_xla(own) if engine == "xla" else IMPORTERS[engine](own.module, own.inputs)
            )
        self.found = [self._call()]
        self.first = time.perf_counter() - start

    def regions(self) -> tuple[int, int]:
        return 1, 0


def _by_xla(own: Runner) -> Callable[..., Tensor]:
    """XLA on the file of a graph; arguments that stay are made once."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.stablehlo"
        flow.save(own.graph, path, format="stablehlo")
        code = load_code("xla", path.read_bytes())
        with safe_open(f"{path}.safetensors", "pt") as file:
            names = json.loads(file.metadata()["arguments"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    weights = [tensors[name] for name in names if name in tensors]

    def run(*inputs: Tensor) -> Tensor:
        given, kept = iter(inputs), iter(weights)
        return code.run([next(kept if n in tensors else given) for n in names], [None])[0]

    return run


def difference(found: list[Tensor], want: list[Tensor]) -> float:
    """The largest, of the largest element."""
    pairs = list(zip(found, want, strict=True))
    largest = max(float(w.abs().max()) for _, w in pairs)
    return max(float((f - w).abs().max()) for f, w in pairs) / largest


def measure(
    name: str, engines: list[str], training: bool, rounds: int, budget: float, quick: bool,
    importers: bool = False, clock: str = "wall", freeze: bool = False, double: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """By engine milliseconds, ratios to our own code and the engine's tool, seconds of the first call, differences,
    regions and kept ops."""
    made: dict[str, Runner] = {}
    for engine in engines:
        note(f"{name}: {engine}")
        made[engine] = Runner(
            name, engine, training, quick, CLOCKS[clock], freeze and engine != "xla", double
        )
    for engine in engines if importers else []:
        if engine != "own":
            note(f"{name}: {engine} by its own tool")
            made[f"{engine}'s own tool"] = Imported(engine, made["own"])
    times: dict[str, list[float]] = {engine: [] for engine in made}
    for _ in range(rounds):
        for engine, runner in made.items():
            times[engine].append(runner.time(budget))
    rows = {}
    for engine, runner in made.items():
        regions, kept = runner.regions()
        if engine != "own" and not regions:
            raise RuntimeError(f"{engine} runs no part of {name}: nothing is compared")
        rows[engine] = {
            "ms": 1e3 * median(times[engine]),
            "ratio": median(t / own for t, own in zip(times[engine], times["own"])),
            "importer": None
            if (tool := times.get(f"{engine}'s own tool")) is None
            else median(theirs / t for t, theirs in zip(times[engine], tool)),
            "first_call_s": runner.first,
            "difference": difference(runner.found, made["own"].found),
            "regions": regions,
            "kept": kept,
        }
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks engines")
    add = parser.add_argument
    add("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}, separated by commas")
    add("--engines", default=",".join(SWITCHES), help="beside our own code, which always runs")
    add("--importers", action="store_true", help="each engine by its own tool beside")
    add("--clock", choices=[*CLOCKS], default="wall", help="what a time is")
    add("--freeze", action="store_true", help="weights are constants, but for XLA")
    add("--double", action="store_true", help="parameters and inputs in float64")
    add("--training", action="store_true", help="training steps, of our own code and XLA")
    add("--rounds", type=int, help="samples of each engine, taken in turn: 15, of training 19")
    add("--seconds", type=float, default=0.1, help="of each engine in a round, forwards alone")
    add("--threads", type=int, help="PyTorch's threads, and the engines' but XLA's")
    add("--quick", action="store_true", help="small sizes and few rounds: does it run?")
    add("--json", type=Path, help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    wanted = args.engines.split(",")
    for kind, given, known in (
        ("model", args.models.split(","), MODELS),
        ("engine", wanted, list(SWITCHES)),
    ):
        if unknown := [n for n in given if n not in known]:
            parser.error(f"no {kind} {unknown[0]!r}; there are {', '.join(known)}")
    if args.threads:
        torch.set_num_threads(args.threads)
    engines = ["own"]
    for engine in dict.fromkeys(wanted):
        if engine == "own" or (args.training and engine not in TRAINS):
            continue
        if available(engine):
            engines.append(engine)
        else:
            note(f"{engine} is not installed: left out")
    rounds = args.rounds or (2 if args.quick else ROUNDS[args.training])
    budget = 0.0 if args.quick else args.seconds
    what = "training step" if args.training else "forward"
    result: dict[str, Any] = {"machine": machine.describe(), "quick": args.quick, "rounds": rounds}
    result |= {"clock": args.clock, "freeze": args.freeze, "double": args.double}
    result |= {"work": what, "threads": torch.get_num_threads(), "rows": {}}
    lines: list[tuple[str, ...]] = []
    for name in args.models.split(","):
        rows = measure(
            name, engines, args.training, rounds, budget, args.quick,
            args.importers and not args.training, args.clock, args.freeze and not args.training,
            args.double,
        )  # fmt: skip
        result["rows"][name] = rows
        for engine, row in rows.items():
            figures = (
                number(row["ms"], 2),
                number(row["ratio"], 2),
                "" if row["importer"] is None else number(row["importer"], 2),
                number(row["first_call_s"], 2),
            )
            counts = (str(row["regions"]), str(row["kept"]))
            lines.append((name, engine, *figures, f"{row['difference']:.1e}", *counts))
        if args.json:  # after every model: a long run that is stopped keeps what it has
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    found = result["machine"]
    on = f"{found['processor']}, {result['threads']} threads"
    print(f"{what}; {on}, {args.clock} time; torch {found['versions']['torch']}; {found['date']}")
    if args.quick:
        print("--quick: small sizes, so these numbers compare nothing")
    print(table(HEAD, lines))
    if args.training:
        print(
            f"difference: of the losses of {rounds + 1} steps, to our own, relative to the largest"
        )
    print("\n".join(RATIOS[: 1 + any(row[4] for row in lines)]))
    return 0
