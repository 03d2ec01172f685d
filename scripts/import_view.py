"""Gives the checkout its import names without an installation: a folder of links for `PYTHONPATH`.

    python scripts/import_view.py DIRECTORY

The folders `frontend`, `dialects`, `compiler` and `runtime` are imported as `gflow` and `gflow.*`; the
directory gets a `gflow` of links to them, and links to `benchmarks` and `examples`. Metadata beside them have the
version and the entry points, so that `torch.compile(backend="gflow")` finds the backend.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dialects", "compiler", "runtime")
BESIDE = ("benchmarks", "examples")
VERSION = re.compile(r'^version = "(.*)"$', re.MULTILINE)
#: a group's name and its lines
ENTRY_POINTS = re.compile(r"^\[project\.entry-points\.(.*)\]\n((?:.+ = .+\n)*)", re.MULTILINE)


def make_view(view: Path) -> None:
    """Links every entry of `frontend/`, and the three other folders beside them, as `gflow`."""
    shutil.rmtree(view, ignore_errors=True)
    gflow = view / "gflow"
    gflow.mkdir(parents=True)
    for entry in (ROOT / "frontend").iterdir():
        if entry.suffix in (".py", ".pyi", ".typed") or (entry / "__init__.py").exists():
            (gflow / entry.name).symlink_to(entry)
    for name in PACKAGES:
        (gflow / name).symlink_to(ROOT / name)
    for name in BESIDE:
        (view / name).symlink_to(ROOT / name)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    metadata = view / f"gflow_compiler-{VERSION.search(text)[1]}.dist-info"  # type: ignore[index]
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gflow-compiler\nVersion: {VERSION.search(text)[1]}\n",  # type: ignore[index]
        encoding="utf-8",
    )
    groups = (f"[{name}]\n{found}" for name, found in ENTRY_POINTS.findall(text.replace('"', "")))
    (metadata / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="replaced, where it is an earlier view")
    view = parser.parse_args().directory
    if view.exists() and any(view.iterdir()) and not (view / "gflow").is_dir():
        parser.error(f"{view} has other files in it, and would be deleted")
    make_view(view)


if __name__ == "__main__":
    main()
