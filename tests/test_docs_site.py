"""The documentation as a site: it builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_site(tmp_path: Path) -> None:
    """Strictly: a page that no navigation lists, a link or a name that leads nowhere, a docstring
    that is no reStructuredText are errors."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(site)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    broken = list(broken_in_site(site))
    assert not broken, "\n".join(broken)
    built = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
    reference = (site / "api.html").read_text("utf-8")
    for name in ("gflow.nn.Graph.add_optimizer", "gflow.save", "gflow.compile"):
        assert f'id="{name}"' in reference
