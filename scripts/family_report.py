"""Run the architectures of libraries, small and with random weights, in gflow and eagerly.

python scripts/family_report.py run OUT.jsonl [--library NAME] [--only TEXT] [--seed N] [--seconds 240] [--most N]
python scripts/family_report.py write OUT.jsonl... [--out docs/model_families.md]

Libraries: transformers, timm, torchvision, torch_geometric and diffusers. Each architecture runs in a process of its
own: inference and three steps of SGD through `gflow.compile` and through `nn.Graph`, compared with eager: outputs,
losses, and what each parameter changed by. Architectures come in a random order, so that what ran is a sample.
OUT.jsonl takes a line for each; what it has is not run again. With a checkout of transformers' repository, whose path
is in TRANSFORMERS_CHECKOUT, its architectures are made with the configurations and inputs of the library's own tests.

An update that differs is explained by rounding if eager's own updates differ by a fifth of that or more, with
parameters that differ by rounding, or in float64.
Seconds are of processor time, of one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are made here; nothing is downloaded

from zoo.families import LIBRARIES, Family, families  # noqa: E402

WAYS = ("compile inference", "compile training", "graph inference", "graph training")
_STEPS, _RATE = 3, 1e-3
_NUDGED = 12
_TRACED = "as TorchDynamo's eager backend; the model's own eager mode differs from both"
_LOADED = (
    "torch._dynamo",
    "gflow.dynamo.backend",
    "gflow.execution.executor",
    "gflow.functions.compiled",
)


def loss_of(output: Any) -> torch.Tensor:
    """A loss of whatever a model gives."""
    found = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.stack([x.float().square().mean() for x in found]).sum()


def tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a result."""
    leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


@dataclass(frozen=True)
class Trained:
    """What a few steps gave. losses: [step]. changes: of each parameter, by its name."""

    losses: torch.Tensor
    changes: dict[str, torch.Tensor]

    def values(self) -> dict[str, torch.Tensor]:
        """All of it, by name."""
        return {"loss": self.losses, **{f"update of {k}": v for k, v in self.changes.items()}}


def _trained(model: torch.nn.Module, steps: Callable[[], list[float]]) -> Trained:
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    losses = torch.tensor(steps())
    return Trained(losses, {k: p.detach() - before[k] for k, p in model.named_parameters()})


def train(model: torch.nn.Module, call: Callable[..., Any], inputs: dict[str, Any]) -> list[float]:
    """The losses of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    losses = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = loss_of(call(**inputs))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def seconds_of(call: Callable[[], Any]) -> float:
    """Mean seconds of processor time of a call, over a fifth of a second: under a timer, the clock ticks slowly.

    The garbage of earlier work (a compilation's) is collected before: a full collection takes as long as ten calls.
    """
    call()
    gc.collect()
    start, times = time.process_time(), 0
    while times < 5 or time.process_time() - start < 0.2:
        call()
        times += 1
    return (time.process_time() - start) / times


def _inference_graph(model: torch.nn.Module) -> Callable[..., Any]:
    import gflow

    class Infer(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, inputs: dict[str, Any]) -> Any:
            return tensors(self.model(**inputs))

    graph = Infer()
    return lambda **inputs: graph(inputs)


def _train_graph(model: torch.nn.Module, inputs: dict[str, Any]) -> list[float]:
    import gflow

    class Train(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=_RATE))

        def build(self, inputs: dict[str, Any]) -> torch.Tensor:
            loss = loss_of(self.model(**inputs))
            loss.backward()
            return loss

    graph = Train()
    return [float(graph(inputs)) for _ in range(_STEPS)]


def _apart(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    """How two results differ, or nothing."""
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors for {len(theirs)}"
    for a, b in zip(mine, theirs):
        if a.shape != b.shape:
            return f"shape {list(a.shape)} for {list(b.shape)}"
        scale = max(float(b.abs().max()), 1e-3) if b.numel() else 1.0
        error = float((a.float() - b.float()).abs().max()) / scale if b.numel() else 0.0
        if not error < 2e-3:
            return f"relative error {error:.1e}"
    return ""


def _by_dynamo(model: torch.nn.Module) -> Callable[..., Any]:
    """What TorchDynamo makes of a model, run by PyTorch op by op: some models compute something else while they are
    traced (a mask where their eager mode has none)."""
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")  # type: ignore[no-any-return]


def _trained_apart(mine: Trained, theirs: Trained, others: Iterator[Trained]) -> str:
    """How two trainings differ beyond what rounding explains, or nothing.

    others: eager with other rounding. By what it differs, rounding may differ too: a ReLU or a maximum that is decided
    the other way changes gradients by far more than a digit, and batch statistics of few values amplify it.
    """
    seen = list[Trained]()
    for name, want in theirs.values().items():
        error, noise = _error(mine.values()[name], want), 0.0
        if error < (2e-3 if name == "loss" else 2e-2):
            continue
        for other in chain(seen, _kept(others, seen)):
            noise = max(noise, _error(other.values()[name], want))
            if error < 5 * noise:
                break
        else:
            return f"{name}: relative error {error:.1e} (by rounding alone {noise:.1e})"
    return ""


def _kept(others: Iterator[Trained], seen: list[Trained]) -> Iterator[Trained]:
    """The next ones, which are added to those seen."""
    for other in others:
        seen.append(other)
        yield other


def _other_rounding(
    fresh: Callable[[], torch.nn.Module],
    inputs: dict[str, Any],
    call: Callable[[torch.nn.Module], Callable[..., Any]] = lambda model: model,
) -> Iterator[Trained]:
    """Training through `call`, which is eager, with other parameters, by 1 to 16 units in the last place (sums of many
    terms in another order differ by as much), and once in float64."""
    for k in range(_NUDGED):
        model = fresh()
        _nudge(model, k)
        yield _trained(model, lambda model=model: train(model, call(model), inputs))
    wide = copy.deepcopy(fresh()).double()
    given = tree_map_only(
        torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs
    )
    try:
        found = _trained(wide, lambda: train(wide, call(wide), given))
    except RuntimeError:  # the model's code has element types in it
        return
    yield Trained(found.losses, {k: v.float() for k, v in found.changes.items()})


def _nudge(model: torch.nn.Module, k: int) -> None:
    """Change parameters by some units in the last place."""
    with torch.no_grad():
        for p in model.parameters():
            units = torch.randint(-1, 2, p.shape) << k % 5
            p.mul_(1 + torch.finfo(torch.float32).eps * units)


@contextlib.contextmanager
def _nudged(model: torch.nn.Module, k: int) -> Iterator[None]:
    """Within, a model's parameters are others by some units in the last place."""
    before = [p.detach().clone() for p in model.parameters()]
    _nudge(model, k)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old)


def _error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest element. NaN in both is no difference: a layer may have
    parameters that it neither fills nor reads."""
    both = mine.isnan() & theirs.isnan()
    mine, theirs = (x.masked_fill(both, 0.0) for x in (mine, theirs))
    if not theirs.numel():
        return 0.0
    return float((mine - theirs).abs().max()) / max(float(theirs.abs().max()), 1e-7)


def measure(family: Family) -> Iterator[dict[str, Any]]:
    """What becomes of one architecture, way by way; first, why eager does not run it, or nothing."""
    import gflow

    torch.manual_seed(0)
    try:
        model, inputs = family.make()
        start = copy.deepcopy(model.state_dict())  # with the versions of its modules
        given = tree_map_only(torch.Tensor, torch.clone, inputs)

        def fresh(mode: bool) -> torch.nn.Module:
            model.load_state_dict(start)
            model.zero_grad()
            return model.train(mode)

        with torch.no_grad():
            want = tensors(fresh(False)(**given))
            differs = bool(_apart(tensors(model(**given)), want))
            eager = seconds_of(lambda: model(**given))
        trained, again = (
            _trained(fresh(True), lambda: train(model, model, given)) for _ in range(2)
        )
    except Exception as error:  # whatever a library raises for a small model, or for these inputs
        yield {"unbuilt": f"{type(error).__name__}: {str(error)[:200]}"}
        return
    if differs or not torch.allclose(trained.losses, again.losses, rtol=1e-3):
        yield {"unbuilt": "eager differs from itself (random draws)"}
        return
    yield {}

    for way in WAYS:
        row: dict[str, Any] = {}
        begun = time.process_time()
        try:
            if "inference" in way:
                fresh(False)
                run = gflow.compile(model) if "compile" in way else _inference_graph(model)
                with torch.no_grad():
                    got = tensors(run(**given))
                    row["first"] = time.process_time() - begun
                    row["ratio"] = seconds_of(lambda run=run: run(**given)) / eager
                row["wrong"] = _apart(got, want)
                if row["wrong"]:  # a choice between equals (top-k) that rounding decides
                    for k in range(_NUDGED):
                        with _nudged(model, k):
                            if not _apart(got, tensors(model(**given))):
                                row["wrong"] = ""
                                break
                if row["wrong"] and not _apart(got, tensors(_by_dynamo(model)(**given))):
                    row["wrong"], row["note"] = "", _TRACED
            else:
                compiled = "compile" in way
                result = _trained(
                    fresh(True),
                    lambda compiled=compiled: (
                        train(model, gflow.compile(model), given)
                        if compiled
                        else _train_graph(model, given)
                    ),
                )
                row["first"] = time.process_time() - begun
                row["wrong"] = _trained_apart(
                    result, trained, _other_rounding(lambda: fresh(True), given)
                )
                if row["wrong"]:
                    traced = _trained(fresh(True), lambda: train(model, _by_dynamo(model), given))
                    others = _other_rounding(lambda: fresh(True), given, _by_dynamo)
                    if not _trained_apart(result, traced, others):
                        row["wrong"], row["note"] = "", _TRACED
        except Exception as error:
            lines = str(error).splitlines() or [""]
            row["error"] = f"{type(error).__name__}: {lines[0][:300]}"
        yield {way: row}


def _child(family: Family, pipe: Any, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for part in measure(family):
        pipe.send(part)


def run(out: Path, library: str, only: str, seed: int, seconds: float, most: int | None) -> None:
    """Run what `out` has no line for. seconds: of processor time for each. most: how many."""
    done = {json.loads(x)["name"] for x in out.read_text().splitlines()} if out.exists() else set()
    for module in _LOADED:  # once, for all
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    order = families(library)
    random.Random(seed).shuffle(order)
    left = [f for f in order if only in f.name and f.name not in done]
    for family in left[:most]:
        mine, theirs = context.Pipe()
        process = context.Process(target=_child, args=(family, theirs, seconds))
        process.start()
        theirs.close()
        parts: list[dict[str, Any]] = []
        with contextlib.suppress(EOFError):
            while True:
                parts.append(mine.recv())
        process.join()
        result = dict(chain.from_iterable(part.items() for part in parts))
        if process.exitcode:
            late = process.exitcode == -signal.SIGPROF
            result |= {"late" if late else "died": seconds if late else process.exitcode}
            told = f"eager takes more than {seconds:.0f} s" if late else "eager's process died"
            result |= {} if parts else {"unbuilt": told}
        with out.open("a") as file:
            file.write(json.dumps({"name": family.name, "library": library, **result}) + "\n")
        print(family.name, json.dumps(result)[:400], flush=True)


def _told(row: dict[str, Any], way: str) -> dict[str, Any]:
    """What became of an architecture in one way."""
    if way in row:
        return row[way]  # type: ignore[no-any-return]
    first = next(w for w in WAYS if w not in row)
    why = f"takes more than {row['late']:.0f} s in all" if "late" in row else "the process died"
    return {"error": why if way == first else "not reached"}


_HEAD = """\
# Model families

This page shows which architectures of other libraries gflow runs, and whether they agree with eager. It is written by
`python scripts/family_report.py` (software: {versions}).

**Method.** Each architecture is made small, with random weights and without dropout, and runs in a process of its
own. Configurations and inputs of transformers are those of its own tests (of about this version) where these have the
class; some of these architectures ran earlier, with the script's own configurations. The ways are inference, and three
steps of SGD, through `gflow.compile` and through `nn.Graph`. Outputs, losses and the change of each parameter are
compared with eager. A change that differs is explained by rounding if eager's own changes differ by a fifth of that or
more, with parameters that differ by 1 to 16 units in the last place, or in float64. An output that differs is if it
equals eager's with such parameters (a choice of the largest scores that rounding decides).

**Columns.** *first call* is that of inference through `gflow.compile`, in seconds of processor time of one thread, and
*ratio* the time of later calls to eager's.

**Architectures come in a random order, and the tables hold those that have run so far.** Of a library's architectures,
those that its eager mode does not run from a small configuration, with the inputs that the script tries, are listed at
the end.
"""


def _versions() -> str:
    names = ("torch", *LIBRARIES)
    found = {d.metadata["Name"].replace("-", "_"): d.version for d in metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def _share(rows: Sequence[dict[str, Any]]) -> str:
    """How many of some results are right, and of how many."""
    right = sum(not r.get("error") and not r.get("wrong") for r in rows)
    percent = round(100 * right / max(len(rows), 1))
    return f"{right} of {len(rows)} ({percent if right == len(rows) else min(percent, 99)}%)"


def write(found: Sequence[Path], out: Path) -> None:
    """The page."""
    every = [json.loads(x) for file in found for x in file.read_text().splitlines()]
    rows = [*{(r["library"], r["name"]): r for r in every}.values()]
    ran = [{**r, **{w: _told(r, w) for w in WAYS}} for r in rows if "unbuilt" not in r]
    libraries = [x for x in LIBRARIES if any(r["library"] == x for r in rows)]
    lines = [_HEAD.format(versions=_versions())]
    lines += ["| library | listed | tried | run by eager | " + " | ".join(WAYS) + " | wrong |"]
    lines += ["|---" * (len(WAYS) + 5) + "|"]
    for library in (*libraries, ""):
        here = [r for r in ran if library in (r["library"], "")]
        tried = sum(library in (r["library"], "") for r in rows)
        listed = sum(len(families(x)) for x in libraries if library in (x, ""))
        wrong = sum(bool(r[w].get("wrong")) for r in here for w in WAYS)
        shares = " | ".join(_share([r[w] for r in here]) for w in WAYS)
        name = library or "**all**"
        lines.append(f"| {name} | {listed} | {tried} | {len(here)} | {shares} | {wrong} |")
    for library in libraries:
        lines += ["", f"## {library}", ""]
        lines += ["| architecture | " + " | ".join(WAYS) + " | first call | ratio |"]
        lines += ["|---" * (len(WAYS) + 3) + "|"]
        lines += [_line(r) for r in sorted(ran, key=_name) if r["library"] == library]
    lines += ["", "## Not run by eager", "", "| library | architecture | reason |", "|---|---|---|"]
    for row in sorted(rows, key=_name):
        if "unbuilt" in row:
            why = row["unbuilt"].partition("\n")[0][:120]
            lines.append(f"| {row['library']} | {row['name']} | {_escaped(why)} |")
    out.write_text("\n".join([*lines, ""]))


def _name(row: dict[str, Any]) -> tuple[str, str]:
    return row["library"], row["name"]


def _line(row: dict[str, Any]) -> str:
    """The line of the table for one architecture."""
    told = [row[w].get("error") or row[w].get("wrong") or row[w].get("note") or "yes" for w in WAYS]
    first, ratio = (row[WAYS[0]].get(k) for k in ("first", "ratio"))
    numbers = [f"{x:.2f}" if x is not None else "" for x in (first, ratio)]
    return f"| {row['name']} | {' | '.join([*map(_escaped, told), *numbers])} |"


def _escaped(text: str) -> str:
    """Text in a table, without the folders of this machine; a path at its end may be cut off."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    text = re.sub(r"(/[\w.@-]+)+/site-packages/", "", text)
    text = re.sub(r"\s(/[\w.@-]+){2,}/?$", " ...", text)
    return text.replace("|", "\\|").replace("<", "\\<").replace("_", "\\_").replace("*", "\\*")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs, writes = commands.add_parser("run"), commands.add_parser("write")
    runs.add_argument("found", type=Path)
    writes.add_argument("found", type=Path, nargs="+")
    runs.add_argument("--library", default="transformers", choices=LIBRARIES)
    runs.add_argument("--only", default="")
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--seconds", type=float, default=240)
    runs.add_argument("--most", type=int)
    writes.add_argument("--out", type=Path, default=ROOT / "docs" / "model_families.md")
    args = parser.parse_args()
    if args.command == "run":
        run(args.found, args.library, args.only, args.seed, args.seconds, args.most)
    else:
        write(args.found, args.out)


if __name__ == "__main__":
    main()
