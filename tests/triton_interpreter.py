"""Programs for CUDA run on CPU tensors by Triton's interpreter.

    results = run_program(program, args)      # in another process, which stays for the next ones

The interpreter is chosen when triton is imported (`TRITON_INTERPRET=1`), so it has a process of its own.
It lacks some of the language; what is missing, or wrong, is put right in `repair`:

- functions of libdevice: taken from PyTorch;
- bfloat16: rounded to nearest even, as the hardware does, and multiplied by its value;
- reductions with an own combining function: on whole arrays at a time.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, TensorRef, TritonKernel
from gflow.runtime.aten_step import AtenCall
from gflow.runtime.tensors import DTYPES, view_bytes, view_tensor

_worker: subprocess.Popen[bytes] | None = None


def run_program(program: Program, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a program; aliased ones are written to `args`, as the runtime does.

    Raises:
        RuntimeError: it failed; the message is the other process's traceback.
    """
    given = [_packed(a) for a in args]
    kind, answer = _ask((program, given))
    if kind == "error":
        raise RuntimeError(answer)
    values, found = answer
    for a, memory in zip(args, values):
        if a.numel():
            a.as_strided((memory.numel(),), (1,)).copy_(memory)
    results = []
    for r, value in zip(program.results, found):
        results.append(value if r.alias is None else args[r.alias])
    return results


def _packed(a: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]:
    """All memory that a tensor spans, its shape and strides."""
    size = 1 + sum((n - 1) * s for n, s in zip(a.shape, a.stride())) if a.numel() else 0
    return a.detach().as_strided((size,), (1,)).clone(), tuple(a.shape), tuple(a.stride())


def _ask(question: Any) -> tuple[str, Any]:
    global _worker
    if _worker is None or _worker.poll() is not None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        _worker = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        atexit.register(_stop, _worker)
    assert _worker.stdin is not None
    assert _worker.stdout is not None
    pickle.dump(question, _worker.stdin)
    _worker.stdin.flush()
    return pickle.load(_worker.stdout)  # noqa: S301  # our own process


def _stop(worker: subprocess.Popen[bytes]) -> None:
    if worker.stdin is not None:
        worker.stdin.close()
    worker.wait()


# -- in the other process


def serve() -> None:
    """Answer questions until there are no more."""
    repair()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    while True:
        try:
            program, given = pickle.load(sys.stdin.buffer)  # noqa: S301
        except EOFError:
            return
        try:
            tensors = [m.as_strided(shape, strides) for m, shape, strides in given]
            results = interpret(program, tensors)
            fresh = [v if r.alias is None else None for r, v in zip(program.results, results)]
            answer: tuple[str, Any] = ("done", ([m for m, _, _ in given], fresh))
        except Exception as error:
            traceback.print_exc(limit=-6)
            answer = ("error", str(error))
        pickle.dump(answer, answers)
        answers.flush()


#: bytes around the arena and each result that no kernel may write
_GUARD = 256
_GUARD_BYTE = 0xA5


def interpret(program: Program, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program in this process.

    Raises:
        RuntimeError: a kernel wrote outside of what it was given.
    """
    arena = _guarded(max(program.arena_bytes, 1))
    constants = [
        torch.frombuffer(bytearray(c or b"\0"), dtype=torch.uint8) for c in program.constants
    ]
    raw: list[torch.Tensor | None] = []
    results: list[torch.Tensor] = []
    for r in program.results:
        if r.alias is not None:
            raw.append(None)
            results.append(args[r.alias])
            continue
        memory = _guarded(max(r.type.nbytes, 1))
        raw.append(memory)
        inner = memory[_GUARD : _GUARD + r.type.nbytes].view(DTYPES[r.type.dtype])
        results.append(inner.view(r.type.shape))

    def memory_of(place: Place) -> int:
        base = {
            "arena": lambda: arena[_GUARD:].data_ptr(),
            "constant": lambda: constants[place.index].data_ptr(),
            "arg": lambda: args[place.index].data_ptr(),
            "result": lambda: results[place.index].data_ptr(),
        }[place.space]()
        return base + place.offset

    def locate(ref: TensorRef) -> torch.Tensor:
        if ref.place.space == "arena":
            return view_bytes(arena[_GUARD:], ref)
        if ref.place.space == "constant":
            return view_bytes(constants[ref.place.index], ref)
        return view_tensor((args if ref.place.space == "arg" else results)[ref.place.index], ref)

    functions: dict[str, Any] = {}
    for step in program.steps:
        if isinstance(step, AtenStep):
            call = AtenCall(step)
            call.bind(locate)
            call.run()
            continue
        assert isinstance(step, LaunchStep), step
        kernel = program.triton[step.kernel]
        if step.kernel not in functions:
            functions[step.kernel] = load(kernel)
        try:
            launch(functions[step.kernel], kernel, step, memory_of)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            lines = [f.line for f in where if f.filename == f"<{kernel.name}>"]
            raise RuntimeError(f"{error!r} at {lines}: {step.label}\n{kernel.source}") from error
        for memory in [arena, *(m for m in raw if m is not None)]:
            edges = torch.cat([memory[:_GUARD], memory[-_GUARD:]])
            if not bool((edges == _GUARD_BYTE).all()):
                raise RuntimeError(f"{step.label} wrote out of bounds\n{kernel.source}")
    return results


def _guarded(size: int) -> torch.Tensor:
    """Memory with a guard on both sides; what lies inside is not zero."""
    memory = torch.full((_GUARD + -(-size // 64) * 64 + _GUARD,), 0x7B, dtype=torch.uint8)
    memory[:_GUARD] = _GUARD_BYTE
    memory[-_GUARD:] = _GUARD_BYTE
    return memory


def load(kernel: TritonKernel) -> Any:
    """The kernel's function, from its source."""
    import linecache

    name = f"<{kernel.name}>"
    lines = kernel.source.splitlines(keepends=True)
    linecache.cache[name] = (len(kernel.source), None, lines, name)
    space: dict[str, Any] = {"__name__": kernel.name}
    exec(compile(kernel.source, name, "exec"), space)
    return space[kernel.name]


def launch(
    function: Any, kernel: TritonKernel, step: LaunchStep, memory_of: Callable[[Place], int]
) -> None:
    """One launch, program by program."""
    import triton.language as tl
    from triton.runtime import interpreter

    config = kernel.configs[step.config]
    values: dict[str, Any] = {**kernel.constants, **config.constants}
    for (name, kind), given in zip(kernel.parameters.items(), step.args, strict=True):
        ty = tl.str_to_ty(kind, None)
        if isinstance(given, Place):
            address = memory_of(given)
            if name in kernel.multiples and address % 16:
                raise RuntimeError(f"{name} of {kernel.name} isn't aligned")
            data = np.array([address], dtype=np.uint64)
        else:
            data = np.array([given], dtype=interpreter._get_np_dtype(ty))
        values[name] = tl.tensor(interpreter.TensorHandle(data, ty), ty)
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*step.grid)
    fn = function.rewrite()
    if not _patched:
        _patched.append(interpreter._patch_lang(fn))  # for good: nothing is compiled here
    for z in range(step.grid[2]):
        for y in range(step.grid[1]):
            for x in range(step.grid[0]):
                builder.set_grid_idx(x, y, z)
                fn(**values)


_patched: list[Any] = []

_TORCH_NAMES = {"rint": "round", "pow": "pow", "fmod": "fmod"}


def repair() -> None:
    """Put the interpreter right."""
    import triton.language as tl
    from triton.language.extra.cuda import libdevice
    from triton.runtime import interpreter as it

    builder: Any = it.InterpreterBuilder
    for name in dir(libdevice):
        function = getattr(libdevice, name)
        if tl.core.is_builtin(function):
            bound = functools.partial(function, _semantic=it.interpreter_semantic)
            setattr(libdevice, name, bound)
    # a function of the kernel's own: all is patched already
    it.InterpretedFunction.__call__ = lambda self, *args, **given: self.rewrite()(*args, **given)

    def extern(self: Any, lib: str, path: str, symbol: str, args: Any, ty: Any, pure: bool) -> Any:
        arrays = np.broadcast_arrays(*[a.data for a in args])
        name = symbol.removeprefix("__nv_")
        if arrays[0].dtype == np.float32:
            name = name.removesuffix("f")
        function = getattr(torch, _TORCH_NAMES.get(name, name))
        result = function(*[torch.from_numpy(np.ascontiguousarray(a)) for a in arrays])
        return it.TensorHandle(result.numpy(), args[0].dtype.scalar)

    builder.create_extern_elementwise = extern

    def to_bf16(data: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(data), 0x7FC0, rounded).astype(np.uint16)

    def from_bf16(data: np.ndarray) -> np.ndarray:
        return (data.astype(np.uint32) << 16).view(np.float32)

    def convert(self: Any, src: Any, ty: Any, rounding: Any = None) -> Any:
        source, target = src.dtype.scalar, ty.scalar
        data = from_bf16(src.data) if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            return it.TensorHandle(to_bf16(data), target)
        return it.TensorHandle(data.astype(it._get_np_dtype(ty)), target)

    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp"):
        setattr(builder, f"create_{name}", convert)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        x, y = (from_bf16(v.data) if v.dtype.scalar == tl.bfloat16 else v.data for v in (a, b))
        return it.TensorHandle(np.matmul(x, y, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    builder.create_dot = dot

    def reduce(self: Any, given: Any) -> Any:
        """Neighbours combined, and so on: in order, a logarithm of steps."""
        whole = self.axis is None
        arrays = [x.handle.data.flatten() if whole else x.handle.data for x in given]
        axis = 0 if whole else self.axis
        kinds = [x.dtype for x in given]
        combine = self.combine_fn.fn

        def take(array: np.ndarray, which: slice) -> np.ndarray:
            return array[(slice(None),) * axis + (which,)]

        rank = given[0].handle.data.ndim
        while arrays[0].shape[axis] > 1:
            pairs = [
                [self.to_tensor(np.ascontiguousarray(take(a, slice(k, None, 2))), t)
                 for a, t in zip(arrays, kinds)]
                for k in (0, 1)
            ]  # fmt: skip
            out = combine(*pairs[0], *pairs[1])
            arrays = [o.handle.data for o in (out if isinstance(out, tuple) else (out,))]
        if self.keep_dims:
            if whole:
                arrays = [a.reshape((1,) * rank) for a in arrays]
        else:
            arrays = [np.squeeze(a, axis) for a in arrays]
        return [self.to_tensor(a if a.shape else a.item(), t) for a, t in zip(arrays, kinds)]

    it.ReduceOps.generic_reduce = reduce

    def ones(self: Any, ty: Any) -> Any:
        return it.TensorHandle(~np.zeros(1, dtype=it._get_np_dtype(ty)), ty.scalar)

    builder.get_all_ones_value = ones


if __name__ == "__main__":
    serve()
