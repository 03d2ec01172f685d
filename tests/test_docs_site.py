"""The documentation as a site: it builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, pages
from tests.docs.links import anchors, broken_in_markdown, broken_in_site


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_links(page: Path) -> None:
    broken = list(broken_in_markdown(page))
    assert not broken, "\n".join(broken)


def test_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Switches: `graph.config`\n\n## What, when\n\n## What, when\n\n[a](#nowhere)\n"
    )
    assert anchors(page) == {"switches-graphconfig", "what-when", "what-when-1"}
    assert list(broken_in_markdown(page)) == [f"{page}:7: #nowhere: no such heading"]


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return importlib.import_module("notebooks")


def test_cells(notebooks: Any) -> None:
    cells = [
        "x = 2\nprint('`a`')\nx + 1",
        "```",
        "class A:\n def _repr_html_(self): return '<b>A</b>'\nA()",
        "x = 3",
    ]
    kinds = ("code", "markdown", "code", "code")
    page = notebooks.markdown(
        {"cells": [{"cell_type": k, "source": [c]} for k, c in zip(kinds, cells, strict=True)]}, "n"
    )
    assert "```text\n`a`\n3\n```\n\n```\n\n" in page
    assert '```{raw} html\n<div class="notebook-output"><b>A</b></div>\n```' in page
    assert page.endswith("```python\nx = 3\n```\n")
    failing = {"cells": [{"cell_type": "code", "source": ["y = 1\n", "y / 0"]}]}
    with pytest.raises(notebooks.CellFailed, match="n, cell 1: ZeroDivisionError: division"):
        notebooks.markdown(failing, "n")


def test_notebooks_are_kept_without_outputs() -> None:
    for path in (ROOT / "docs").glob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs"), path
            assert cell.get("execution_count") is None, path


def test_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    versioned = importlib.import_module("versioned_docs")
    assert versioned.releases(["v0.9.0", "v0.10.1", "nightly", "v1", "0.3"]) == [
        "v1",
        "v0.10.1",
        "v0.9.0",
    ]
    versioned.write_index(["v1", "latest"], tmp_path)
    assert "url=v1/index.html" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "versions.json").read_text()) == ["v1", "latest"]


def test_site(tmp_path: Path) -> None:
    """Strictly: a page that no navigation lists, a link or a name that leads nowhere, a docstring
    that is no reStructuredText are errors."""
    site = tmp_path / "site"
    shown = {"GFLOW_DOCS_VERSION": "latest", "GFLOW_DOCS_VERSIONS": "v0.2.0,latest"}
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(site)],
        env={**os.environ, "NO_COLOR": "1", **shown},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "v0.2.0").mkdir()  # the other version, which each page links to
    (tmp_path / "v0.2.0" / "index.html").write_text("<html></html>")
    broken = list(broken_in_site(site))
    assert not broken, "\n".join(broken)
    built = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
    tutorial = (site / "tutorial.html").read_text("utf-8")  # what the build made of the notebook
    for shown in ("step 59: loss 0.", "(MODULE:model.0.up", "a call</b>", "steps so far: "):
        assert shown in tutorial, shown
    assert '<b aria-current="true">latest</b>' in tutorial
    assert '<a href="./../v0.2.0/index.html">v0.2.0</a>' in tutorial
    reference = (site / "api.html").read_text("utf-8")
    for name in ("gflow.nn.Graph.add_optimizer", "gflow.save", "gflow.compile"):
        assert f'id="{name}"' in reference
