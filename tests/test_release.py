"""Tensors of collectives are held until the process group's threads have let go of them."""

from __future__ import annotations

import pytest
import torch

from gflow.runtime.distributed import release


def test_what_is_still_referred_to_is_held() -> None:
    """What autograd has saved stands for the thread that has not dropped the tensor yet."""
    tensor = torch.ones(4)
    taken = release.references([tensor])
    product = torch.ones(4, requires_grad=True) * tensor
    assert tensor._use_count() > taken[0][1]
    release.release(taken)
    assert any(t is tensor for t, _ in release._held)
    del product
    release.release(())
    assert not any(t is tensor for t, _ in release._held)


def test_the_end_of_the_process_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(4)
    monkeypatch.setattr(release, "_held", [(tensor, tensor._use_count() - 1)])
    monkeypatch.setattr(release, "_PATIENCE", 0.01)
    release._wait()
    assert release._held


def test_a_collective_uses_its_tensors() -> None:
    """As above, for a collective that is complete at the end of the block."""
    tensor = torch.ones(4)
    with release.used(tensor):
        product = torch.ones(4, requires_grad=True) * tensor
    assert any(t is tensor for t, _ in release._held)
    del product
    release.release(())
    assert not any(t is tensor for t, _ in release._held)
