"""Runs PyTorch's own sample inputs (`op_db`) through a graph and compares with eager.

One sample is one graph: the call (and, for gradients, `torch.autograd.grad` of its outputs) is
traced as a `build`, lowered, run, and every output compared.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from function_trace import trace_graph
from ir_interpreter import run_module
from op_db_exceptions import NO_VALUES, TOLERANCE
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from gflow.dialects.mlir import ir
from gflow.lowering import escaped, lower
from gflow.tracing.data.trace import Trace, unflatten
from gflow.tracing.program.interpreter import TailSteps

Tensor = torch.Tensor
Run = Callable[[ir.Module, list[Tensor]], list[Tensor]]


@dataclass
class Outcome:
    """What became of one sample. `status`: pass, trace, lower, run, mismatch, or eager (PyTorch
    itself refuses the sample, so it does not count)."""

    status: str
    detail: str = ""
    seconds: float = 0.0
    lowering_seconds: float = 0.0
    escaped: tuple[str, ...] = ()


def op_name(op: Any) -> str:
    """An op of op_db with its variant, which alone is unique."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def all_ops() -> list[Any]:
    return sorted(op_db, key=op_name)


def samples(op: Any, dtype: torch.dtype, grad: bool, limit: int | None) -> Iterator[Any]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
            if limit is not None and i >= limit:
                return
            yield sample


def interpret(module: ir.Module, args: list[Tensor]) -> list[Tensor]:
    return run_module(module, args)


def compiled(module: ir.Module, args: list[Tensor]) -> list[Tensor]:
    from gflow.compiler import compile_module
    from gflow.runtime import Executable

    return Executable(compile_module(module, None))([_same_layout(a) for a in args])


def on_gpu(module: ir.Module, args: list[Tensor]) -> list[Tensor]:
    """By kernels for a GPU: on one with `gpu_mirror`, else on Triton's interpreter."""
    from gflow.compiler import CompileOptions, compile_module
    from gflow.runtime import Executable
    from gflow.runtime.cuda.interpreter import InterpreterDevice

    program = compile_module(module, CompileOptions(target="cuda:90"))
    return Executable(program, InterpreterDevice())([_same_layout(a) for a in args])


def _same_layout(tensor: Tensor) -> Tensor:
    """A copy with the same strides, gaps included."""
    if tensor.layout != torch.strided:
        return tensor.clone()
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor) if all(tensor.stride()) else tensor  # repeats share memory


@dataclass
class _Call:
    """A sample as a function of its tensors."""

    function: Callable[..., list[Tensor]]
    tensors: list[Tensor]
    wanted: list[Tensor]


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# PyTorch's random ops seed its generator in the function under test, which a graph refuses
for _module in [m for n, m in sys.modules.items() if n.startswith("torch.testing._internal")]:
    if hasattr(_module, "wrapper_set_seed"):
        _module.wrapper_set_seed = _unseeded


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def forward_of(op: Any, sample: Any) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """A sample as a function of its tensors, and these."""
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]

    def function(*tensors: Tensor) -> list[Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, spec)
        result = op(*args, **kwargs)
        if sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        return [leaf for leaf in pytree.tree_leaves(result) if _is_tensor(leaf)]

    return function, [leaves[i] for i in places]


def _with_gradients(
    forward: Callable[..., list[Tensor]], tensors: list[Tensor], outputs: list[Tensor]
) -> Callable[..., list[Tensor]] | None:
    """The forward function followed by the gradients of all that can have one."""
    sources = [i for i, t in enumerate(tensors) if t.requires_grad]
    targets = [i for i, t in enumerate(outputs) if t.requires_grad]
    if not sources or not targets:
        return None
    generator = torch.Generator().manual_seed(1)
    seeds = [
        torch.randn(outputs[i].shape, generator=generator, dtype=torch.float32).to(outputs[i].dtype)
        for i in targets
    ]

    def function(*given: Tensor) -> list[Tensor]:
        out = forward(*given)
        grads = torch.autograd.grad(
            [out[i] for i in targets], [given[i] for i in sources], seeds, allow_unused=True
        )
        return [*(o.detach() for o in out), *(g for g in grads if g is not None)]

    return function


def prepare(op: Any, sample: Any, grad: bool) -> _Call | None:
    """The sample as a call, with eager's results; None where PyTorch refuses it."""
    try:
        function, tensors = forward_of(op, sample)
        torch.manual_seed(7)
        wanted = function(*tensors)
        if grad:
            both = _with_gradients(function, tensors, wanted)
            if both is None:
                return None
            function, wanted = both, both(*tensors)
    except Exception:
        return None
    if not wanted:
        return None
    return _Call(function, tensors, [w.detach() for w in wanted])


def run_sample(op: Any, sample: Any, grad: bool = False, run: Run = interpret) -> Outcome:
    """One sample through a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = prepare(op, sample, grad)
        if call is None:
            return Outcome("eager")
        start = time.perf_counter()
        outcome = _run(op, call, run)
        outcome.seconds = time.perf_counter() - start
        return outcome


def _run(op: Any, call: _Call, run: Run) -> Outcome:
    try:
        trace = trace_graph("sample", call.function, call.tensors, {}, {})
    except Exception as error:
        return Outcome("trace", _brief(error))
    start = time.perf_counter()
    try:
        module = lower(trace)
    except Exception as error:
        return Outcome("lower", _brief(error))
    lowering = time.perf_counter() - start
    names = tuple(e.overload for e in escaped(module))
    try:
        if not module.operation.verify():
            return Outcome("lower", "the module does not verify", 0, lowering, names)
        by_name = {f"args.{i}": t for i, t in enumerate(call.tensors)}
        args = [_argument(i, by_name, call.tensors, n) for n, i in enumerate(trace.inputs)]
        function = next(iter(module.body.operations))
        if len(function.arguments) > len(args):
            args.append(torch.tensor([1234, 5]))
        results = run(module, args)
        plain = returned(trace, results, args)
    except Exception as error:
        return Outcome("run", _brief(error), 0, lowering, names)
    message = compare(op, plain, call.wanted)
    if message and _as_near_as_eager(call, plain):
        message = ""
    return Outcome("mismatch" if message else "pass", message, 0, lowering, names)


def _as_near_as_eager(call: _Call, found: list[Tensor]) -> bool:
    """Whether results in half precision are at most twice as far from float64 as eager's, which rounds between its
    steps."""
    if not any(t.dtype in (torch.bfloat16, torch.float16) for t in found):
        return False
    exact = call.function(*(t.double() if t.is_floating_point() else t for t in call.tensors))
    if [t.shape for t in exact] != [t.shape for t in found]:
        return False
    return all(
        bool(((a.double() - x).abs().amax() <= 2 * (b.double() - x).abs().amax()).item())
        for a, b, x in zip(found, call.wanted, exact)
        if x.is_floating_point() and x.numel()
    )


def returned(trace: Trace, results: list[Tensor], args: list[Tensor]) -> list[Tensor]:
    """The results of the function: those of its program, and of its tail."""
    if trace.tail is None:
        return [r for r, out in zip(results, trace.outputs) if out.alias is None]
    places = {given.value: n for n, given in enumerate(trace.inputs)}
    read = {v: args[places[v]] for v in trace.tail.arguments}
    read |= {v: results[n] for v, n in trace.tail.outputs.items()}
    found: list[Tensor] = unflatten(trace, results, TailSteps(trace.tail).run(read, None))
    return found


def _argument(given: Any, by_name: dict[str, Tensor], tensors: list[Tensor], n: int) -> Tensor:
    if given.tensor is not None:
        return given.tensor.detach()
    return by_name[given.name].detach() if given.name in by_name else tensors[n].detach()


def compare(op: Any, found: list[Tensor], wanted: list[Tensor]) -> str:
    """Why results differ from eager's, or an empty string."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs, eager gives {len(wanted)}"
    for i, (a, b) in enumerate(zip(found, wanted)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"output {i}: {a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}"
        if op_name(op) in NO_VALUES or op.name in NO_VALUES:
            continue
        rtol, atol = TOLERANCE.get(op_name(op), (None, None))
        if rtol is None:
            rtol, atol = _tolerance(b.dtype)
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"output {i}: {_brief(error)}"
    return ""


def _tolerance(dtype: torch.dtype) -> tuple[float, float]:
    if dtype in (torch.float32, torch.complex64):
        return 1e-4, 2e-5
    if dtype in (torch.float64, torch.complex128):
        return 1e-6, 1e-7
    if dtype == torch.bfloat16:
        return 2e-2, 2e-2
    if dtype in (torch.float16, torch.complex32):
        return 3e-3, 3e-3
    return 0.0, 0.0


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"
