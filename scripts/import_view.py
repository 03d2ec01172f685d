"""Gives the checkout its import names without an installation: a folder of links for `PYTHONPATH`.

    python scripts/import_view.py DIRECTORY

The folders `frontend`, `dialects`, `compiler` and `runtime` are imported as `gflow` and `gflow.*`; the
directory gets a `gflow` of links to them, and links to `benchmarks` and `examples`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dialects", "compiler", "runtime")
BESIDE = ("benchmarks", "examples")


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
