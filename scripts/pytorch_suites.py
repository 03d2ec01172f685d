"""Run PyTorch's own tests of torch.compile with another backend, and compare two backends.

python scripts/pytorch_suites.py run CHECKOUT --backend gflow --out gflow.jsonl [--seconds 60] [FILE …]
python scripts/pytorch_suites.py compare gflow.jsonl aot_eager.jsonl [--reasons tests/pytorch_suites.txt]

CHECKOUT holds PyTorch's `test/` (its repository; nothing of it is kept here). The tests name their
backends ("eager", "aot_eager", "inductor", CompileCounter, compile_fx): each of these becomes the chosen
one, so that every compilation of a test goes through it. Tests of Inductor's internals (its metrics, its
code) fail under each other backend; what counts is the tests that `aot_eager` passes.

One process runs a file; where it dies, the next one goes on behind the test that killed it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

FILES = (
    "dynamo/test_repros.py",
    "dynamo/test_modules.py",
    "dynamo/test_misc.py",
    "inductor/test_torchinductor.py",
    "inductor/test_torchinductor_dynamic_shapes.py",
)
REPLACED = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""Names of backends that stand for the chosen one."""

SKIPPED_CLASSES = ("AOTI", "CppWrapper", "Triton", "GPU", "Cuda")


#: decorators, switches and classes of earlier versions
_NAMES: tuple[tuple[str, str, Any], ...] = (
    ("torch._dynamo.testing", "requires_static_shapes", lambda test: test),
    ("torch._dynamo.testing", "skipIfPy311", lambda test: test),
    ("torch._dynamo.utils", "CompileProfiler", object),
    ("torch._dynamo.utils", "ifdyn", lambda dynamic, static: static),
    ("torch._dynamo.utils", "ifdynstaticdefault", lambda static, dynamic: static),
    ("torch._dynamo.utils", "ifunspec", lambda unspecialized, static: static),
    ("torch.testing._internal.inductor_utils", "HAS_CUDA", False),
    ("torch.autograd.profiler", "_enable_dynamo_cache_lookup_profiler", lambda on: None),
    ("torch._inductor.codegen.cpp", "CppVecKernelChecker", object),
    ("torch._inductor.compile_fx", "complex_memory_overlap", lambda tensor: False),
    ("torch._export", "dynamic_dim", object),
    ("torch._inductor.ir", "InterpreterShim", object),
    ("torch._inductor.codecache", "valid_vec_isa_list", list),
)

# --- in the process of the tests (a plugin of pytest) ----------------------------------------------------


def pytest_configure(config: Any) -> None:
    """Put the chosen backend in the place of those that the tests name."""
    backend = os.environ.get("SUITE_BACKEND")
    if backend:
        _give_back_names()
        _replace_backends(backend)


def _give_back_names() -> None:
    """Names that tests of older versions import, and PyTorch no longer has."""
    for module, name, value in _NAMES:
        holder = importlib.import_module(module)
        if not hasattr(holder, name):
            setattr(holder, name, value)


def _replace_backends(name: str) -> None:
    import torch._dynamo.testing
    import torch._inductor.compile_fx
    import torch._inductor.config
    from torch._dynamo.backends import registry

    chosen = registry.lookup_backend(name)
    # as PyTorch's test runner does with Inductor (PYTORCH_TEST_WITH_INDUCTOR): tests compare with eager's numbers
    torch._inductor.config.fallback_random = True
    for replaced in REPLACED:
        registry.lookup_backend(replaced)
        registry._COMPILER_FNS[replaced] = chosen

    def compile_fx(module: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return chosen(module, inputs)

    def counted(count: Any, module: Any, inputs: Any) -> Any:
        forward(count, module, inputs)
        return chosen(module, inputs)

    torch._inductor.compile_fx.compile_fx = compile_fx
    forward: Callable[..., Any] = torch._dynamo.testing.CompileCounter.__call__
    torch._dynamo.testing.CompileCounter.__call__ = counted
    wrapper = torch._TorchCompileInductorWrapper
    wrapper.__call__ = lambda self, module, inputs: chosen(
        module, inputs
    )  # torch.compile(f)'s default


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what ran before the last process died."""
    done: set[str] = set()
    if "SUITE_OUT" in os.environ:
        done = set(_results(Path(os.environ["SUITE_OUT"])))
    items[:] = [
        i for i in items
        if _name(i) not in done and not any(c in _name(i).split("::")[1] for c in SKIPPED_CLASSES)
    ]  # fmt: skip


def _name(item: Any) -> str:
    return f"{Path(str(item.fspath)).name}::{'::'.join(item.nodeid.split('::')[1:])}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> Generator[None, Any, Any]:
    """Write the test's name before it runs, so that a crash has a name."""
    _write(item, "crashed", "the process died")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """End a test after its seconds of processor time."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, float(os.environ.get("SUITE_SECONDS", "60")), 5.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: Any) -> None:
    raise TimeoutError("the test's seconds are over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Write what became of the test."""
    report = yield
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        text = "" if report.outcome == "passed" else str(report.longrepr)
        _write(item, report.outcome, text[-1500:])
    return report


def _write(item: Any, outcome: str, text: str) -> None:
    out = os.environ.get("SUITE_OUT")
    if out:
        with Path(out).open("a") as file:
            file.write(json.dumps({"test": _name(item), "outcome": outcome, "text": text}) + "\n")


# --- the driver ------------------------------------------------------------------------------------------


def run(
    checkout: Path, backend: str, files: list[str], out: Path, seconds: float, keyword: str
) -> None:
    """Run the files' tests, appending to `out` a line of JSON for each."""
    for file in files:
        while True:
            before = len(_results(out))
            code = subprocess.run(
                [
                    sys.executable, "-m", "pytest", "-q", "-p", "pytorch_suites", "-p", "no:cacheprovider",
                    "--noconftest", "--no-header", "--tb=short", "--rootdir", str(checkout),
                    *(("-k", keyword) if keyword else ()), str(checkout / "test" / file),
                ],
                cwd=checkout / "test" / Path(file).parent,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(
                        [str(Path(__file__).parent), str(checkout / "test"), os.environ.get("PYTHONPATH", "")]
                    ),
                    "SUITE_BACKEND": backend,
                    "SUITE_OUT": str(out),
                    "SUITE_SECONDS": str(seconds),
                },
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            died = code.returncode not in (0, 1, 5)
            if not died or len(_results(out)) == before:
                print(f"{file}:", *code.stdout.splitlines()[-12:], sep="\n")
                break


def _results(out: Path) -> dict[str, dict[str, str]]:
    if not out.exists():
        return {}
    return {(r := json.loads(line))["test"]: r for line in out.read_text().splitlines()}


def compare(ours: Path, reference: Path, reasons: Path | None) -> int:
    """Print how many of the tests that the reference passes ours passes, and the others with reasons."""
    mine, theirs = _results(ours), _results(reference)
    passing = [t for t, r in theirs.items() if r["outcome"] == "passed" and t in mine]
    failing = [t for t in passing if mine[t]["outcome"] not in ("passed", "skipped")]
    listed = read_reasons(reasons) if reasons else {}
    for file in sorted({t.split("::")[0] for t in passing}):
        here = [t for t in passing if t.startswith(file)]
        bad = [t for t in failing if t.startswith(file)]
        print(f"{file}: {len(here) - len(bad)} of {len(here)} = {1 - len(bad) / len(here):.2%}")
    unknown = [t for t in failing if t not in listed]
    for test in failing:
        last = (mine[test]["text"].strip().splitlines() or [""])[-1]
        found = f"UNKNOWN: {mine[test]['outcome']}: {last[:200]}"
        print(f"  {test}: {listed.get(test, found)}")
    for test in sorted(set(listed) & {t for t in passing if t not in failing}):
        print(f"  {test}: listed, and passes")
    return bool(unknown)


def read_reasons(path: Path) -> dict[str, str]:
    """Test → reason, from a text: a line `# reason`, then a line for each test."""
    found, reason = {}, ""
    for line in filter(None, map(str.strip, path.read_text().splitlines())):
        if line.startswith("#"):
            reason = line.removeprefix("#").strip()
        else:
            found[line] = reason
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("checkout", type=Path)
    runs.add_argument("files", nargs="*", default=list(FILES))
    runs.add_argument("--backend", default="gflow")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--seconds", type=float, default=60)
    runs.add_argument("--keyword", "-k", default="")
    compares = commands.add_parser("compare")
    compares.add_argument("ours", type=Path)
    compares.add_argument("reference", type=Path)
    compares.add_argument("--reasons", type=Path)
    args = parser.parse_args()
    if args.command == "compare":
        return compare(args.ours, args.reference, args.reasons)
    start = time.perf_counter()
    run(
        args.checkout.resolve(),
        args.backend,
        args.files,
        args.out.resolve(),
        args.seconds,
        args.keyword,
    )
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
