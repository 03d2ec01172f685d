"""A rank that ends, hangs, or does something else: the others get an error that names it, in Gloo processes."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import faulty_ranks
import pytest
import torch
from launched import start

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)
#: seconds: far more than the group's timeout and starting up take, far less than a rank that waits for ever
_PATIENCE = 240


def run(store: str, faulty: int, cases: list[str]) -> list[dict[str, str | None]]:
    """Run cases on two ranks; returns each rank's errors by case, of a rank that was killed those before."""
    ranks = [start(str(faulty_ranks.__file__), rank, store, faulty, *cases) for rank in range(2)]
    try:
        outputs = [r.communicate(timeout=_PATIENCE) for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    killed = cases[-1].startswith("killed")
    assert ranks[faulty].returncode == (-signal.SIGKILL if killed else 0), outputs[faulty][1]
    assert ranks[1 - faulty].returncode == 0, outputs[1 - faulty][1]
    found = [json.loads(out.splitlines()[-1]) if out.strip() else {} for out, _ in outputs]
    assert list(found[1 - faulty]) == cases, outputs[1 - faulty][1]
    return found


def says(error: str | None, *words: str) -> None:
    assert error is not None, words
    missing = [w for w in words if w not in error]
    assert not missing, f"{missing} not in {error}"


def test_faults(tmp_path: Path) -> None:
    cases = [name for name in faulty_ranks.CASES if name != "killed_in_compilation"]
    good, bad = run(f"file://{tmp_path}/store", 1, cases)
    for rank, found in enumerate((good, bad)):
        shapes = [f"{4 + r}x3xf32> in Sum on rank {r}" for r in range(2)]
        error = found["other_shapes"]
        says(error, "DisagreementError", f"rank {rank} and", "all_reduce", "of group", *shapes)
        decay = [f"weight_decay = {0.1 * r}" for r in range(2)]
        says(found["other_hyperparameters"], "DisagreementError", "along dp", "SGD", *decay)
        says(found["other_program_of_a_pipeline"], "DisagreementError", "in the forward of build()")
    says(good["other_shapes_later"], "rank 0 of 2", "all_reduce number 0", "faulty_ranks.py")
    says(bad["other_shapes_later"], "DisagreementError", "rank 0 has not come", "2 s", "Sum")
    says(good["hung_in_a_step"], "rank 0 of 2", " number ", "along dp", "faulty_ranks.py")
    says(good["hung_in_compilation"], "DisagreementError", "rank 1 has not come", "2 s", "Train")
    says(good["killed_in_a_step"], "rank 0 of 2", " number ", "along dp", "faulty_ranks.py")


def test_killed_with_the_store() -> None:
    """A rank is killed while it compiles, and the store with it: no rank can be asked any more."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = run(f"tcp://127.0.0.1:{port}", 0, ["killed_in_compilation"])
    says(found[1]["killed_in_compilation"], "DisagreementError", "rank 1", "Train", "store")
