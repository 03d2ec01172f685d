"""The folders and their arrows: who may import whom, and that importing little stays little."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "gflow": ROOT / "frontend",
    "gflow.dialects": ROOT / "dialects",
    "gflow.compiler": ROOT / "compiler",
    "gflow.runtime": ROOT / "runtime",
    "benchmarks": ROOT / "benchmarks",
}
#: what authors see of these is PyTorch's and gflow's names; their docstrings are for them
UNMAPPED = {ROOT / "frontend", ROOT / "frontend/nn", ROOT / "frontend/optim", ROOT / "frontend/amp"}
MAY_IMPORT = {
    "gflow": {"gflow", "gflow.compiler", "gflow.runtime", "gflow.dialects"},
    "gflow.dialects": {"gflow.dialects"},
    "gflow.compiler": {"gflow.compiler", "gflow.dialects"},
    "gflow.runtime": {"gflow.runtime", "gflow.dialects"},
    "benchmarks": {"benchmarks", "gflow", "gflow.compiler", "gflow.runtime", "gflow.dialects"},
}
#: The folders inside of a package, from the lowest on; those of one line know nothing of each other. Files beside
#: the folders are the package's own, and may import, and be imported by, all.
LAYERS: dict[str, tuple[str, ...]] = {
    "gflow": (
        "tracing",
        "lowering guards report",
        "execution",
        "call",
        "saved oneflow inspection",
        "amp distributed dynamo nn optim",
        "functions",
    ),
    "gflow.call": ("conditions dynamic", "plans"),
    "gflow.tracing": ("data", "context", "program", "reads", "dispatch", "optimizers"),
    "gflow.tracing.dispatch": ("failures shapes symbols", "functions"),
    "gflow.compiler": (
        "targets", "ir", "distribution", "memory", "kernel", "engines", "passes", "emit", "driver", "reports", "tools",
    ),
    "gflow.compiler.engines": ("decompositions", "onnx stablehlo"),
    "gflow.compiler.emit": ("cpu triton",),
    "gflow.compiler.emit.cpu": ("language", "region", "product", "attention"),
    "gflow.compiler.emit.triton": ("language", "region", "product", "ops", "toolchain"),
    "benchmarks": ("workloads", "harness", "compile_time distributed kernels", "gpu"),
}  # fmt: skip

# Parts of PyTorch that only tracing and compiling need.
TRACING_MACHINERY = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def owner(module: str) -> str | None:
    """The folder that holds a module, by its import name; None when it is not ours."""
    for package in ("gflow.dialects", "gflow.compiler", "gflow.runtime", "gflow", "benchmarks"):
        if module == package or module.startswith(package + "."):
            return package
    return None


@dataclass(frozen=True)
class Import:
    """One import of a file: the modules that it may name, the likeliest first, and whether a function makes it."""

    line: int
    names: tuple[str, ...]
    in_function: bool = False


@cache
def imports(path: Path, module: str, is_package: bool) -> list[Import]:
    """Every module that a file imports: at the top, for types only, or inside a function."""
    base = module.split(".") if is_package else module.split(".")[:-1]

    def walk(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # has no statements
                continue
            if isinstance(child, ast.Import):
                yield from (Import(child.lineno, (a.name,), in_function) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                start = base[: len(base) - child.level + 1] if child.level else []
                name = ".".join([*start, *filter(None, [child.module])])
                for alias in child.names:  # a module of a package, or a name in a module
                    yield Import(child.lineno, (f"{name}.{alias.name}", name), in_function)
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            yield from walk(child, in_function or isinstance(child, functions))

    return list(walk(ast.parse(path.read_text(), str(path)), False))


def our_files() -> list[tuple[str, Path]]:
    files = []
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            files.append((".".join([package, *parts]), path))
    return files


def test_import_arrows_never_point_back() -> None:
    wrong = []
    for module, path in our_files():
        package = owner(module)
        assert package is not None
        for found in imports(path, module, path.name == "__init__.py"):
            name = found.names[
                0
            ]  # `from gflow import compiler` names the package in the list of names
            target = owner(name)
            if target is not None and target not in MAY_IMPORT[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{found.line}: {package} imports {name}")
    assert not wrong, "\n".join(wrong)


def edges() -> dict[str, dict[str, int]]:
    """Which file imports which, with a line: all kinds of imports."""
    files = our_files()
    known = {module for module, _ in files}
    found: dict[str, dict[str, int]] = {}
    for module, path in files:
        own = found[module] = {}
        for one in imports(path, module, path.name == "__init__.py"):
            target = next((name for name in one.names if name in known), module)
            if target != module:
                own.setdefault(target, one.line)
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def test_circles_are_seen() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}) == [["b", "c"]]
    assert circles({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []


def test_no_circle_of_files() -> None:
    """Imports for types and in functions count: what needs each other is one thing, in one file."""
    found = circles(edges())
    assert not found, found


def layer_of(module: str, package: str) -> tuple[int, str] | None:
    """The layer of a package's folder that a module lies in, and the folder."""
    folder = module[len(package) + 1 :].split(".")[0] if module.startswith(package + ".") else ""
    for number, folders in enumerate(LAYERS[package]):
        if folder in folders.split():
            return number, folder
    return None


def test_layers_never_point_back() -> None:
    wrong = []
    for module, targets in edges().items():
        for target, line in targets.items():
            for package in LAYERS:
                mine, other = layer_of(module, package), layer_of(target, package)
                if mine is None or other is None or mine == other or mine[0] > other[0]:
                    continue
                wrong.append(f"{module}:{line} imports {target}, which is no layer below it")
    assert not wrong, "\n".join(wrong)


def test_every_folder_has_a_layer() -> None:
    for package in LAYERS:
        base = max((name for name in FOLDERS if f"{package}.".startswith(f"{name}.")), key=len)
        folder = FOLDERS[base].joinpath(*package[len(base) :].split(".")[1:])
        found = {path.parent.name for path in folder.glob("*/__init__.py")}
        listed = {name for names in LAYERS[package] for name in names.split()}
        assert found == listed, (package, found ^ listed)


def test_imports_in_functions_have_a_reason() -> None:
    """In a comment on their line, or above the first of several: a circle is none.

    Not in benchmarks: each imports what it measures once the processes of its peers are started.
    """
    bare = []
    for module, path in our_files():
        if owner(module) == "benchmarks":
            continue
        lines = path.read_text().splitlines()
        for found in imports(path, module, path.name == "__init__.py"):
            if not found.in_function:
                continue
            at = found.line - 1
            while lines[at].lstrip().startswith(("import ", "from ")) or not lines[at].strip():
                at -= 1
            above = lines[at].lstrip().startswith("#")
            if not above and "#" not in lines[at + 1] + lines[found.line - 1]:
                bare.append(f"{path.relative_to(ROOT)}:{found.line}")
    assert not bare, "\n".join(sorted(set(bare)))


def test_relative_imports_are_resolved() -> None:
    """The check above sees through `from ..x import y`."""
    for module, path in our_files():
        if path.match("dialects/ops/__init__.py"):
            names = {name for found in imports(path, module, True) for name in found.names}
            assert "gflow.dialects.opdef" in names
            return
    pytest.fail("dialects/ops/__init__.py is gone; give this test another file")


def test_one_import_of_the_bindings() -> None:
    users = [
        str(path.relative_to(ROOT))
        for module, path in our_files()
        for found in imports(path, module, path.name == "__init__.py")
        if found.names[0].split(".")[0] in ("torch_mlir", "mlir")
    ]
    assert set(users) <= {"dialects/mlir.py"}


@cache
def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_runtime_alone_is_small() -> None:
    before, after = modules_after("import torch"), modules_after("import gflow.runtime")
    loaded = after - before
    machinery = [
        name
        for name in loaded
        if name.startswith(("gflow.tracing", "gflow.lowering", "gflow.compiler", "gflow.graph"))
        or name.startswith(TRACING_MACHINERY)
    ]
    assert not machinery, f"import gflow.runtime loads {sorted(machinery)}"


def test_import_gflow_loads_no_compiler() -> None:
    loaded = modules_after("import gflow") - modules_after("import torch")
    heavy = [n for n in loaded if n.startswith((*TRACING_MACHINERY, "torch_mlir", "triton"))]
    assert not heavy, f"import gflow loads {sorted(heavy)[:5]}"


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without `__init__.py` would be missing from the wheel."""
    folders = {
        path.parent
        for folder in FOLDERS.values()
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    bare = [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]
    assert not bare, f"add an __init__.py to {bare}"


def test_folders_are_no_lists() -> None:
    """More than 15 files beside each other hide which belong together: make a folder of a subject."""
    full = {
        str(path.parent.relative_to(ROOT)): count
        for folder in FOLDERS.values()
        for path in folder.rglob("__init__.py")
        if (count := len(list(path.parent.glob("*.py"))) - 1) > 15
    }
    assert not full, full


def test_the_docstring_of_a_package_is_its_map() -> None:
    missing = []
    for folder in FOLDERS.values():
        for path in sorted(folder.rglob("__init__.py")):
            package = path.parent
            inside = [p.stem for p in package.glob("*.py") if p.name != "__init__.py"]
            inside += [f"{p.parent.name}/" for p in package.glob("*/__init__.py")]
            if len(inside) < 3 or package in UNMAPPED:
                continue
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            named = {line.strip().split("  ")[0] for line in text.splitlines()}
            missing += [f"{path.relative_to(ROOT)}: {n}" for n in inside if n not in named]
    assert not missing, "say in the package's docstring what these are:\n" + "\n".join(missing)


def test_each_script_has_a_line_that_says_what_it_is_for() -> None:
    text = (ROOT / "scripts/README.md").read_text()
    scripts = {p.name for p in (ROOT / "scripts").iterdir() if p.suffix in (".py", ".sh")}
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert scripts == listed
