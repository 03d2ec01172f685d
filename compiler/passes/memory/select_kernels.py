"""Choose the kernel that each op runs as, and how it runs.

Before:

    %0 = "gflow.matmul"(%x, %w) : (tensor<256x65536xbf16>, tensor<65536x320xbf16>) -> tensor<256x320xbf16>

After `gflow-select-kernels{target=cuda:90}`:

    %0 = "gflow.matmul"(%x, %w) {gflow.kernel = {kind = "product", scratch = 10485760 : i64, split_k = 32 : i64,
        stages = 3 : i64, then = [{block = array<i64: 4, 128>, stages = 2 : i64, warps = 4 : i64}],
        tile = array<i64: 128, 256, 64>, warps = 8 : i64}} : …

`gflow-plan-memory` plans the scratch, code generation makes the kernels that are written here, and an artifact keeps
them. Choices can be edited: one that code cannot follow, or a field that what runs the op has no use of, is an error
at the op. A processor's kernels have kind and scratch alone, and its own products (`panels`, `patches`) how they are
cut. For ops that share a launch `gflow-merge-launches` chooses later. What a field means:

%FIELDS%

The choices follow a model of the device. On a processor the first call races products of float32, our own beside the
BLAS, and writes what won. Where there is a GPU, autotuning measures the choice beside its neighbours,
which code generation derives from it, and writes the fastest here, with the device's name; it is not measured again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.compiler.kernel.selection.select import choices
from gflow.compiler.memory.liveness import lives_of
from gflow.compiler.targets import KINDS
from gflow.compiler.targets.processors import PROCESSORS
from gflow.dialects.marks import KERNEL, KERNEL_FIELDS, TARGET
from gflow.dialects.mlir import func, ir

from ...ir.errors import PassError
from ..base import Pass, target_of


@dataclass(frozen=True)
class SelectKernelsOptions:
    """What kernels are for."""

    target: str = field(default="cpu", metadata={"doc": f"{', '.join(KINDS)}, or as cuda:90"})
    threads: int = field(
        default=0, metadata={"doc": "of a processor: the most that run a kernel; all cores if 0"}
    )
    isa: str = field(
        default="",
        metadata={
            "doc": "of a processor: the level of its instruction sets, by which products are cut: "
            f"{' or '.join(PROCESSORS)}, or `none` for none of our own; this machine's if empty"
        },
    )
    blas: bool = field(
        default=True, metadata={"doc": "of a processor: whether the BLAS in PyTorch may be called"}
    )


def run(function: func.FuncOp, options: SelectKernelsOptions) -> None:
    """Write the choice of a kernel (`gflow.kernel`) into each op of the function.

    Raises:
        PassError: the target or the level of instruction sets is not known.
    """
    target = target_of(options.target)
    if target is None:
        raise PassError(f"target must be one of {', '.join(KINDS)}, or as cuda:90")
    lives = lives_of(function)
    if options.isa not in ("", "none", *PROCESSORS):
        raise PassError(
            f"isa must be one of {', '.join(PROCESSORS)}, or none, found {options.isa!r}"
        )
    found = choices(function, lives, target, options.threads, options.blas, options.isa)
    for i, choice in found.items():
        lives.body.ops[i].op.attributes[KERNEL] = choice.attribute()
    function.operation.attributes[TARGET] = ir.StringAttr.get(str(target))


PASS = Pass(
    "gflow-select-kernels",
    run,
    SelectKernelsOptions,
    (__doc__ or "").replace(
        "%FIELDS%", "\n".join(f"- `{n}`: {f.doc}" for n, f in KERNEL_FIELDS.items())
    ),
)
