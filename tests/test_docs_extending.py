"""The pages docs/adding_*.md work as they say, on a copy of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, changes_sources, pages
from tests.docs.scratch import run_on_a_copy

PAGES = [page for page in pages() if changes_sources(page)]


def test_there_are_pages() -> None:
    assert {page.name for page in PAGES} >= {
        "adding_an_op.md",
        "adding_a_pass.md",
        "adding_a_target.md",
        "adding_a_kernel_template.md",
    }
    assert all(page.is_relative_to(ROOT / "docs") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page: Path, tmp_path: Path) -> None:
    run_on_a_copy(page, tmp_path)
