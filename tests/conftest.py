"""What all tests share."""

from __future__ import annotations

import os

from benchmarks.workloads.third_party import declare_torchvision_ops

# Tests compile: what an earlier run left on disk must not stand in for the code at hand.
os.environ.setdefault("GFLOW_CACHE", "0")

# Lines about the progress of builds would come where the machine is slow.
os.environ.setdefault("GFLOW_PROGRESS", "0")

declare_torchvision_ops()
