"""Large arenas lie on huge pages, where the operating system offers them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gflow as flow
from gflow.runtime.cpu import huge_pages
from gflow.runtime.tensors import view_bytes

OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _flags(address: int) -> str:
    """The flags of the mapping that holds an address (`VmFlags` of proc(5))."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            first, last = (int(n, 16) for n in head.split("-"))
            inside = first <= address < last
        elif inside and head == "VmFlags:":
            return line
    return ""


@pytest.mark.skipif(
    not OFFERED.exists() or "[never]" in OFFERED.read_text(), reason="no huge pages are offered"
)
def test_a_large_block_asks_for_huge_pages() -> None:
    size = 3 * huge_pages.PAGE + 100
    block = huge_pages.block(size)
    assert block.numel() == size
    assert block.data_ptr() % huge_pages.PAGE == 0
    assert " hg" in _flags(block.data_ptr())
    small = huge_pages.block(1000)
    assert small.untyped_storage().nbytes() == 1000


def test_without_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An operating system without them, and one that has switched them off."""
    for n, text in enumerate((None, "always madvise [never]\n")):
        file = tmp_path / str(n)
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(huge_pages, "_OFFERED", file)
        huge_pages._ask.cache_clear()
        block = huge_pages.block(2 * huge_pages.LARGE)
        assert block.untyped_storage().nbytes() == block.numel() == 2 * huge_pages.LARGE
    monkeypatch.undo()
    huge_pages._ask.cache_clear()


def test_a_view_counts_from_the_beginning_of_its_block() -> None:
    room = torch.arange(100, dtype=torch.uint8)
    found = view_bytes(room[8:], torch.int32, (2, 3), (3, 1), 16)
    assert torch.equal(found, room[24:48].view(torch.int32).view(2, 3))


def test_results_are_eagers() -> None:
    """Kernels and calls of PyTorch (the sort) read and write one large arena."""

    def build(x: torch.Tensor) -> torch.Tensor:
        y = torch.sort(x.exp() @ x.cos(), dim=1).values
        return (y.cumsum(1) @ y.sin()).sum(1)

    class Sorted(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return build(x)

    graph = Sorted()
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0)).div_(32)
    found = graph(x)
    assert graph.memory().arena >= huge_pages.LARGE
    torch.testing.assert_close(found, build(x), rtol=1e-3, atol=1e-3)
