"""Choose the kernel of each op and the parameters of its launches.

Before:

    %0 = "gflow.matmul"(%x, %w) : (tensor<256x65536xbf16>, tensor<65536x320xbf16>) -> tensor<256x320xbf16>

After `gflow-select-kernels{target=cuda:90}`:

    %0 = "gflow.matmul"(%x, %w) {gflow.kernel = {kind = "product", scratch = 7864320 : i64, split_k = 24 : i64,
        stages = 4 : i64, then = [{block = array<i64: 4, 128>, stages = 2 : i64, warps = 4 : i64}],
        tile = array<i64: 128, 64, 64>, warps = 4 : i64}} : …

`gflow-plan-memory` plans the scratch, code generation emits the kernels that are written here, and an artifact keeps
them. Choices can be edited. A choice that code generation does not support, or a field that does not apply to the
kernel, is an error at the op. Regions on a CPU (`loops`) have the order of their loops, the width of vectors and what
threads share; gflow's own CPU products (`panels`, `patches`, `direct`, `winograd`) have their blocking; a contraction
on a CPU whose result does not fit a cache is made some `rows` at a time, each followed by the epilogue.
`gflow-merge-launches` chooses for ops that share a launch. The fields:

%FIELDS%

The choices follow a cost model of the device. On a CPU, the first call measures float32 products with gflow's own
kernel and with the BLAS, and writes the faster choice here. On a GPU, autotuning measures the choice and its
neighbours, which code generation derives from it, and writes the fastest with the name of the device. It is not
measured again.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.kernel.selection.select import choices
from gflow.compiler.memory.liveness import lives_at_entry
from gflow.compiler.targets import KINDS
from gflow.compiler.targets.processors import PROCESSORS
from gflow.dialects.marks import KERNEL, KERNEL_FIELDS, TARGET
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ...ir.errors import PassError
from ..base import Kept, Pass, target_of


@record
class SelectKernelsOptions:
    """What kernels are for."""

    target: str = field(default="cpu", metadata={"doc": f"{', '.join(KINDS)}, or as cuda:90"})
    threads: int = field(
        default=0, metadata={"doc": "CPUs: the most threads that run a kernel; 0: all cores"}
    )
    isa: str = field(
        default="",
        metadata={
            "doc": "CPUs: the instruction-set level for which gflow's own products are blocked: "
            f"{', '.join(PROCESSORS)}, or `none` for no own products; empty: that of this machine"
        },
    )
    blas: bool = field(default=True, metadata={"doc": "CPUs: whether PyTorch's BLAS may be called"})
    direct: bool = field(
        default=True,
        metadata={
            "doc": "CPUs: whether convolutions may read windows in place, instead of patches"
        },
    )
    winograd: bool = field(
        default=True,
        metadata={"doc": "CPUs: whether 3×3 convolutions may run by Winograd's algorithm"},
    )


def run(function: func.FuncOp, options: SelectKernelsOptions) -> Kept:
    """Write the choice of a kernel (`gflow.kernel`) into each op of the function.

    Raises:
        PassError: the target or the level of instruction sets is not known.
    """
    target = target_of(options.target)
    if target is None:
        raise PassError(f"target must be one of {', '.join(KINDS)}, or as cuda:90")
    lives = lives_at_entry(function)
    if options.isa not in ("", "none", *PROCESSORS):
        raise PassError(
            f"isa must be one of {', '.join(PROCESSORS)}, or none, found {options.isa!r}"
        )
    given = (options.threads, options.blas, options.isa, options.direct, options.winograd)
    found = choices(function, lives, target, *given)
    for i, choice in found.items():
        lives.body.ops[i].op.attributes[KERNEL] = choice.attribute()
    function.operation.attributes[TARGET] = ir.StringAttr.get(str(target))
    return Kept.BODY


PASS = Pass(
    "gflow-select-kernels",
    run,
    SelectKernelsOptions,
    (__doc__ or "").replace(
        "%FIELDS%", "\n".join(f"- `{n}`: {f.doc}" for n, f in KERNEL_FIELDS.items())
    ),
)
