"""gflow-opt survives mutated input: no traceback, no crash, no hang, and always a message."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz_mutations
import fuzz_opt
import pytest

FINDS = Path(__file__).parent / "fuzz_finds"


def _fuzz(seconds: float, seed: int) -> None:
    tried, finds = fuzz_opt.fuzz(seconds, seed, most=5)
    told = [f"{f.kind}: gflow-opt {f.flags}\n{f.data!r}\n{f.message[-3000:]}" for f in finds]
    assert not finds, "\n\n".join(told)
    assert tried > 0


def test_short_fuzz() -> None:
    _fuzz(10, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2, 6))
def test_long_fuzz(seed: int) -> None:
    _fuzz(60, seed)


def test_mutations_depend_on_the_seed_alone() -> None:
    parts = fuzz_mutations.corpus()
    made = [
        [fuzz_mutations.mutate(parts[i], random.Random(i), parts) for i in range(50)]
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert sum(new != old for new, old in zip(made[0], parts)) > 40


def test_crashes_and_hangs_are_put_down_to_their_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent tells what killed a child."""
    script = tmp_path / "child.py"
    monkeypatch.setattr(fuzz_opt, "__file__", str(script))
    monkeypatch.setattr(fuzz_opt, "LIMIT", 2)
    start = (
        "import ctypes, faulthandler, pathlib, sys, time\n"
        "faulthandler.enable()\n"
        "case = pathlib.Path(sys.argv[3] if sys.argv[1] == '--child' else sys.argv[2])\n"
        "case.write_text('the input'); case.with_suffix('.flags').write_text('--a')\n"
        "print('.', flush=True)\n"
    )
    ends = {
        "crash": "ctypes.string_at(0)",
        "hang": "'--again' in sys.argv and time.sleep(60)\n"
        "faulthandler.dump_traceback_later(0.2, exit=True); time.sleep(30)",
        "bug": "print('bug\\ninternal error', flush=True); sys.exit(3)",
    }
    for kind, end in ends.items():
        script.write_text(start + end)
        tried, finds = fuzz_opt.fuzz(30, 0, most=1)
        assert (tried, [f.kind for f in finds]) == (1, [kind])
        assert finds[0].data == b"the input"
        assert finds[0].flags == "--a"
