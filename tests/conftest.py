"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# Workers share the cores: a thread that spins while it waits takes them from another worker. libgomp reads this when
# PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from order import longest_first
from shares import mark_the_rest

from benchmarks.workloads.third_party import declare_torchvision_ops
from gflow import compiler
from gflow.call.modes import Modes
from gflow.compiler.driver import options
from gflow.runtime.stored import program_io

# Tests compile: what an earlier run left on disk must not stand in for the code at hand.
os.environ.setdefault("GFLOW_CACHE", "0")

# Lines about the progress of builds would come where the machine is slow.
os.environ.setdefault("GFLOW_PROGRESS", "0")

# On a GPU tests measure nothing unless they ask for it: they compile thousands of small graphs.
options.TUNE_SECONDS = 0.0

declare_torchvision_ops()

# pytest adds handlers to each logger that does not propagate, and where this one has a handler, PyTorch writes a trace
# of all that it compiles, as JSON.
logging.getLogger("torch.__trace").propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_the_rest(items)
    longest_first(items)
    if core := sys.modules.get("torch.testing._internal.opinfo.core"):
        # It reads the source of every frame of the stack for each sample, in search of a test case of PyTorch's own.
        core.__dict__["extract_test_fn"] = lambda: None


def pytest_collection_finish() -> None:
    """Modules stay: full collections of garbage need not walk what was imported again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same random numbers whichever tests ran before it in its process."""
    seed = zlib.crc32(request.node.nodeid.rpartition("tests/")[2].encode())
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.fixture(autouse=True)
def stored_programs_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program that a test compiles passes the check of programs that are loaded from a file."""
    compile_programs = compiler.compile_programs

    def checked(*args: Any, **kwargs: Any) -> compiler.Programs:
        programs = compile_programs(*args, **kwargs)
        for program in (programs.main, programs.prologue):
            if program is not None:
                program_io.from_bytes(program_io.to_bytes(program))
        return programs

    monkeypatch.setattr(compiler, "compile_programs", checked)


@pytest.fixture(autouse=True)
def modes_are_put_back() -> Iterator[None]:
    """A test that leaves PyTorch in another mode fails, not those that come after it in its process."""
    before = Modes.current()
    yield
    found = Modes.current()
    before.restore()
    assert found == before


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """TorchDynamo without programs, before and after a test; random numbers from seed 0."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
