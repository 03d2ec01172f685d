"""Programs of one step each for a timed comparison of two attention kernels: gflow's own and PyTorch's."""

from __future__ import annotations

import json
from dataclasses import replace

from gflow.compiler.kernel.attention import AttentionBlocks
from gflow.compiler.kernel.attention_contest import AttentionContest
from gflow.dialects.program import (
    Argument,
    AtenStep,
    KernelStep,
    Place,
    Program,
    Result,
    Step,
    TensorRef,
)  # fmt: skip
from gflow.dialects.program.form import seal
from gflow.dialects.types import TensorType, row_major_strides

from ...aten_ops import ATTENTION, swapped
from ..declarations import declarations
from . import steps

#: the scale of the scores; times do not depend on it
SCALE = 0.125


class _Steps:
    """A list of steps that is not part of a program's builder."""

    def __init__(self) -> None:
        self.kernels: dict[str, str] = {}
        self.externals: set[str] = set()
        self.steps: list[Step] = []


def programs(
    contest: AttentionContest, blocks: AttentionBlocks, threads: int
) -> dict[str, Program]:
    """The programs by kind of kernel, "own" and "aten".

    Their inputs are q, k and v; for gradients also y, the log-sum-exp and dy.
    """
    inputs, outputs = _tensors(contest)
    read = {name: t.type for name, t in inputs.items()}
    places = {name: t.place for name, t in inputs.items()}
    made = [t.type for t in outputs]
    arguments = [
        Argument("input", name, ty, row_major_strides(ty.shape)) for name, ty in read.items()
    ]
    d, values = contest.channels, contest.values
    each = blocks.backward(d, values) if contest.grad else blocks.forward(d, values)
    found = {}
    for kind in ("own", "aten"):
        b, scratch = _Steps(), 0
        if kind == "own":
            scratch = blocks.scratch(each, threads)
            _own(b, contest, blocks, inputs, outputs)
            sizes = [ty.nbytes for ty in (*read.values(), *made)]
            b.steps = [_reaching(s, places, sizes, scratch) for s in b.steps]
        else:
            b.steps.append(_call(contest, inputs, outputs))
        results = [Result(f"r{i}", ty, None) for i, ty in enumerate(made)]
        program = Program(
            f"attention_by_{kind}", "", arguments, results, b.steps, b.kernels, declarations(b.externals, {}), scratch,
            max_threads=threads, first_write=len(b.steps),
        )  # fmt: skip
        program.seal = seal(program)
        found[kind] = program
    return found


def functions(
    contest: AttentionContest, blocks: AttentionBlocks
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the functions of gflow's own kernel, and the declarations of what they call, by name."""
    b = _Steps()
    _own(b, contest, blocks, *_tensors(contest))
    return b.kernels, declarations(b.externals, {})


def _tensors(contest: AttentionContest) -> tuple[dict[str, steps.Tensor], list[steps.Tensor]]:
    """The operands by name, and the results."""
    types = contest.types()
    names = ["q", "k", "v"] + (["y", "sums"] if contest.grad else [])
    read = {name: types[name] for name in names}
    if contest.grad:
        read["dy"] = types["y"]
    if contest.bias:
        read["bias"] = types["bias"]
    made = [types[n] for n in (("q", "k", "v") if contest.grad else ("y", "sums"))]
    inputs = {name: _tensor(Place("arg", i, 0), ty) for i, (name, ty) in enumerate(read.items())}
    return inputs, [_tensor(Place("result", i, 0), ty) for i, ty in enumerate(made)]


def _tensor(place: Place, ty: TensorType) -> steps.Tensor:
    return steps.Tensor(place, ty, tuple(row_major_strides(ty.shape)))


def _own(
    b: _Steps,
    contest: AttentionContest,
    blocks: AttentionBlocks,
    given: dict[str, steps.Tensor],
    made: list[steps.Tensor],
) -> None:
    settings = steps.Settings(SCALE, contest.causal)
    bias, scratch = given.get("bias"), Place("arena", 0, 0)
    names = ("dy", "q", "k", "v", "y", "sums") if contest.grad else ("q", "k", "v")
    tensors = [*(given[name] for name in names), *made]
    add = steps.add_backward if contest.grad else steps.add_forward
    add(b, blocks, tensors, bias, None, settings, scratch, "own")  # type: ignore[arg-type]


def _call(
    contest: AttentionContest, given: dict[str, steps.Tensor], made: list[steps.Tensor]
) -> AtenStep:
    names = ["q", "k", "v"]
    if contest.grad:
        names = ["dy", *names, "y", "sums"]
    refs = [_ref(given[name]) for name in names]
    refs = [swapped(ref) if len(ref.type.shape) == 4 else ref for ref in refs]
    outputs = [swapped(_ref(t)) if len(t.type.shape) == 4 else _ref(t) for t in made]
    keywords: dict[str, object] = {"scale": SCALE}
    if contest.bias:
        keywords["attn_mask"] = {"t": len(refs)}
        refs.append(_ref(given["bias"]))
    args = [*({"t": i} for i in range(len(names))), 0.0, contest.causal]
    suffix = "_backward.default" if contest.grad else ".default"
    text = json.dumps([args, keywords])
    return AtenStep(f"{ATTENTION}{suffix}", text, tuple(refs), tuple(outputs), "aten")


def _ref(t: steps.Tensor) -> TensorRef:
    return TensorRef(t.place, t.type, t.strides)


def _reaching(step: Step, places: dict[str, Place], sizes: list[int], scratch: int) -> Step:
    """The step with `reach`: for each address among its arguments, the bytes that it may access from there."""
    assert isinstance(step, KernelStep)
    first_result = len(places)
    reach = []
    for word in step.words:
        if isinstance(word, Place):
            number = {"arg": word.index, "result": first_result + word.index}.get(word.space)
            reach.append(scratch if number is None else sizes[number])
    return replace(step, reach=tuple(reach))
