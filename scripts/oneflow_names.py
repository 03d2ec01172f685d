"""Write tests/oneflow_names.json: the public names of OneFlow's graphs, optimizers and schedulers, with the parameters
of each, and the functions that its page of functions lists.

    python scripts/oneflow_names.py GIT_DIR

GIT_DIR: a clone of OneFlow's repository (its .git, or a bare clone).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "tests" / "oneflow_names.json"
GRAPH = "python/oneflow/nn/graph/"
#: what is public of these classes
CLASSES = {
    f"{GRAPH}graph.py": ["Graph"],
    f"{GRAPH}graph_config.py": ["GraphConfig"],
    f"{GRAPH}graph_block.py": ["GraphBlock", "GraphModule", "GraphTensor"],
    f"{GRAPH}proxy.py": ["Proxy", "ProxyModule"],
}
#: files that import what is public
PUBLIC = {
    "optim": "python/oneflow/optim/__init__.py",
    "lr_scheduler": "python/oneflow/optim/lr_scheduler.py",
}
#: private methods of graphs that OneFlow's documents call
DOCUMENTED = (
    "__init__",
    "__call__",
    "_compile",
    "_graph_proto",
    "_full_graph_proto",
    "_compiled_graph_proto",
)


def read(git: str, path: str) -> str:
    """A file of the newest commit."""
    command = ["git", f"--git-dir={git}", "show", f"HEAD:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of a function's parameters, but for `self`."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return [n for n in names if n != "self"]


def methods(tree: ast.Module, kind: str) -> dict[str, list[str]]:
    """Public methods and properties of a class, with their parameters."""
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind).body
    found: dict[str, list[str]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name in DOCUMENTED):
            found.setdefault(node.name, parameters(node))
    return found


def constructors(git: str, listing: str) -> dict[str, list[str]]:
    """The classes that a file imports from OneFlow's optimizers, with the parameters of their constructors."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(read(git, listing)).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("oneflow."):
            tree = ast.parse(read(git, f"python/{node.module.replace('.', '/')}.py"))
            for alias in node.names:
                name = alias.asname or alias.name
                if name[0] != "_":
                    found[name] = methods(tree, alias.name).get("__init__", [])
    return found


def functions(git: str) -> list[str]:
    """The names under `oneflow.` that the page of functions lists."""
    text = read(git, "docs/source/oneflow.rst")
    return sorted({m[1] for m in re.finditer(r"^    (\w+) *$", text, re.MULTILINE)})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("git_dir")
    git = parser.parse_args().git_dir
    found: dict[str, object] = {
        kind: methods(ast.parse(read(git, path)), kind)
        for path, kinds in CLASSES.items()
        for kind in kinds
    }
    found |= {name: constructors(git, path) for name, path in PUBLIC.items()}
    found["functions"] = functions(git)
    TARGET.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
