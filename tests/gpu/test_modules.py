"""PyTorch's samples of its modules (`module_db`) on a GPU, beside eager on the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("they need a GPU", allow_module_level=True)

from module_db import MODULES, problem, samples

torch.backends.cudnn.allow_tf32 = False  # as on the CPU
#: of each module
_MOST = 2


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("frontend", ["graph", "compile"])
def test_modules(name: str, frontend: str) -> None:
    """Two calls of a training step, or of a compiled module."""
    found = []
    for sample in itertools.islice(samples(MODULES[name], training=True), _MOST):
        text = problem(sample, frontend, "cuda")
        if text and not text.startswith("refused"):
            found.append(f"{sample.text}: {text}")
    assert not found, "\n".join(found)
