"""Matrix products by PyTorch's BLAS, called from generated code.

Kernel arguments: addresses of A, B and C; BLAS's transposition letters of A and B; M, N, K; the three leading
dimensions; the batch count and the three batch strides in bytes; whether to add to C. Matrices are row-major and BLAS's
are column-major, so the call computes Cᵀ = Bᵀ Aᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from gflow.compiler.kernel.selection.cpu.batches import batch_steps
from gflow.dialects.extents import Count, Piece
from gflow.dialects.program import Place
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

_FUNCTIONS = {"f32": "sgemm_", "f64": "dgemm_"}

#: the numbers of the arguments
_WORDS = (
    *("a", "b", "c", "ta", "tb", "m", "n", "k", "lda", "ldb", "ldc"),
    *("batch", "sa", "sb", "sc", "add"),
)


def declaration(dtype: str) -> tuple[str, str]:
    """The BLAS function for `dtype` and its declaration."""
    name = _FUNCTIONS[dtype]
    pointers = ", ".join(["!llvm.ptr"] * 13)
    return name, f"  llvm.func @{name}({pointers})"


@cache
def function(dtype: str, name: str) -> str:
    """The text of the kernel function `name`: a loop over this thread's share of the batch."""
    lines = [f"  llvm.func @{name}(%w: !llvm.ptr) {{", "    %one = arith.constant 1 : i64"]
    for i, word in enumerate(_WORDS):
        ty = "!llvm.ptr" if word in ("a", "b", "c") else "i64"
        lines.append(f"    %w_{word} = llvm.getelementptr %w[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
        least = "_given" if word in ("lda", "ldb", "ldc") else ""
        lines.append(f"    %{word}{least} = llvm.load %w_{word} : !llvm.ptr -> {ty}")
        if least:  # a dynamic size may be 0, and BLAS needs a leading dimension of at least 1
            lines.append(f"    %{word} = arith.maxsi %{word}_given, %one : i64")
    for word in ("ta", "tb", "m", "n", "k", "lda", "ldb", "ldc"):
        lines.append(f"    %p_{word} = llvm.alloca %one x i64 : (i64) -> !llvm.ptr")
        lines.append(f"    llvm.store %{word}, %p_{word} : i64, !llvm.ptr")
    lines += [
        f"    %alpha = arith.constant 1.0 : {dtype}",
        f"    %beta = arith.sitofp %add : i64 to {dtype}",
    ]
    for number in ("alpha", "beta"):
        lines.append(f"    %p_{number} = llvm.alloca %one x {dtype} : (i64) -> !llvm.ptr")
        lines.append(f"    llvm.store %{number}, %p_{number} : {dtype}, !llvm.ptr")
    arguments = (
        "%p_tb, %p_ta, %p_n, %p_m, %p_k, %p_alpha, %bi, %p_ldb, %ai, %p_lda, %p_beta, %ci, %p_ldc"
    )
    lines += [
        "    %tid32 = llvm.call @omp_get_thread_num() : () -> i32",
        "    %count32 = llvm.call @omp_get_num_threads() : () -> i32",
        "    %tid = arith.extsi %tid32 : i32 to i64",
        "    %count = arith.extsi %count32 : i32 to i64",
        "    scf.for %i = %tid to %batch step %count : i64 {",
    ]
    for matrix in ("a", "b", "c"):
        lines.append(f"      %o{matrix} = arith.muli %i, %s{matrix} : i64")
        lines.append(f"      %{matrix}i = llvm.getelementptr %{matrix}[%o{matrix}]")
        lines.append("          : (!llvm.ptr, i64) -> !llvm.ptr, i8")
    types = ", ".join(["!llvm.ptr"] * 13)
    lines += [
        f"      llvm.call @{_FUNCTIONS[dtype]}({arguments}) : ({types}) -> ()",
        "    }",
        "    llvm.return",
        "  }",
    ]
    return "\n".join(lines)


class Functions(Protocol):
    """The functions of a program: their texts by name, and the external functions that they call."""

    kernels: dict[str, str]
    externals: set[str]
    declared: dict[str, str]


def add_function(b: Functions, dtype: str) -> str:
    """Add the kernel function for `dtype` if it isn't there yet, and return its name."""
    name = f"gemm_{dtype}"
    b.kernels[name] = function(dtype, name)
    callee, declared = declaration(dtype)
    b.declared[callee] = declared
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    return name


def _operand(shape: Sequence[int], strides: Sequence[int]) -> tuple[str, int]:
    """BLAS's transposition letter and leading dimension of the matrix in the last two dimensions.

    `gemm_ready` (compiler/memory/layouts.py) must hold for it.
    """
    (rows, cols), (row, col) = shape[-2:], strides[-2:]
    if (cols == 1 or col == 1) and (rows == 1 or row >= cols):
        return "N", max(row if rows > 1 else cols, cols, 1)
    return "T", max(col if cols > 1 else rows, rows, 1)


def words(
    places: Sequence[Place],
    types: Sequence[TensorType],
    strides: Sequence[Sequence[int]],
    rows: Piece | None = None,
) -> list[tuple[tuple[int | Piece | Place, ...], bool]]:
    """The arguments of each kernel for C = A B, and whether threads share its batch.

    Args:
        places, types, strides: those of A, B and C; strides are in elements.
        rows: the rows of A and C, if they are a chunk of a dynamic dimension.
    """
    item = types[0].itemsize
    (ta, lda), (tb, ldb) = (_operand(t.shape, s) for t, s in zip(types[:2], strides[:2]))
    m, n = types[2].shape[-2:]
    k = types[0].shape[-1]
    ldc = max(strides[2][-2] if m > 1 else n, n, 1)
    calls: list[tuple[tuple[int | Piece | Place, ...], bool]] = []
    for count, steps, offsets in batch_steps(types[2].shape[:-2], [s[:-2] for s in strides]):
        at = [Place(p.space, p.index, p.offset + o * item) for p, o in zip(places, offsets)]
        sizes = (rows or m, n, k, lda, ldb, ldc, count)
        numbers = (ord(ta), ord(tb), *sizes, *(s * item for s in steps), 0)
        calls.append(((*at, *numbers), count > 1))
    return calls


@record
class Matrix:
    """A row-major matrix in memory. transposed: whether it is read with rows and columns exchanged."""

    place: Place
    leading: int
    transposed: bool = False


def product(
    a: Matrix, b: Matrix, c: Matrix, m: Count, n: Count, k: Count, add: bool = False
) -> tuple[int | Piece | Place, ...]:
    """The arguments of one product C[m, n] = A[m, k] B[k, n]; with `add`, the product is added to C."""
    letters = (ord("T" if x.transposed else "N") for x in (a, b))
    leading = (max(x.leading, 1) for x in (a, b, c))
    return (a.place, b.place, c.place, *letters, m, n, k, *leading, 1, 0, 0, 0, int(add))
