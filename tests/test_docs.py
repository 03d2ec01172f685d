"""Every code block of README.md and docs/ runs, and prints what the page says (tests/docs)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.docs.blocks import blocks_of, changes_sources, pages
from tests.docs.run import Page, inside

PAGES = [
    page for page in pages() if not changes_sources(page)
]  # these: tests/test_docs_extending.py


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore:Using a target size")  # the mistake that debugging.md looks for
def test_page(path: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    page = Page(tmp_path)
    try:
        with inside(tmp_path):
            for block in blocks_of(path):
                page.run(block)
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])
