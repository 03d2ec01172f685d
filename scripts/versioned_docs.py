"""Builds the documentation of every release beside that of the checkout's commit.

    python scripts/versioned_docs.py build/docs

A release is a tag such as v0.1.0. Each version is built from its own sources, with its own notebooks and docstrings,
into a folder of its name; the commit at hand is `latest`. Each page lists the versions. `index.html` leads to the
newest release, or to `latest` where there is none, and `versions.json` lists them for other pages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LATEST = "latest"
_RELEASE = re.compile(r"v(\d+(?:\.\d+)*)\Z")


def releases(tags: list[str]) -> list[str]:
    """The tags of releases, the newest first."""
    found = [tag for tag in tags if _RELEASE.match(tag)]
    return sorted(found, key=lambda tag: [int(n) for n in tag[1:].split(".")], reverse=True)


def build(commit: str, name: str, names: list[str], target: Path) -> None:
    """Build a commit's pages into `target/name`.

    Raises:
        CalledProcessError: git, or the build, has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, view = Path(folder) / "source", Path(folder) / "view"
        source.mkdir()
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
        subprocess.run(
            [sys.executable, str(source / "scripts" / "import_view.py"), str(view)], check=True
        )
        shown = {"GFLOW_DOCS_VERSION": name, "GFLOW_DOCS_VERSIONS": ",".join(names)}
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html"]
        command += ["-d", str(Path(folder) / "doctrees"), "docs", str(target / name)]
        env = {**os.environ, **shown, "PYTHONPATH": str(view)}
        subprocess.run(command, check=True, cwd=source, env=env)


def write_index(names: list[str], target: Path) -> None:
    """Write what leads to the versions. names: the newest release first, `latest` last."""
    (target / "versions.json").write_text(json.dumps(names) + "\n", encoding="utf-8")
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
    (target / "index.html").write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="?", default="build/docs", help="default: %(default)s")
    target = Path(parser.parse_args().target).resolve()
    target.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "tag"], check=True, capture_output=True, text=True
    ).stdout.split()
    tags = releases(listed)
    names = [*tags, LATEST]
    for name in names:
        print(f"building {name}", flush=True)
        build("HEAD" if name == LATEST else name, name, names, target)
    write_index(names, target)


if __name__ == "__main__":
    main()
