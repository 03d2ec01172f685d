"""Package mapping: the top-level folders are one Python package.

    frontend/ = gflow    dialects/ = gflow.dialects
    compiler/ = gflow.compiler    runtime/ = gflow.runtime

Subpackages are found, not listed: a new folder with an `__init__.py` is part of the
package without an edit here. Everything else is in `pyproject.toml`.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
FOLDERS = {
    "gflow": "frontend",
    "gflow.dialects": "dialects",
    "gflow.compiler": "compiler",
    "gflow.runtime": "runtime",
}


def packages() -> list[str]:
    found = []
    for name, folder in FOLDERS.items():
        found.append(name)
        found += [f"{name}.{sub}" for sub in find_packages(str(ROOT / folder))]
    return found


setup(package_dir=FOLDERS, packages=packages())
