"""The parts of a frozen graph that are computed once, and the tensors that it reads at each call."""

from __future__ import annotations

from collections import Counter

from gflow.call.plans.plan import Plan
from gflow.compiler.ir.frozen import GIVEN, UNQUANTIZED
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.ir.ssa import read_body
from gflow.compiler.ir.tables import table
from gflow.compiler.reports.visual.page import byte_text
from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.execution.frozen import unfrozen, written
from gflow.runtime.composed.frozen import Frozen

from .stage import module_at

_SHOWN = 12
_MOST = 20


@record
class QuantizedWeight:
    """A quantized weight: its name (or those of the tensors that it is computed from), the relative error ‖w - w'‖ /
    ‖w‖, and the number of bytes that a call no longer reads."""

    name: str
    bits: int
    error: float
    saved: int


@record
class FrozenWeights:
    """Report on a frozen graph (`config.freeze()`).

    Attributes: computed: the tensors that the prologue reads. results, bytes: the number of tensors that it computes
    from them, and their bytes. runs: how often the prologue has run: once, and again after each change. read: the
    frozen tensors that a call reads directly. unfrozen: by the name of a tensor, why it is not frozen. quantized: the
    quantized weights. unquantized: with `freeze(weights=…)`, the frozen weights that keep their type, each with the
    reason.
    """

    computed: tuple[str, ...]
    results: int
    bytes: int
    runs: int
    read: tuple[str, ...]
    unfrozen: dict[str, str]
    quantized: tuple[QuantizedWeight, ...] = ()
    unquantized: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"Frozen: {self.results} tensors ({byte_text(self.bytes)}) computed of {len(self.computed)} parameters, "
            f"buffers and captured tensors, {self.runs} times so far; {len(self.read)} are read as they are."
        ]
        for why, count in Counter(self.unfrozen.values()).items():
            names = [name for name, given in self.unfrozen.items() if given == why]
            more = f", and {count - _SHOWN} more" if count > _SHOWN else ""
            lines.append(f"  not frozen, since {why}: {', '.join(names[:_SHOWN])}{more}")
        if self.quantized:
            saved = byte_text(sum(w.saved for w in self.quantized))
            worst = max(self.quantized, key=lambda w: w.error)
            lines.append(
                f"  {len(self.quantized)} weights in {worst.bits} bits, {saved} less to read; the largest error is "
                f"{worst.error:.2%}, of {worst.name}"
            )
            rows = [("weight", "relative error", "saved")]
            rows += [(w.name, f"{w.error:.3%}", byte_text(w.saved)) for w in self.quantized[:_MOST]]
            lines += ["", table(rows, "<>>")]
            lines += _rest(len(self.quantized))
        lines += [f"  not quantized: {why}" for why in self.unquantized[:_MOST]]
        return "\n".join([*lines, *_rest(len(self.unquantized))])


def _rest(count: int) -> list[str]:
    """The note that a list is longer than shown."""
    return [f"  and {count - _MOST} more"] if count > _MOST else []


def _quantized(plan: Plan, run: Frozen) -> tuple[list[QuantizedWeight], list[str]]:
    """The quantized weights, and the reasons for the others."""
    module = module_at(plan, "frozen")
    found: list[QuantizedWeight] = []
    left: dict[str, None] = {}
    with module.context:
        function = entry_function(module)
        body = read_body(function)
        given = dict(zip(body.arguments, ir.DenseI64ArrayAttr(function.attributes[GIVEN])))
        values = run.constants_now(plan.arguments)
        for o in body.ops:
            if UNQUANTIZED in o.op.attributes:
                left[ir.StringAttr(o.op.attributes[UNQUANTIZED]).value] = None
            if o.name != "quantized_matmul":
                continue
            attrs = read(OPS[o.name], o.op.attributes)
            _, weight, scales, error = o.operands
            x, y = body.types[o.operands[0]], body.types[o.results[0]]
            now = body.types[weight].nbytes + body.types[scales].nbytes
            saved = 4 * x.shape[1] * y.shape[1] - now
            told = values[-1 - given[error]].item()
            found.append(QuantizedWeight(attrs["source"], attrs["bits"], told, saved))
    return [*dict.fromkeys(found)], [*left]


def frozen_weights(plan: Plan) -> FrozenWeights | None:
    """The report on a plan; None if its graph is not frozen."""
    options = plan.compiled.options
    if options is None or not options.passes.freeze:
        return None
    inputs, updated = plan.trace.inputs, written(plan.trace)
    lasting = [i for i in inputs if i.role in ("parameter", "buffer", "constant")]
    left = {i.name: why for i in lasting if (why := unfrozen(i, updated))}
    run = plan.compiled.run
    if not isinstance(run, Frozen):
        return FrozenWeights(
            (), 0, 0, 0, tuple(i.name for i in lasting if i.name not in left), left
        )
    kept = (inputs[n] for n in run.given if 0 <= n < len(inputs))
    as_they_are = tuple(i.name for i in kept if i.value.id in plan.trace.frozen)
    constants, count = run.constants, len(run.constants.program.results)
    quantized, others = _quantized(plan, run) if options.passes.weight_bits else ([], [])
    return FrozenWeights(
        constants.names, count, constants.bytes, constants.runs, as_they_are, left, tuple(quantized), tuple(others),
    )  # fmt: skip
