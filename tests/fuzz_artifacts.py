"""Mutates saved graphs and entries of the cache, with checksums and signatures made anew, and loads them.

    python -m tests.fuzz_artifacts --count 2000 --seed 1
    python -m tests.fuzz_artifacts --count 2000 --seed 1 --resealed

Each mutant is one of: *refused* (an error of ours, when it is loaded or called), *right* (the results of
the original), *other* (another program runs well and gives other results), *wrong* (a crash, a hang, an
exception of another kind). Any file of an artifact is mutated: manifest, programs, IR, weights, kernels, machine code.
With `--resealed` the seals are made anew, too, as only somebody does who means to: then *other* is what such a
program computes; kernels and their words, which are code, are left alone, and where the IR is mutated,
the graph is loaded with `native=False`.
Processes are forked for a few mutants each; the one that dies or hangs costs a mutant.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import fuzz_mutations

#: seconds for one mutant, and mutants of one process
LIMIT, BATCH = 20.0, 40
INTS = [0, 1, -1, 2, 7, 64, 255, 4096, 1 << 16, 1 << 31, 1 << 40, 1 << 63, (1 << 63) - 1, -(1 << 63), 1 << 64,
        10**30]  # fmt: skip
TEXTS = ["", "os", "f32", "float32", "i64", "arena", "arg", "result", "constant", "cpu", "cuda:90", "__class__",
         "Place", "KernelStep", "list", "nan", "aten.add.Tensor", "aten.set_.source_Tensor", "../x", "0", "\0",
         "a" * 5000, "aten.from_file.default", "builtins.eval", "tensor", "weights", "rng"]  # fmt: skip


# -- mutations of JSON


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, item in items:
        yield from _paths(item, (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def mutate(tree: Any, rng: random.Random, skip: Callable[[tuple[Any, ...], Any], bool]) -> Any:
    """A copy with one to three edits; skip: what is left alone, by path and root."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = [p for p in _paths(tree) if p and not skip(p, tree)]
        path = rng.choice(paths)
        parent, key = _at(tree, path[:-1]), path[-1]
        parent[key] = _changed(parent[key], tree, paths, rng)
        if isinstance(parent, list) and rng.random() < 0.2:
            _edit_list(parent, key, rng)
        elif isinstance(parent, dict) and rng.random() < 0.2:
            value = parent.pop(key)
            if rng.random() < 0.5:
                parent[rng.choice(TEXTS)] = value
    return tree


def _edit_list(items: list[Any], at: int, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        del items[at]
    elif kind == 1:
        items.insert(at, copy.deepcopy(items[at]))
    elif kind == 2:
        rng.shuffle(items)
    else:
        items[at:] = []


def _changed(value: Any, tree: Any, paths: list[tuple[Any, ...]], rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return copy.deepcopy(_at(tree, rng.choice(paths)))
    if rng.random() < 0.1:
        return rng.choice(
            [None, True, False, 1.5, -1, "", [], {}, [[[]]], [""], ["list"], {"t": 0}]
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            [value + 1, value - 1, 2 * value, -value, value // 2, value + 64, value - 64, *INTS]
        )
    if isinstance(value, float):
        return rng.choice([-value, 2 * value, 0.0, 1e308, float("nan"), float("inf"), int(value)])
    if isinstance(value, str):
        found = [_at(tree, p) for p in rng.sample(paths, min(len(paths), 20))]
        return rng.choice([*TEXTS, *(f for f in found if isinstance(f, str)), value[1:], value * 2])
    if isinstance(value, list) and value:
        items = list(value)
        _edit_list(items, rng.randrange(len(items)), rng)
        return items
    if isinstance(value, dict) and value:
        items = dict(value)
        items.pop(rng.choice(list(items)))
        return items
    return rng.choice([[], {}, None, 0])


# -- what is mutated


def _graphs() -> list[tuple[str, Any, tuple[Any, ...], str | None]]:
    """Name, graph, arguments of a call, target."""
    import torch
    from torch import nn

    import gflow as flow

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.table, self.linear = nn.Embedding(10, 5), nn.Linear(8, 5)

        def forward(self, x: Any, i: Any) -> Any:
            h = self.norm(self.conv(x)).relu().mean((2, 3))
            return (self.linear(h) + self.table(i)).softmax(-1)

    class Train(flow.nn.Graph):
        def __init__(self, model: nn.Module, parts: int = 1, schedule: bool = False) -> None:
            super().__init__()
            self.model = model
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            if schedule:
                self.add_optimizer(optimizer, lr_sch=torch.optim.lr_scheduler.StepLR(optimizer, 2))
            else:
                self.add_optimizer(optimizer)
            self.config.set_gradient_accumulation_steps(parts)

        def build(self, *inputs: Any) -> Any:
            loss = self.model(*inputs).square().mean()
            loss.backward()
            return loss

    class Infer(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).eval()

        def build(self, x: Any, more: Any) -> Any:
            y = self.model(x) + more["bias"]
            values, order = y.sort(-1)
            return {"y": y, "sorted": [values, order], "count": 3}

    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    found: list[tuple[str, Any, tuple[Any, ...], str | None]] = [
        (
            "train",
            Train(Net(), schedule=True),
            (torch.randn(2, 3, 6, 6), torch.tensor([1, 2])),
            None,
        ),
        ("infer", Infer(), (torch.randn(3, 6), {"bias": torch.randn(4)}), None),
        ("parts", Train(small, 2), (torch.randn(4, 6),), None),
    ]
    if os.environ.get("GFLOW_FUZZ_CUDA", "1") != "0":
        found.append(("cuda", Infer(), (torch.randn(3, 6), {"bias": torch.randn(4)}), "cuda:90"))
    return found


def _make(folder: Path) -> None:
    """Write the originals, with their arguments and results, and programs as the cache has them."""
    import torch

    import gflow as flow
    from gflow.runtime import load_program
    from gflow.runtime.stored import program_io

    for name, graph, args, target in _graphs():
        graph(*args)
        flow.save(graph, folder / name, target=target)
        torch.save(args, folder / f"{name}.args")
        os.environ["GFLOW_CUDA_DEVICE"] = "interpreter" if target else ""
        torch.save(run_artifact(folder / name, args), folder / f"{name}.wanted")
        run = graph._latest().compiled.run
        if target is None and hasattr(run, "program"):
            plan = graph._latest()
            given = [torch.randn(3, 6) if t is None else t.clone() for t in plan.arguments]
            leaves = iter(torch.utils._pytree.tree_leaves(args))
            given = [next(leaves) if t is None else t.clone() for t in plan.arguments]
            torch.save(given, folder / f"{name}.entry.args")
            data = program_io.to_bytes(run.program)
            (folder / f"{name}.entry").write_bytes(data)
            wanted = load_program(run.program)([t.clone() for t in given])
            torch.save(list(wanted), folder / f"{name}.entry.wanted")


def run_artifact(path: Path, args: Any, native: bool = True) -> Any:
    """What two calls give."""
    import torch

    import gflow as flow

    torch.manual_seed(1)
    model = flow.load(path, native=native)
    return [model(*args) for _ in range(2)]


# -- trying one


def try_one(folder: Path, seed: int, resealed: bool) -> str:
    """Make a mutant and use it: "refused", "right", "other …" or "wrong …"."""
    rng = random.Random(seed)
    entries = sorted(p.name for p in folder.glob("*.entry"))
    graphs = sorted(
        p.name.removesuffix(".args") for p in folder.glob("*.args") if ".entry" not in p.name
    )
    name = rng.choice([*entries, *graphs, *graphs])
    with tempfile.TemporaryDirectory() as place:
        from gflow.runtime.interrupts import HalfDone

        try:
            return (_try_entry if name.endswith(".entry") else _try_graph)(
                folder, name, Path(place), rng, resealed
            )
        except HalfDone:  # a value that an op does not take: it says which, and where
            return "refused"
        except Exception:
            return "wrong " + traceback.format_exc()[-1500:]


def _judge(found: Any, wanted: Any, what: str) -> str:
    import torch
    from torch.utils._pytree import tree_flatten

    (a, s), (b, t) = tree_flatten(found), tree_flatten(wanted)
    same = s == t and all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a, b)
    )
    return "right" if same else f"other {what}"


def _code(path: tuple[Any, ...], tree: Any) -> bool:
    """Words of kernels and arguments of launches: operands of code."""
    for n in range(len(path)):
        part = _at(tree, path[:n])
        if (
            isinstance(part, list)
            and part
            and part[0] in ("KernelStep", "LaunchStep", "TritonKernel")
        ):
            return True
    return path[0] in ("kernels", "declarations", "triton", "device_code")


def _nothing(path: tuple[Any, ...], tree: Any) -> bool:
    return False


def _try_entry(folder: Path, name: str, place: Path, rng: random.Random, resealed: bool) -> str:
    import torch

    from gflow.runtime import load_program
    from gflow.runtime.stored import cache, program_io

    data = (folder / name).read_bytes()
    length = int.from_bytes(data[:8], "little")
    tree, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    changed = mutate(tree, rng, _code if resealed else _nothing)
    if resealed:
        _reseal(changed, rest)
    text = json.dumps(changed).encode()
    os.environ["GFLOW_CACHE"], os.environ["GFLOW_CACHE_DIR"] = "1", str(place)
    cache.write("programs", "x", len(text).to_bytes(8, "little") + text + rest)
    try:
        program = program_io.from_bytes(cache.read("programs", "x") or b"")
    except program_io.ProgramError:
        return "refused"
    args = torch.load(folder / f"{name}.args")
    if len(args) != len(program.arguments) or any(
        tuple(t.shape) != a.type.shape or (t.stride() != a.strides and t.numel() > 1)
        for t, a in zip(args, program.arguments)
    ):
        return "refused"  # by whoever binds arguments: not those that this key stands for
    found = list(load_program(program)(args))
    return _judge(found, torch.load(folder / f"{name}.wanted"), _difference(tree, changed))


def _reseal(tree: Any, constants: bytes | None, raw: list[bytes] | None = None) -> None:
    """Write the seal that the changed program would have, if it can be read at all."""
    from dataclasses import fields

    from gflow.dialects.program import Program
    from gflow.dialects.program import form as program_form

    try:
        values = {k: program_form.decode(v) for k, v in tree.items()}
        if constants is not None:
            raw, at = [], 0
            for size in values["constants"]:
                raw.append(constants[at : at + size])
                at += size
        values["constants"] = raw
        if values.keys() == {f.name for f in fields(Program)}:
            tree["seal"] = program_form.seal(Program(**values))
    except Exception:  # it is refused for something else
        return


def _try_graph(folder: Path, name: str, place: Path, rng: random.Random, resealed: bool) -> str:
    import torch

    from gflow.runtime.stored import bundle
    from gflow.runtime.stored.checkpoint import CheckpointError

    path = place / "graph"
    shutil.copytree(folder / name, path)
    manifest = json.loads((path / "manifest.json").read_text())
    programs = [n for n in manifest["files"] if n.startswith("programs/")]
    others = [n for n in manifest["files"] if not (resealed and n.startswith("kernels/"))]
    file = rng.choice([*["manifest.json"] * 2, *programs * 4, rng.choice(others), "model.mlir"])
    native = file != "model.mlir" or not resealed
    what = ""
    if file == "manifest.json":
        own = ("sha256", "files", "format", "seal")

        def skip(at: tuple[Any, ...], _: Any) -> bool:
            return at[0] in own

        tree = manifest
        changed = manifest = mutate(tree, rng, skip)
        what = _difference(tree, changed)
    else:
        data = (path / file).read_bytes()
        if file in programs:
            tree = json.loads(data)
            changed = mutate(tree, rng, _code if resealed else _nothing)
            if resealed:
                _reseal_saved(path, file, changed)
            data, what = json.dumps(changed).encode(), _difference(tree, changed)
        elif file == "model.mlir":
            data = fuzz_mutations.mutate(data, rng, [data])
        else:
            data = fuzz_mutations.mutate_bytes(data, rng, [data], rng.choice((1, 1, 2, 6)))
        (path / file).write_bytes(data)
        manifest["files"][file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if resealed and file == "model.mlir":
            changed = json.loads((path / programs[0]).read_text())
            _reseal_saved(path, programs[0], changed)
            data = json.dumps(changed).encode()
            (path / programs[0]).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            manifest["files"][programs[0]] = {"size": len(data), "sha256": digest}
    manifest.pop("sha256", None)
    if resealed:
        manifest["seal"] = bundle.seal(manifest)
    manifest["sha256"] = bundle._checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    os.environ["GFLOW_CUDA_DEVICE"] = "interpreter" if name == "cuda" else ""
    os.environ["GFLOW_CACHE"] = "0"
    args = torch.load(folder / f"{name}.args")
    try:
        found = run_artifact(path, args, native)
    except (bundle.ArtifactError, CheckpointError):
        return "refused"
    except RuntimeError as error:
        if "can't allocate memory" not in str(
            error
        ):  # PyTorch's words for an arena that is too large
            raise
        return "refused"
    except ValueError as error:  # a call that does not fit, in words
        return (
            "refused" if str(error).startswith(f"{manifest.get('name')}: ") else f"wrong {error!r}"
        )
    return _judge(found, torch.load(folder / f"{name}.wanted"), f"{name} {file} {what}")


def _reseal_saved(path: Path, file: str, tree: Any) -> None:
    from gflow.dialects.program import Program
    from gflow.dialects.program import form as program_form
    from gflow.runtime.stored import checkpoint, device_files, program_files

    number = int(Path(file).stem)
    try:
        weights = checkpoint.load((path / program_files.WEIGHTS).read_bytes(), "")
        raw = [c.numpy().tobytes() for c in weights["constants"][number]]
        values = dict(tree)
        names = program_form.decode(values.pop("kernels"))
        files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
        device = device_files.read_device(values, files)
        values = {k: program_form.decode(v) for k, v in values.items()}
        whole = Program(
            **values,
            **device,
            ir=files[program_files._ir_name(number)].decode(),
            kernels={name: files[f"kernels/{name}.mlir"].decode() for name in names},
            constants=raw,
        )
        tree["seal"] = program_form.seal(whole)
    except Exception:  # it is refused for something else
        return


def _difference(one: Any, other: Any, where: str = "") -> str:
    """Where two trees part first."""
    if type(one) is type(other) and isinstance(one, (dict, list)) and len(one) == len(other):
        keys = one if isinstance(one, dict) else range(len(one))
        for key in keys:
            if isinstance(one, dict) and key not in other:
                return f"{where}.{key} gone"
            if json.dumps(one[key]) != json.dumps(other[key]):
                return _difference(one[key], other[key], f"{where}.{key}")
    return f"{where}: {str(one)[:60]} -> {str(other)[:60]}"


# -- many


def fuzz(
    count: int,
    seed: int,
    resealed: Callable[[int], bool] = lambda number: False,
    tell: Callable[[list[tuple[int, str]]], None] = lambda found: None,
) -> list[tuple[int, str]]:
    """The outcome of each mutant, by its number. resealed: whether one's seals are made anew. tell: called with the
    outcomes so far."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "originals"
        folder.mkdir()
        os.environ["GFLOW_KEY_FILE"] = str(Path(place) / "keys" / "key")
        status = _forked(lambda tell: _make(folder), 600.0)[1]
        if status:
            raise RuntimeError(f"the originals cannot be made: status {status}")
        outcomes: list[tuple[int, str]] = []
        todo = list(range(seed * 1_000_003, seed * 1_000_003 + count))
        while todo:
            batch = todo[:BATCH]

            def work(tell: Callable[[str], None], batch: list[int] = batch) -> None:
                for number in batch:
                    tell(try_one(folder, number, resealed(number)))

            told, status = _forked(work, LIMIT)
            outcomes += zip(batch, told)
            if len(told) < len(batch):
                late = batch[len(told)]
                again: list[str] = []
                if status == -1:  # the machine may have been busy, or stopped
                    again, status = _forked(lambda tell: work(tell, [late]), 4 * LIMIT)  # noqa: B023
                outcomes.append((late, again[0] if again else f"wrong {_why(status)}"))
                told.append("")
            todo = todo[len(told) :]
            tell(outcomes)
        return outcomes


def _why(status: int) -> str:
    if status == -1:
        return "hang"
    if os.WIFSIGNALED(status):
        return f"crash: {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.WEXITSTATUS(status)}"


def _forked(work: Callable[[Callable[[str], None]], None], limit: float) -> tuple[list[str], int]:
    """Run `work` in a process of its own: what it told, and its status; -1 where it took longer than
    the limit between two messages."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            null = os.open(os.devnull, os.O_WRONLY)
            if not os.environ.get("GFLOW_FUZZ_LOUD"):
                os.dup2(null, 2)
            work(lambda text: os.write(writer, (json.dumps(text) + "\n").encode()) and None)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    data = b""
    with os.fdopen(reader, "rb", buffering=0) as stream:
        end = time.monotonic() + limit
        while True:
            ready, _, _ = select.select([stream], [], [], max(end - time.monotonic(), 0))
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return _lines(data), -1
            part = stream.read(1 << 16)
            if not part:
                break
            data += part
            end = time.monotonic() + limit
    return _lines(data), os.waitpid(child, 0)[1]


def _lines(data: bytes) -> list[str]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def _counted(outcomes: list[tuple[int, str]]) -> str:
    counts = Counter(outcome.split()[0] for _, outcome in outcomes)
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resealed", action="store_true", help="make the seals anew, too")
    parser.add_argument("--half-resealed", action="store_true", help="of those with odd numbers")
    options = parser.parse_args(argv)
    import gflow  # noqa: F401  # in the parent: forked processes need not load it again

    told: set[int] = set()

    def resealed(number: int) -> bool:
        return options.resealed or (options.half_resealed and number % 2 == 1)

    def show(found: list[tuple[int, str]]) -> None:
        for number, outcome in found[len(told) :]:
            told.add(number)
            if outcome.startswith("wrong"):
                print(number, outcome, file=sys.stderr)
        print(_counted(found), file=sys.stderr)

    outcomes = fuzz(options.count, options.seed, resealed, show)
    for number, outcome in outcomes:
        if outcome.startswith(("wrong", "other")):
            print(number, outcome)
    print(_counted(outcomes))
    bad = [
        o for n, o in outcomes if o.startswith(("wrong",) if resealed(n) else ("wrong", "other"))
    ]
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
