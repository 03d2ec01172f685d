"""`import gflow as flow` stands in for PyTorch; submodules import as such."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_are_pytorchs() -> None:
    import gflow as flow

    assert flow.randn is torch.randn
    assert flow.Tensor is torch.Tensor
    assert flow.nn.Linear is torch.nn.Linear
    assert flow.nn.functional is torch.nn.functional
    assert flow.optim.SparseAdam is torch.optim.SparseAdam
    assert issubclass(flow.optim.SGD, torch.optim.SGD)
    assert flow.cuda.is_available is torch.cuda.is_available
    assert flow.vmap is torch.vmap
    assert flow.nn.Graph.__module__ == "gflow.graph"
    assert "randn" in dir(flow)
    with pytest.raises(AttributeError, match="neither gflow nor torch has 'no_such_name'"):
        flow.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match=r"neither gflow.nn nor torch.nn"):
        flow.nn.NoSuchLayer  # noqa: B018


def test_submodules_import() -> None:
    run(
        "import gflow as flow\n"
        "import gflow.nn as nn\n"
        "import gflow.nn.functional as F\n"
        "from gflow.nn import functional, Graph, init\n"
        "import gflow.optim as optim\n"
        "from gflow.optim import lr_scheduler\n"
        "from gflow.optim.lr_scheduler import StepLR\n"
        "import gflow.amp\n"
        "from gflow.utils.data import DataLoader, TensorDataset\n"
        "import gflow.nn.utils.rnn\n"
        "import gflow.nn.modules.linear\n"
        "import gflow.distributed\n"
        "from gflow import Tensor, nn as nn2\n"
        "import torch\n"
        "assert F is torch.nn.functional is functional\n"
        "assert optim.NAdam is torch.optim.NAdam and set(dir(torch.optim)) <= set(dir(optim))\n"
        "import gflow.optim.swa_utils\n"
        "assert optim.swa_utils is torch.optim.swa_utils and optim is flow.optim\n"
        "assert set(dir(torch.optim.lr_scheduler)) <= set(dir(lr_scheduler))\n"
        "assert issubclass(StepLR, torch.optim.lr_scheduler.StepLR) and nn2 is nn\n"
        "assert DataLoader is torch.utils.data.DataLoader\n"
        "assert gflow.nn.modules.linear is torch.nn.modules.linear\n"
        "assert torch.nn.functional.__spec__.name == 'torch.nn.functional'\n"
        "assert torch.optim.__name__ == 'torch.optim'\n"
        "assert issubclass(type(nn.Linear(1, 1)), torch.nn.Module)\n"
    )


def test_missing_submodule() -> None:
    code = (
        "try:\n    import gflow.no_such_module\n"
        "except ModuleNotFoundError as e:\n    print(e)\n"
        "try:\n    from gflow import no_such\n"
        "except ImportError as e:\n    print(e)\n"
    )
    out = run(code)
    assert "gflow.no_such_module" in out
    assert "no_such" in out


@pytest.mark.parametrize("module", ["gflow.runtime", "gflow.dialects"])
def test_parts_load_without_tracing(module: str) -> None:
    out = run(
        f"import sys, {module}\n"
        "print([m for m in sys.modules if m.startswith(('gflow.tracing', 'gflow.graph', "
        "'gflow.lowering', 'gflow.nn', 'torch._dynamo'))])\n"
    )
    assert out.strip() == "[]"


def test_import_is_light() -> None:
    out = run("import sys, gflow\nprint('torch_mlir' in sys.modules, 'gflow.nn' in sys.modules)")
    assert out.strip() == "False False"
