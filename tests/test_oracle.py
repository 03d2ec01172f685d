"""A share of the standing oracle: random programs and random IR; `scripts/fuzz_programs.py` runs many more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import structures
from oracle.campaign import Record, Result, campaign, parser_of, processor_time, run
from oracle.dense import Dense, LargestFirst
from oracle.growth import STRUCTURES, grow
from oracle.ir import drawn, judge_ir, judge_subject, minimized
from oracle.judge import Verdict, by_sign_of_nan, judge
from oracle.minimize import minimize
from oracle.program import Call, Program, Storage, TensorSpec, from_json, source, to_json
from oracle.run import program_of
from oracle.sizes import VARYING

from gflow import nn
from gflow.inspection.noise import Noise
from gflow.lowering import registry

FINDS = sorted((Path(__file__).parent / "oracle" / "finds").glob("*.json"))


def test_random_programs() -> None:
    seen: dict[str, int] = {}
    for seed in range(6):
        verdict = judge(grow(seed))
        assert not verdict.is_find, f"seed {seed}: {verdict}"
        seen[verdict.status] = seen.get(verdict.status, 0) + 1
    assert seen.get("ok", 0) + seen.get("rounding", 0) >= 3, seen


def test_random_programs_of_several_sizes() -> None:
    """One program for a range of sizes, where one can be had, else one for each."""
    seeds = [s for s in range(VARYING, VARYING + 12) if grow(s).settings.mode in ("graph", "train")]
    varying = [p for s in seeds if (p := program_of(s)).settings.sizes]
    assert len(varying) >= 2
    for program in varying:
        verdict = judge(program)
        assert not verdict.is_find, f"seed {program.seed}: {verdict}"


def test_structures() -> None:
    """All that graphs have, in one."""
    refused = {"grad", "vmap", "vmap, last", "cond", "checkpoint, reentrant"}

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        names = sorted(structures.WRAPPERS.keys() - refused)
        made = [structures.wrapped(x, y, name, "in place") for name in names]
        total = torch.stack([(k + 1) * m.sum() for k, m in enumerate(made)]).sum()
        return [*(m.detach() for m in made), *torch.autograd.grad(total, (x, y))]

    x, y = torch.rand(3, 4).requires_grad_(), torch.rand(3, 4).requires_grad_()
    for mine, want in zip(nn.Graph.trace(step)(x, y), step(x, y), strict=True):
        torch.testing.assert_close(mine, want)


@pytest.mark.sweep
def test_many_random_programs() -> None:
    starts = (3_000_000, VARYING + 1000, STRUCTURES + 2000)
    for seed in (s + i for s in starts for i in range(200)):
        verdict = judge(program_of(seed))
        assert not verdict.is_find, f"seed {seed}: {verdict}"


def test_random_ir() -> None:
    for seed in range(3):
        verdict = judge_ir(seed)
        assert not verdict.is_find, f"seed {seed}: {verdict}"


def test_random_ir_is_made_smaller() -> None:
    """A pipeline without a plan: code generation refuses any module."""
    subject = drawn(1)[0]
    assert subject is not None
    pipeline = "builtin.module(func.func(gflow-fuse,gflow-materialize))"
    verdict = judge_subject(subject, "cpu", pipeline)
    assert verdict.status == "crash", verdict
    small = minimized(subject, "cpu", pipeline, verdict, 10.0)
    assert len(small.text) < len(subject.text)
    again = judge_subject(small, "cpu", pipeline)
    assert (again.status, again.detail[:40]) == ("crash", verdict.detail[:40])


@pytest.mark.parametrize("find", FINDS, ids=lambda p: p.stem)
def test_earlier_finds(find: Path) -> None:
    """Programs that once showed an error, minimized."""
    verdict = judge(from_json(find.read_text()))
    assert verdict.status in ("ok", "rounding", "more", "both raise"), verdict


def test_programs_are_data() -> None:
    """A seed gives one program, in any order, and JSON keeps it."""
    programs = {seed: grow(seed) for seed in (5, 3, 9, 11)}
    for seed, program in sorted(programs.items()):
        assert to_json(grow(seed)) == to_json(program)
        again = from_json(to_json(program))
        assert source(again) == source(program)
        assert to_json(again) == to_json(program)


def _program(*calls: Call, outputs: tuple[str, ...], shape: tuple[int, ...] = (8, 4)) -> Program:
    strides = (shape[1], 1)
    storages = tuple(Storage("float32", shape[0] * shape[1], seed) for seed in (1, 2))
    tensors = tuple(TensorSpec(f"x{i}", i, shape, strides) for i in (0, 1))
    return Program(0, storages, tensors, calls, outputs)


def _ref(name: str) -> dict[str, str]:
    return {"r": name}


_LONG = _program(
    Call("v0", "torch.add", (_ref("x0"), _ref("x1"))),
    Call("v1", "torch.tanh", (_ref("v0"),)),
    Call("", ".mul_", (_ref("x0"), 2)),
    Call("v2", "torch.sum", (_ref("v1"), [0])),
    Call("v3", "torch.sigmoid", (_ref("x0"),)),
    outputs=("v2", "v3"),
)


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Programs compute tanh a little wrong."""
    right = registry.RULES["aten.tanh"]
    monkeypatch.setitem(registry.RULES, "aten.tanh", lambda em, x: right(em, x) * 1.00002)
    registry._resolved.clear()
    yield
    registry._resolved.clear()


def test_an_error_is_found_and_minimized(wrong_tanh: None) -> None:
    """Twenty parts in a million are no rounding; what is left is the one call."""
    verdict = judge(_LONG)
    assert verdict.status == "mismatch"
    assert "result 0" in verdict.detail
    small = minimize(_LONG, lambda p: judge(p).status == "mismatch", seconds=30)
    assert [c.target for c in small.calls] == ["torch.tanh"]


def test_how_far_a_program_is_minimized() -> None:
    """By what is left where each candidate is judged at once."""
    small = minimize(_LONG, lambda p: any(c.target == "torch.tanh" for c in p.calls))
    assert [c.target for c in small.calls] == ["torch.tanh"]
    assert small.settings.calls == 1
    assert len(small.tensors) == 1


def test_rounding_is_no_mismatch() -> None:
    """A difference of large numbers, a sum in another order, a comparison that tips over."""
    program = _program(
        Call("v0", "torch.sum", (_ref("x0"),)),
        Call("v1", "torch.sub", (_ref("v0"), {"py": "x0.double().sum().float()"})),
        Call("v2", "torch.matmul", (_ref("x0"), {"py": "x1.t()"})),
        Call("v3", "torch.softmax", (_ref("v2"), 1)),
        outputs=("v1", "v3"),
        shape=(64, 33),
    )
    assert judge(program).status in ("ok", "rounding")
    assert judge(replace(_LONG, outputs=("v3",))) == Verdict("ok")


def test_noise_of_additions_by_index() -> None:
    x, index, values = torch.randn(4, 8), (torch.tensor([1, 1, 3]),), torch.randn(3, 8)
    for accumulate in (False, True):
        with Noise(0):
            moved = torch.index_put(x, index, values, accumulate)
        assert moved.equal(torch.index_put(x, index, values, accumulate)) is not accumulate


def test_what_eager_leaves_open() -> None:
    """The sign of NaN, the order of a product, and the gradient of `elu` at NaN; nothing beside them."""
    bits = torch.tensor([-4194304, -4194304, 7, -1], dtype=torch.int32)
    other = torch.tensor([2143289344, 2143289345, 7 - 2**31, -2], dtype=torch.int32)
    assert by_sign_of_nan(bits, other).tolist() == [True, False, False, False]
    x = torch.tensor([[0.0, 1e30, 1e30], [2.0, -3.0, 4.0]])
    with LargestFirst():
        found = torch.prod(x, 1), torch.prod(x[1]), torch.prod(x, -1, keepdim=True)
    assert found[0][0].isnan()
    assert found[0][1] == found[1] == -24
    assert found[2].shape == (2, 1)
    x = torch.tensor([torch.nan, 2.0, -torch.inf], requires_grad=True)
    with Dense():
        (gradient,) = torch.autograd.grad(torch.nn.functional.elu(x).sum(), x)
    assert gradient[0].isnan()
    assert gradient[1:].tolist() == [1.0, 0.0]


def test_memory_beside_an_argument_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into the gap between the elements of an argument is a mismatch."""
    import gflow as flow

    spec = TensorSpec("x0", 0, (3, 2), (4, 1))
    program = Program(
        0, (Storage("float32", 12, 1),), (spec,), (Call("v0", "torch.neg", (_ref("x0"),)),), ("v0",)
    )
    assert judge(program) == Verdict("ok")
    call = flow.nn.Graph.__call__

    def spoiling(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        args[0].as_strided((1,), (1,), 3).zero_()
        return result

    monkeypatch.setattr(flow.nn.Graph, "__call__", spoiling)
    assert "memory 0" in judge(program).detail


def test_both_raise_or_neither() -> None:
    call = Call("", "torch.matmul", (_ref("x0"), _ref("x1")))
    assert judge(_program(call, outputs=("x0",))).status == "both raise"
    assert torch.is_grad_enabled()


def _waits_or_computes(seed: int, shrink: float) -> tuple[Result, str | None]:
    """Of every four seeds one waits, one computes for ever, one ends the process."""
    if seed % 4 == 1:
        time.sleep(3)
    while seed % 4 == 2:
        pass
    if seed % 4 == 3:
        os._exit(7)
    return Result(seed, "ok", seconds=shrink), None


def test_a_hang_is_told_by_processor_time() -> None:
    """Waiting for the processor is none; waiting for ever has a limit of its own."""
    found = {r.seed: r.status for r, _ in campaign(range(4), 2, 0, 1, judge=_waits_or_computes)}
    assert found == dict(enumerate(("ok", "ok", "hang", "died")))
    found = {r.seed: r.status for r, _ in campaign([0, 1], 1, 0, judge=_waits_or_computes, wall=1)}
    assert found == {0: "ok", 1: "hang"}


def test_processor_time_of_children() -> None:
    """What a child of a process computes is the process's."""
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", text], start_new_session=True) as process:
        try:
            end = time.monotonic() + 60
            while processor_time(process.pid) < 0.5 and time.monotonic() < end:
                time.sleep(0.1)
            assert processor_time(process.pid) >= 0.5
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert processor_time(process.pid) == 0


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Seeds of complete lines are done; a line that a kill cut off is judged again, and spoils no other."""
    options = parser_of("", str(tmp_path), "").parse_args(["--count", "6", "--jobs", "2"])
    done = [json.dumps(vars(Result(seed, "ok"))) for seed in (0, 4, 5)]
    (tmp_path / "results.jsonl").write_text("\n".join(done)[:-9])
    assert Record(tmp_path).done == {0, 4}
    options.seed, options.count = 4, 2
    assert run(options, Record(tmp_path), _waits_or_computes) == 0
    assert sorted(r.seed for r in Record(tmp_path).results) == [0, 4, 5]
