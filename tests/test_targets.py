"""The table of devices, and that no other file has such numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.emit.triton.toolchain.machine_code import FAMILIES
from gflow.compiler.targets import (
    CUDA_ARCHS,
    DEFAULT_ARCHS,
    DEVICES,
    Target,
    parse_target,
    target_of_arch,
)
from gflow.compiler.targets.devices import MMA_SHARED, MMA_TF32, TMA

COMPILER = Path(__file__).resolve().parent.parent / "compiler"


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_devices_are_complete(device) -> None:
    assert device.bandwidth > 0
    assert device.vector > 0
    assert device.launch > 0
    assert {"f32", "f64"} <= device.matmul.keys()
    if device.warp:
        assert device.multiprocessors > 0
        assert device.l2_bandwidth > 0
        assert device.shared_memory >= 64 << 10
        assert device.warps % device.blocks == 0
        assert ("tf32" in device.matmul) == (MMA_TF32 in device.features)


def test_targets_have_devices() -> None:
    for arch in CUDA_ARCHS:
        target = parse_target(f"cuda:{arch}")
        assert target == Target("cuda", arch)
        assert target.device.arch == arch
    assert parse_target("cpu").device.kind == "cpu"
    assert parse_target("cuda:90").device.name == "h100"
    # bulk copies, but products of operands in registers
    assert parse_target("cuda:120").has(TMA)
    assert not parse_target("cuda:120").has(MMA_SHARED)
    with pytest.raises(ValueError, match="one of 75, 80"):
        parse_target("cuda:91")
    assert parse_target("hip") == Target("hip", "gfx942") == target_of_arch("gfx942")
    assert str(target_of_arch(90)) == "cuda:90"
    with pytest.raises(
        ValueError, match="after 'hip:' stands an architecture of AMD's, one of gfx942"
    ):
        parse_target("hip:gfx9")
    with pytest.raises(ValueError, match="'cpu' is the machine at hand"):
        parse_target("cpu:avx2")
    assert {d.kind for d in DEVICES.values()} == {*DEFAULT_ARCHS} == {*FAMILIES, "cpu"}


@pytest.mark.parametrize("name", ["cuda:90", "hip:gfx942"])
def test_a_gpu_is_asked_for_by_what_it_has(name: str) -> None:
    assert parse_target(name).gpu
    assert "gflow-join-reductions" in pipeline_for(name)
    assert not parse_target("cpu").gpu


@pytest.mark.parametrize("name", ["cpu", "cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(
    ("options", "may"),
    [
        (PipelineOptions(), False),
        (PipelineOptions(recomputation_time=0.02), True),
        (PipelineOptions(memory_budget=1 << 20), True),
        (PipelineOptions(straighten="MemoryFirst"), True),
    ],
)
def test_gpus_repeat_casts_only_for_memory(name: str, options: PipelineOptions, may: bool) -> None:
    repeats = "gflow-repeat-copies" in pipeline_for(name, options)
    assert repeats == (may or name == "cpu")


def test_no_code_asks_for_an_architecture() -> None:
    """What a device can do is a feature or a size of the table, not a comparison of numbers or of names of kinds."""
    compared = re.compile(
        r"\barch\w*\s*(?:[<>]=?|==|!=|in)\s*[(\d]|\.arch\s*(?:[<>]=?|==|!=)"
        r"|\.kind\s*(?:==|!=|in)\s*\(?\"(?:cpu|cuda|hip)\"|startswith\(\"(?:cuda|hip)\"|kind == \"cuda\""
    )
    for path in COMPILER.rglob("*.py"):
        if path.parent.name != "targets":
            found = compared.search(path.read_text())
            assert found is None, f"{path}: {found and found[0]}"
