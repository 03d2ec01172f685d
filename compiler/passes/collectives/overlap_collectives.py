"""Overlap communication with computation.

Before (the order of `gflow-schedule`): the second layer waits for its parameter, the update for its gradient.

    %w0, %t = "gflow.collective"(%p0) {kind = "all_gather", gflow.gradient = "w0", …} : …
    %y0 = "gflow.matmul"(%x, %w0) : …
    %w1, %u = "gflow.collective"(%p1, %t) {kind = "all_gather", gflow.gradient = "w1", …} : …
    %y1 = "gflow.matmul"(%y0, %w1) : …

After: each collective is placed where it starts. `gflow-split-collectives` places its wait before its first reader.

    %w0, %t = "gflow.collective"(%p0) {kind = "all_gather", gflow.gradient = "w0", …} : …
    %w1, %u = "gflow.collective"(%p1, %t) {kind = "all_gather", gflow.gradient = "w1", …} : …
    %y0 = "gflow.matmul"(%x, %w0) : …
    %y1 = "gflow.matmul"(%y0, %w1) : …

Times come from the simulator: lower bounds for `device`, and the model of `network`. A computed value is sent as soon
as it is ready, and its result is read as late as other work remains. A parameter is gathered ahead of its first reader
by the time that the gather takes. The last few weight gradients may be delayed, and updates that no collective reads
run when nothing else can, so that computation remains while the last collectives run. The pass tries orders that delay
more or fewer of the gradients, and takes the fastest whose peak of live bytes exceeds that of the original order by at
most the share `growth`. If there is none, it tries orders in which updates are not delayed; if there is none again, the
order stays. Only collectives that gflow inserted move (those with `gflow.gradient`). Collectives of the author keep
their order.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise

from gflow.compiler.ir.collectives import GRADIENT, is_ordered, kind_of, thread, unthread
from gflow.compiler.ir.cost import cost_of
from gflow.compiler.ir.cost import seconds as roofline
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import Body, read_body
from gflow.compiler.memory.liveness import lives_in, lives_of
from gflow.compiler.targets import DEVICES
from gflow.dialects.distribution.mesh import mesh_of
from gflow.dialects.mlir import func
from gflow.dialects.ops.distribution import COLLECTIVE
from gflow.dialects.records import record

from ..base import Kept, Pass
from ..schedule.dependences import Dependences, dependences_of
from ..schedule.least_memory import reordered
from .streams import Streams, schedule

#: ops that only reshape a gathered value
_FORMS = ("reshape", "slice", "transpose", "broadcast", "concatenate", "convert")
#: the numbers of collectives whose operands may be delayed
_LATE = 6


@record
class OverlapOptions:
    """Options of gflow-overlap-collectives."""

    device: str = field(
        default="cpu", metadata={"doc": f"the device of the ranks: {', '.join(DEVICES)}"}
    )
    network: str = field(
        default="", metadata={"doc": "the network between ranks; by default that of the device"}
    )
    growth: float = field(
        default=0.05, metadata={"doc": "the allowed increase of the peak of live bytes, as a share"}
    )


def run(function: func.FuncOp, options: OverlapOptions) -> Kept | None:
    """Order the ops of the function.

    Raises:
        PassError: an option names no device or network.
    """
    block = function.regions[0].blocks[0]
    if not any(GRADIENT in v.operation.attributes for v in block.operations):
        return Kept.BODY
    # imported here for start-up time: few programs have collectives
    from gflow.compiler.distribution.program_events import collective_seconds
    from gflow.compiler.targets.links import network_of

    if options.device not in DEVICES:
        raise PassError(f"no device '{options.device}'; there are {', '.join(DEVICES)}")
    device = DEVICES[options.device]
    try:
        network = network_of(device.name, options.network)
    except ValueError as error:
        raise PassError(str(error)) from None
    unthread(function)
    body = read_body(function)
    found = _in_order(body, dependences_of(function, body))
    mesh = mesh_of(function)
    sending = {
        o.index: collective_seconds(o.op, mesh, network) for o in body.ops if o.name == COLLECTIVE
    }
    costs = [cost_of(o.op) for o in body.ops]
    seconds = [0.0 if i in sending else roofline(c, device) for i, c in enumerate(costs)]
    gathers = {i for i in sending if kind_of(body.ops[i].op) == "all_gather"}
    forms = {
        o.index
        for o in body.ops
        if o.name in _FORMS or (o.name == "fused" and not costs[o.index].flops)
    }
    streams = Streams(found, seconds, sending, gathers, forms)
    products = {i for i, c in enumerate(costs) if c.contraction}
    for i in _best(function, streams, products, options.growth):
        body.ops[i].op.move_before(body.terminator)
    thread(function)
    return None


def _in_order(body: Body, found: Dependences) -> Dependences:
    """Add dependences that keep the author's collectives in their order."""
    authors = [o.index for o in body.ops if is_ordered(o.op) and GRADIENT not in o.op.attributes]
    before = [*found.before]
    for one, other in pairwise(authors):
        before[other] = before[other] | {one}
    return Dependences(body, found.at, before, found.early)


def _best(
    function: func.FuncOp, streams: Streams, contractions: set[int], growth: float
) -> list[int]:
    """The fastest order whose peak of live bytes exceeds that of the present order by at most the share `growth`."""
    lives = lives_of(function, read=(streams.body, streams.found.at))
    most = lives.lower_bound * (1 + growth)
    program = list(range(len(streams.seconds)))
    best, least = program, float("inf")
    # for each collective, in order, the products that it sends
    products: dict[int, list[int]] = {}
    for i, by in streams.sent_by.items():
        if i in contractions:
            products.setdefault(by, []).append(i)
    last = sorted(products)[::-1]
    for updates in (streams.updates, frozenset[int]()):
        for count in range(min(_LATE, len(last)) + 1):
            late = updates.union(i for by in last[:count] for i in products[by])
            order, took = schedule(streams, late)
            if took < least:
                body = reordered(lives.body, order)
                if lives_in(body, lives.at, lives.place, lives.takes_over).lower_bound <= most:
                    best, least = order, took
        if best is not program:
            break
    return best


PASS = Pass("gflow-overlap-collectives", run, OverlapOptions, __doc__ or "")
