"""The lit suite, as one test: `lit lit_tests` gives the details."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from warm import Server

from gflow.compiler.driver.pass_manager import our_passes
from gflow.dialects.ops import OPS

LIT_TESTS = Path(__file__).resolve().parent.parent / "lit_tests"


def test_lit_suite_passes(tmp_path: Path) -> None:
    code = "import sys; from lit.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "-v", "-j2", str(LIT_TESTS)]
    server = Server(["gflow.compiler.tools.opt"])
    environment = {
        "GFLOW_LIT_OUTPUT": str(tmp_path),
        "GFLOW_LIT_OPT": shlex.join(server.command("gflow.compiler.tools.opt")),
    }
    done = subprocess.run(
        command, text=True, capture_output=True, check=False, env={**os.environ, **environment}
    )
    server.close()
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def _text() -> str:
    return "\n".join(path.read_text() for path in LIT_TESTS.rglob("*.mlir"))


def test_every_op_has_a_lit_test() -> None:
    text = _text()
    assert [name for name in OPS if f'"gflow.{name}"' not in text] == []


def test_every_pass_has_a_lit_test() -> None:
    runs = "\n".join(re.findall(r"RUN:.*", _text()))
    assert [name for name in our_passes() if name not in runs] == []
