"""How lit runs the tests of this folder: `lit lit_tests`.

`%gflow-opt` is this environment's gflow-opt, or the command GFLOW_LIT_OPT; FileCheck comes with the triton wheel.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import lit.formats


def find_filecheck() -> str:
    spec = importlib.util.find_spec("triton")
    bundled = Path(spec.origin).parent / "FileCheck" if spec and spec.origin else None
    if bundled and bundled.exists():
        return str(bundled)
    return shutil.which("FileCheck") or "FileCheck"


config.name = "gflow"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".test"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = str(Path(__file__).parent)  # noqa: F821
config.test_exec_root = os.environ.get(  # noqa: F821
    "GFLOW_LIT_OUTPUT", str(Path(__file__).parent / "Output")
)
config.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")  # noqa: F821
config.environment["PYTHONDONTWRITEBYTECODE"] = ""  # noqa: F821
config.substitutions += [  # noqa: F821
    (
        "%gflow-opt",
        os.environ.get("GFLOW_LIT_OPT", f"{sys.executable} -m gflow.compiler.tools.opt"),
    ),
    ("FileCheck", find_filecheck()),
    ("%python", sys.executable),
]
