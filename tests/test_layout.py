"""The folders and their arrows: who may import whom, and that importing little stays little."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "gflow": ROOT / "frontend",
    "gflow.dialects": ROOT / "dialects",
    "gflow.compiler": ROOT / "compiler",
    "gflow.runtime": ROOT / "runtime",
}
MAY_IMPORT = {
    "gflow": {"gflow", "gflow.compiler", "gflow.runtime", "gflow.dialects"},
    "gflow.dialects": {"gflow.dialects"},
    "gflow.compiler": {"gflow.compiler", "gflow.dialects"},
    "gflow.runtime": {"gflow.runtime", "gflow.dialects"},
}
# Parts of PyTorch that only tracing and compiling need.
TRACING_MACHINERY = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def owner(module: str) -> str | None:
    """The folder that holds a module, by its import name; None when it is not ours."""
    for package in ("gflow.dialects", "gflow.compiler", "gflow.runtime", "gflow"):
        if module == package or module.startswith(package + "."):
            return package
    return None


def imports(path: Path, module: str, is_package: bool) -> list[tuple[int, str]]:
    """Every module that a file imports, at the top or inside a function, with its line."""
    found = []
    base = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = base[: len(base) - node.level + 1] if node.level else []
            name = ".".join([*start, *filter(None, [node.module])])
            # `from gflow import compiler` names the package in the list of names
            found += [
                (node.lineno, f"{name}.{alias.name}" if name == "gflow" else name)
                for alias in node.names
            ]
    return found


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
        for line, name in imports(path, module, path.name == "__init__.py"):
            target = owner(name)
            if target is not None and target not in MAY_IMPORT[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {package} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_relative_imports_are_resolved() -> None:
    """The check above sees through `from ..x import y`."""
    for module, path in our_files():
        if path.match("dialects/ops/__init__.py"):
            names = {name for _, name in imports(path, module, True)}
            assert "gflow.dialects.opdef" in names
            return
    pytest.fail("dialects/ops/__init__.py is gone; give this test another file")


def test_one_import_of_the_bindings() -> None:
    users = [
        str(path.relative_to(ROOT))
        for module, path in our_files()
        for _, name in imports(path, module, path.name == "__init__.py")
        if name.split(".")[0] in ("torch_mlir", "mlir")
    ]
    assert set(users) <= {"dialects/mlir.py"}


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
