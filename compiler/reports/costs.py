"""The cost of a program before and after the passes: kernels, bytes moved, operations, time on a device.

    found = report(before, after, "h100")
    print(found)

The time is a roofline (see `cost`), a lower bound for the device. It is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..driver.pipeline_text import nearest
from ..ir import cost as costs
from ..ir.dynamic_sizes import sized
from ..ir.locations import Source, source_of
from ..ir.ssa import Op
from ..ir.tables import count_text, ratio, table, time_text
from ..memory.planned import label
from ..targets import DEVICES, Device
from .visual.page import byte_text

_HEAVIEST = 12


@record
class OpCost:
    """The cost of one op. index: its position in its function."""

    index: int
    kind: str
    label: str
    type: str
    bytes: int
    flops: int
    seconds: float
    source: Source


@dataclass
class Measure:
    """The cost of all functions of a module. arena: bytes of the planned arenas, or None if memory is not planned.

    aten: ATen calls by overload, each with the source locations of its uses.
    """

    ops: list[OpCost] = field(default_factory=list)
    aten: dict[str, list[Source]] = field(default_factory=dict)
    arena: int | None = None

    @property
    def kernels(self) -> int:
        """The number of ops."""
        return len(self.ops)

    @property
    def bytes(self) -> int:
        """The bytes that all ops read and write."""
        return sum(o.bytes for o in self.ops)

    @property
    def flops(self) -> int:
        """Floating point operations."""
        return sum(o.flops for o in self.ops)

    @property
    def seconds(self) -> float:
        """The predicted time, in seconds."""
        return sum(o.seconds for o in self.ops)


@record
class Report:
    """A program before and after the passes, on a device. `str()` gives the text for people."""

    device: Device
    before: Measure
    after: Measure

    @property
    def bytes_ratio(self) -> float:
        """Bytes moved after the passes, divided by bytes moved before them."""
        return self.after.bytes / self.before.bytes if self.before.bytes else 1.0

    @property
    def heaviest(self) -> list[OpCost]:
        """The slowest ops after the passes, slowest first."""
        return sorted(self.after.ops, key=lambda o: (-o.seconds, o.index))[:_HEAVIEST]

    def __str__(self) -> str:
        parts = [self._totals(), self._kinds(), self._heavy()]
        if self.after.aten:
            parts.append(self._aten())
        return "\n\n".join(parts) + "\n"

    def _totals(self) -> str:
        a, b = self.before, self.after
        rows = [
            ("", "before", "after", ""),
            ("kernels", f"{a.kernels:,}", f"{b.kernels:,}", ratio(b.kernels, a.kernels)),
            ("bytes moved", byte_text(a.bytes), byte_text(b.bytes), ratio(b.bytes, a.bytes)),
            ("operations", count_text(a.flops), count_text(b.flops), ratio(b.flops, a.flops)),
            (
                f"least time on {self.device.name}",
                time_text(a.seconds),
                time_text(b.seconds),
                ratio(b.seconds, a.seconds),
            ),
        ]
        if b.arena is not None:
            rows.append(("arena", "", byte_text(b.arena), ""))
        return table(rows, "<>>>")

    def _kinds(self) -> str:
        kinds: dict[str, list[OpCost]] = {}
        for o in self.after.ops:
            kinds.setdefault(o.kind, []).append(o)
        rows = [("kind", "kernels", "bytes", "operations", "time", "share")]
        total = self.after.seconds
        for kind, ops in sorted(kinds.items(), key=lambda item: -sum(o.seconds for o in item[1])):
            seconds = sum(o.seconds for o in ops)
            rows.append(
                (
                    kind,
                    f"{len(ops):,}",
                    byte_text(sum(o.bytes for o in ops)),
                    count_text(sum(o.flops for o in ops)),
                    time_text(seconds),
                    ratio(seconds, total),
                )
            )
        return "By kind, after the passes:\n\n" + table(rows, "<>>>>>")

    def _heavy(self) -> str:
        rows = [("kernel", "bytes", "operations", "time", "from")]
        for o in self.heaviest:
            place = str(o.source)
            rows.append(
                (o.label, byte_text(o.bytes), count_text(o.flops), time_text(o.seconds), place)
            )
        return "The heaviest kernels:\n\n" + table(rows, "<>>><")

    def _aten(self) -> str:
        lines = ["warning: these ops have no kernels and run through PyTorch:", ""]
        for overload, sources in sorted(self.after.aten.items(), key=lambda i: (-len(i[1]), i[0])):
            places = list(dict.fromkeys(str(s) for s in sources if str(s)))
            shown = "; ".join(places[:3])
            more = f"; and {len(places) - 3} more places" if len(places) > 3 else ""
            lines.append(f"  {len(sources):>4} × {overload}  {shown}{more}".rstrip())
        return "\n".join(lines)


def device_named(name: str) -> Device:
    """
    Raises:
        ValueError: there is no such device.
    """
    if name not in DEVICES:
        raise ValueError(
            f"no device '{name}'{nearest(name, DEVICES)} (known: {', '.join(DEVICES)})"
        )
    return DEVICES[name]


def measure(module: ir.Module | ir.Operation, device: Device | str) -> Measure:
    """The cost of a module's functions on a device."""
    if isinstance(device, str):
        device = device_named(device)
    found = Measure()
    root = module.operation
    with root.context:
        for region in root.regions:
            for block in region:
                for view in block.operations:
                    if isinstance(view.operation.opview, func.FuncOp):
                        with sized(view.operation):
                            _measure_function(view.operation, device, found)
    return found


def _measure_function(function: ir.Operation, device: Device, found: Measure) -> None:
    size = function.attributes.get("gflow.arena_size", None)
    if isinstance(size, ir.IntegerAttr):
        found.arena = (found.arena or 0) + size.value
    for block in function.regions[0].blocks:
        for view in block.operations:
            op = view.operation
            if not op.name.startswith("gflow."):
                continue
            cost = costs.cost_of(op)
            name = op.name.removeprefix("gflow.")
            if name == "aten":
                overload = ir.StringAttr(op.attributes["overload"]).value
                found.aten.setdefault(overload, []).append(source_of(op))
            elif not cost.bytes and not cost.flops:
                continue
            title = label(Op(len(found.ops), op, name, [], []))
            kind = name if name != "fused" else _fused_kind(op)
            types = ", ".join(str(r.type) for r in op.results)
            found.ops.append(
                OpCost(
                    len(found.ops), kind, title, types, cost.bytes, cost.flops,
                    costs.seconds(cost, device), source_of(op),
                )
            )  # fmt: skip


def _fused_kind(op: ir.Operation) -> str:
    """The class of a fused kernel: the most expensive kind of op in its region."""
    inner = {o.operation.name.removeprefix("gflow.") for o in op.regions[0].blocks[0].operations}
    for name in ("matmul", "convolution", "convolution_input_grad", "convolution_weight_grad"):
        if name in inner:
            return f"fused {name}"
    return "fused reduction" if "reduce" in inner else "fused elementwise"


def report(
    before: ir.Module | ir.Operation | Measure,
    after: ir.Module | ir.Operation | Measure,
    device: Device | str = "cpu",
) -> Report:
    """Compare a module before the passes with the module after them.

    Passes change a module in place, so `before` may be the result of `measure` before they ran.

    Raises:
        ValueError: there is no such device.
    """
    if isinstance(device, str):
        device = device_named(device)
    first = before if isinstance(before, Measure) else measure(before, device)
    second = after if isinstance(after, Measure) else measure(after, device)
    return Report(device, first, second)
