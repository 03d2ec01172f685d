"""What is a mismatch, and what is rounding.

Integers, booleans and infinities must agree; other numbers must be as near to eager's, or to float64's, as
eager's own rounding allows. What fails that is held against eager with noise (`noise.py`): an element whose
distance to eager is within a few times what noise makes of it, is rounding. docs/oracle_rules.md lists what is none.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors

from gflow.errors import GraphError
from gflow.inspection.noise import Noise
from gflow.lowering.dtypes import LoweringError

from .dense import (
    ChannelsLast,
    Dense,
    DenseAttention,
    LargestFirst,
    OnPaddedInput,
    RoundedProducts,
    Subnormals,
    WithoutPadding,
    attention_by_formula,
)
from .overflows import Overflows
from .program import Program, dtype_of, source
from .run import Seen, run

Tensor = torch.Tensor
Context = Callable[[], AbstractContextManager[Any]]

#: how often a run with noise is made: at first, and before something is called wrong
TRIALS, MORE_TRIALS = 5, 25


@dataclass(frozen=True)
class Verdict:
    """status: "ok"; "rounding" (differs as rounding may); "refused" (by gflow, with a reason); "both raise";
    "more" (eager has no kernel for the dtype, gflow has); or a find: "mismatch", "crash", "missed" (eager raises),
    and in a campaign "died" and "hang"."""

    status: str
    detail: str = ""
    where: str = ""

    @property
    def is_find(self) -> bool:
        return self.status in ("mismatch", "crash", "missed", "died", "hang")


#: what eager raises where gflow may compute: it has no kernel for the dtype; a reentrant checkpoint takes no `inputs`;
#: autocast meets the other half type,
#: which `enable_amp` is a pass about; PyTorch's shape rule of a group norm's gradient takes an undefined tensor
LIMITS_OF_EAGER = (
    "not implemented for",
    "at::autocast::prioritize",
    "tensor does not have a device",
    "use_reentrant=True, torch.utils.checkpoint is incompatible",
)
REFUSALS = (GraphError, LoweringError, NotImplementedError)
#: what else is no answer, and names the line: memory, and what PyTorch's dispatcher says of values with a gradient that
#: integers take (eager computes it where there are none of these)
OTHER_REFUSALS = ("memory budget", "Autograd not support dtype")


def judge(program: Program) -> Verdict:
    """Run the program by gflow, eagerly, and as far as needed in float64 and with noise."""
    eager = run(program, "eager")
    ours = run(program, "gflow")
    if eager.error is not None:
        if ours.error is not None:
            return Verdict("both raise", f"{_brief(eager.error)} | {_brief(ours.error)}")
        dense = run(program, "eager", context=Dense)
        if dense.error is None:
            return _more(f"only on these strides: {_brief(eager.error)}", ours, dense, program)
        known = any(text in str(eager.error) for text in LIMITS_OF_EAGER)
        if known or _by_derivative(eager.error) or _by_kernel(eager.error, program):
            return Verdict("more", _brief(eager.error))
        if program.settings.amp:
            plain = run(_without_amp(program), "eager")
            if plain.error is None:
                return _more(f"only under autocast: {_brief(eager.error)}", ours, plain, program)
        if _compiled(program):
            alone = run(program, "aot")
            if alone.error is None:
                why = f"AOTAutograd does not raise: {_brief(eager.error)}"
                return _more(why, ours, alone, program)
        if "modified by an inplace operation" in str(eager.error):
            kept = run(program, "eager", context=allow_mutation_on_saved_tensors)
            if kept.error is None:
                verdict = compare(program, ours, kept, allow_mutation_on_saved_tensors)
                why = f"by values from before the update: {_brief(eager.error)}"
                return verdict if verdict.is_find else Verdict("more", why)
        return Verdict("missed", f"eager raises {_brief(eager.error)}", f"call {eager.at}")
    if ours.error is not None:
        if program.settings.amp:
            plain = run(_without_amp(program), "eager")
            if plain.error is not None and _said(plain.error)[:60] == _said(ours.error)[:60]:
                return Verdict("both raise", f"without autocast: {_brief(ours.error)}")
        found = _failure(ours.error, ours.at)
        return found if found.status != "crash" else _by_pytorch(program, found, ours.error)
    if (
        ours.stale and not eager.stale
    ):  # a result may be an argument itself, which later calls change
        return Verdict("mismatch", ours.stale, "later call")
    return compare(program, ours, eager)


#: how far a result may be from one that was computed in another way, in units of its type at its largest element
COARSE = 256


def _more(why: str, ours: Seen, other: Seen, program: Program) -> Verdict:
    """The verdict where eager raises, gflow does not, and another run tells what the results should be. Rounding is
    not looked into: elements that differ by more than a share of the largest in any result are no rounding."""
    largest = max(
        (float(v[v.isfinite()].abs().amax()) for v in other.values.values()
         if v.is_floating_point() and v.isfinite().any()),
        default=0.0,
    )  # fmt: skip
    for name, a in ours.values.items():
        b = other.values.get(name)
        if b is None or "gradient" in name:
            continue
        if a.shape != b.shape:
            return Verdict(
                "mismatch", f"{name}: {list(a.shape)}, beside {list(b.shape)}; {why}", "type"
            )
        a, b = _plain(a), _plain(b)
        if ".view(torch." in source(program):
            a, b = _of_bits(a, b)
        if not a.is_floating_point() or not b.is_floating_point():
            wrong = apart(a, b) if a.dtype == b.dtype else torch.zeros(1, dtype=torch.bool)
        else:
            kinds = [
                a.dtype,
                b.dtype,
                *([dtype_of(program.settings.amp)] if program.settings.amp else []),
            ]
            eps = max(torch.finfo(k).eps for k in kinds)
            both = a.isfinite() & b.isfinite()
            wrong = both & ((a.double() - b.double()).abs() > COARSE * eps * largest)
        if wrong.any():
            return Verdict(
                "mismatch",
                f"{name}: {int(wrong.sum())} differ from a run that does not raise; {why}",
                name,
            )
    return Verdict("more", why)


def _by_kernel(error: BaseException, program: Program) -> bool:
    """Whether one of eager's kernels refuses what another of the same op computes: a transposed convolution of which
    padding leaves nothing."""
    return "Output size is too small" in str(error) and "conv_transpose" in source(program)


def _by_derivative(error: BaseException) -> bool:
    """Whether a formula of eager's for a gradient fails on what the op itself takes: that of `clamp` on tensors that
    broadcast, that of `logaddexp` on booleans."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    texts = ("match the broadcast shape", "with a bool tensor is not supported")
    return any(t in str(error) for t in texts) and files[-1].endswith("autograd/graph.py")


def _failure(error: BaseException, at: int) -> Verdict:
    inner: BaseException | None = error
    met: set[int] = set()  # chains of causes may be circles
    while inner is not None and id(inner) not in met:
        met.add(id(inner))
        if isinstance(inner, REFUSALS) or any(text in str(inner) for text in OTHER_REFUSALS):
            return Verdict("refused", _brief(inner), f"call {at}")
        inner = inner.__cause__ or getattr(inner, "inner_exception", None)
    return Verdict("crash", _brief(error), f"call {at}")


def _by_pytorch(program: Program, found: Verdict, error: BaseException) -> Verdict:
    """A crash that TorchDynamo and AOTAutograd have without gflow is no answer of gflow's: where a function
    updates its arguments and gives gradients, `gflow.compile` leaves it to them."""
    if not _compiled(program):
        return found
    for engine in ("aot, sizes known", "aot"):
        alone = run(program, engine)
        if alone.error is not None and _said(alone.error) == _said(error):
            return Verdict("refused", f"by AOTAutograd: {_said(error)}", found.where)
    return found


def _without_amp(program: Program) -> Program:
    return replace(program, settings=replace(program.settings, amp=""))


def _compiled(program: Program) -> bool:
    """Whether TorchDynamo or AOTAutograd may have seen the program before gflow: `gflow.compile` leaves to them what
    it cannot trace."""
    return program.settings.mode in ("compile", "compile_grad", "dynamo", "dynamo_grad")


def _said(error: BaseException) -> str:
    """The first line of an error, without the name of the backend that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[1] if lines[0].endswith("raised:") and len(lines) > 1 else lines[0]
    return text.removeprefix(f"{type(error).__name__}: ")


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"


def compare(program: Program, ours: Seen, eager: Seen, within: Context = nullcontext) -> Verdict:
    """The verdict on two runs that raised nothing. within: what eager ran in, around each step."""
    names = list(eager.values)
    _fill_gradients(ours, eager)
    if set(ours.values) != set(eager.values):
        missing = sorted(set(ours.values) ^ set(eager.values))
        return Verdict("mismatch", f"only one has: {missing[:4]}", "names")
    suspects: dict[str, Tensor] = {}
    for name, a in ours.values.items():
        b = eager.values[name]
        if program.settings.amp and a.is_floating_point() and b.is_floating_point():
            b = eager.values[name] = b.to(
                a.dtype
            )  # graphs keep the types of results, autocast doesn't
        if a.shape != b.shape or a.dtype != b.dtype:
            what = f"{name}: {a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}"
            return Verdict("mismatch", what, "type")
        wrong = apart(a, b)
        if wrong.any() and ".view(torch." in source(program):
            wrong = wrong & ~by_sign_of_nan(a, b)
        if wrong.any():
            suspects[name] = wrong
    if not suspects:
        return Verdict("ok")
    runs = _References(program, names, within)
    for name, wrong in suspects.items():
        left = _unexplained(name, wrong, ours.values[name], eager.values[name], runs)
        if left is not None:
            return Verdict(
                "mismatch",
                _describe(name, left, ours, eager, runs),
                name.partition(", ")[2] or name,
            )
    return Verdict(
        "rounding", "; ".join(f"{n} ({int(w.sum())})" for n, w in suspects.items())[:200]
    )


def _fill_gradients(ours: Seen, eager: Seen) -> None:
    """Through a compiled backward, a gradient that eager leaves at None may be zeros."""
    for name in set(ours.values) - set(eager.values):
        if "gradient" in name:
            eager.values[name] = torch.zeros_like(ours.values[name])


def _plain(t: Tensor) -> Tensor:
    t = t.resolve_conj() if t.is_complex() else t
    return torch.view_as_real(t.contiguous()) if t.is_complex() else t


def _eps(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps


def _least(t: Tensor) -> float:
    """What is no difference to zero: subnormal numbers, which eager's vector code takes for 0 in places (`silu(-97)`,
    and `sigmoid(-717)` of doubles). Halves have so few others that it is a few of the smallest."""
    info = torch.finfo(t.dtype)
    return info.smallest_normal * (4 * info.eps if t.dtype == torch.float16 else 1)


def _same_special(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Where elements differ by more than a few units in the last place."""
    a, b = _plain(a), _plain(b)
    if not a.is_floating_point():
        return a != b
    near = (a.double() - b.double()).abs() <= 4 * _eps(b) * b.double().abs() + _least(b)
    return ~(near | _same_special(a, b))


#: floating-point types by the integers of their width
_FLOATS = {torch.int16: torch.bfloat16, torch.int32: torch.float32, torch.int64: torch.float64}


def _of_bits(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Integers that are bits of numbers, as those numbers: none is subnormal, as small integers are."""
    of = _FLOATS.get(a.dtype)
    if of is None or b.dtype != a.dtype:
        return a, b
    numbers = a.contiguous().view(of), b.contiguous().view(of)
    least = torch.finfo(of).smallest_normal
    usual = all(bool(((t == 0) | (t.abs() >= least)).all()) for t in numbers)
    return numbers if usual else (a, b)


def by_sign_of_nan(a: Tensor, b: Tensor) -> Tensor:
    """Where integers are the bits of NaN, but for the sign: IEEE 754 leaves it open which an operation gives."""
    if a.dtype not in _FLOATS:
        return torch.zeros((), dtype=torch.bool)
    of = _FLOATS[a.dtype]
    signs = (a ^ b) == torch.iinfo(a.dtype).min
    return signs & a.contiguous().view(of).isnan() & b.contiguous().view(of).isnan()


class _References:
    """Runs that a suspect is held against; each is made when it is first asked for."""

    def __init__(
        self, program: Program, names: Sequence[str], within: Context = nullcontext
    ) -> None:
        self.program, self.names, self.within = program, list(names), within
        self._noisy: list[Seen] = []

    def _run(self, context: Context = nullcontext, wider: bool = False) -> Seen:
        @contextmanager
        def both() -> Iterator[None]:
            with self.within(), context():
                yield

        return run(self.program, "eager", wider=wider, context=both)

    @functools.cached_property
    def float64(self) -> Seen | None:
        if not self.program.float64:
            return None
        seen = self._run(wider=True)
        usable = seen.error is None and list(seen.values) == self.names
        return seen if usable else None

    @functools.cached_property
    def dense(self) -> Sequence[Seen]:
        """Eager on row-major copies, of attention too; with convolutions on channels-last ones, without padding, or
        on a padded input; with products that are rounded before a bias is added; with products of the largest
        elements first; with subnormal sigmoids; with attention as products and a softmax; without autocast, where
        that is a switch."""
        contexts = (
            Dense,
            DenseAttention,
            ChannelsLast,
            WithoutPadding,
            OnPaddedInput,
            RoundedProducts,
            LargestFirst,
            Subnormals,
            attention_by_formula,
        )
        made = [self._run(c) for c in contexts]
        if (
            self.program.settings.amp
        ):  # the pass leaves halves alone that the program itself asks for
            made.append(run(_without_amp(self.program), "eager"))
        return [seen for seen in made if seen.error is None]

    @functools.cached_property
    def narrow(self) -> float:
        """The unit of the coarsest type that the program computes in."""
        settings = self.program.settings
        names = [s.dtype for s in self.program.storages]
        names += [d for d in (settings.amp, settings.autocast) if d]
        dtypes = [d for d in map(dtype_of, names) if d.is_floating_point or d.is_complex]
        return max((torch.finfo(d).eps for d in dtypes), default=0.0)

    @functools.cached_property
    def in_range(self) -> Sequence[Seen]:
        """Where eager goes over its type's range and float64 does not: float64, and with noise of the type's unit."""
        eager, wide = Overflows(), Overflows()
        self._run(lambda: eager)
        plain = self._run(lambda: wide, wider=True)
        if plain.error is not None or not eager.count - wide.count:
            return []
        units = self.narrow / torch.finfo(torch.float64).eps
        runs = [plain]
        for seed in range(MORE_TRIALS):
            made = functools.partial(Noise, 104729 * seed + 1, units * (1.0 + seed % 2))
            runs.append(self._run(made, wider=True))
        return [seen for seen in runs if seen.error is None]

    def noisy(self, count: int) -> Sequence[Seen]:
        while len(self._noisy) < count:
            seed = len(self._noisy)
            narrow = self.program.settings.amp
            made: Callable[[], Noise] = functools.partial(
                Noise, 7919 * seed + 1, 1.0 + seed % 2, narrow
            )
            seen = self._run(made)
            self._noisy.append(seen)
        return [s for s in self._noisy if s.error is None]


def _unexplained(
    name: str, wrong: Tensor, a: Tensor, b: Tensor, runs: _References
) -> Tensor | None:
    """Where a suspect stays wrong; None where rounding explains all of it."""
    wide = None
    if runs.float64 is not None and name in runs.float64.values:
        wide = runs.float64.values[name]

    def trials(count: int) -> list[Tensor]:
        return [s.values[name] for s in runs.noisy(count) if name in s.values]

    amp = runs.program.settings.amp
    if amp and a.is_floating_point():
        # a value that build() converts to another's type (`x.type_as(y)`) is rounded by autocast, where y is
        # narrow; in a graph y keeps its type, and the pass decides
        off = (a.double() - b.double()).abs()
        wrong = wrong & ~(off <= 2 * torch.finfo(dtype_of(amp)).eps * b.double().abs())
    left = unexplained(wrong, a, b, wide, trials)
    for seen in [] if left is None else runs.dense:
        # where eager's answer depends on strides, that of these operands is right, too
        dense = seen.values.get(name)
        if left is not None and dense is not None and dense.shape == a.shape:
            left = _as_dense(left, a, b, dense, trials(MORE_TRIALS))
    if left is not None:
        wides = [s.values[name] for s in runs.in_range if name in s.values]
        left = _as_in_range(left, a, wides, runs.narrow)
    settings = runs.program.settings
    if left is not None and settings.mode == "train" and settings.optimizer[0] == "Rprop":
        left = _by_sign(left, a, b, trials(MORE_TRIALS))
    return left


def _as_dense(
    left: Tensor, a: Tensor, b: Tensor, dense: Tensor, runs: Sequence[Tensor]
) -> Tensor | None:
    """Where `a` is not what eager gives on other strides either, up to a few times what noise makes of eager's own
    (how far eager's two answers are from each other is no measure)."""
    a, b, dense = _plain(a), _plain(b), _plain(dense)
    if a.is_floating_point():
        spread = _spread(b, [t for t in map(_plain, runs) if t.shape == b.shape])
        spread = torch.where(b.isfinite(), spread, 0.0)
        off = (a.double() - dense.double()).abs().nan_to_num(torch.inf, torch.inf)
        near = off <= 8 * spread + 8 * _eps(b) * dense.double().abs() + _least(b)
        left = left & ~(near | _same_special(a, dense))
    else:
        left = left & (a != dense)
    return left if left.any() else None


def _as_in_range(left: Tensor, a: Tensor, wides: Sequence[Tensor], unit: float) -> Tensor | None:
    """Where `a` is not what float64 gives up to rounding either, in a program in which eager goes over the range of
    its type on the way: what it gives then, it gives for the infinity."""
    a, wides = _plain(a), [t for t in map(_plain, wides) if t.shape == a.shape]
    if not wides or not a.is_floating_point() or not wides[0].is_floating_point():
        return left
    wide, *noisy = [t.to(a.dtype).double() for t in wides]  # infinite beyond its range
    near = (a.double() - wide).abs() <= 8 * _spread(wide, noisy) + 8 * unit * wide.abs() + _least(a)
    for t in noisy:  # some of which may go over it where others don't
        near |= _same_special(a.double(), t)
    left = left & ~(near | _same_special(a.double(), wide))
    return left if left.any() else None


def _by_sign(left: Tensor, a: Tensor, b: Tensor, runs: Sequence[Tensor]) -> Tensor | None:
    """Rprop steps by signs of gradients. Where those are zero but for rounding, noise moves most elements of a
    parameter by whole steps, and a few by chance not at all: such a few may be as far away as the others."""
    if not a.is_floating_point() or left.sum() > max(1, 0.01 * left.numel()):
        return left
    far = torch.stack([(t.double() - b.double()).abs() for t in runs]).amax(0)
    if (far > 0).double().mean() < 0.25:
        return left
    left = left & ~((a.double() - b.double()).abs() <= 2 * far.max())
    return left if left.any() else None


def unexplained(
    wrong: Tensor, a: Tensor, b: Tensor, wide: Tensor | None, trials: Callable[[int], list[Tensor]]
) -> Tensor | None:
    """Where `a` is not `b` up to rounding; None where it is everywhere.

    wrong: where to look. wide: the same in float64. trials: a number of runs like b's, with noise.
    """
    a, b = _plain(a), _plain(b)
    wide = None if wide is None else _plain(wide)
    wide = None if wide is None or wide.shape != b.shape else wide
    for count in (TRIALS, MORE_TRIALS):
        if a.is_floating_point() and wide is not None:
            wrong = wrong & ~_as_near(a, b, wide)
        if not wrong.any():
            return None
        runs = [t for t in map(_plain, trials(count)) if t.shape == b.shape]
        if not a.is_floating_point():
            for t in runs:
                wrong = wrong & (t == b)
        else:
            wrong = wrong & ~_within(a, b, wide, runs) & ~_out_of_range(a, b, wide, runs)
        if not wrong.any():
            return None
    return wrong


def _spread(b: Tensor, runs: Sequence[Tensor]) -> Tensor:
    """How far noise takes each element of `b`, at most."""
    spread = torch.zeros(b.shape, dtype=torch.float64)
    for t in runs:
        away = (t.double() - b.double()).abs().nan_to_num(torch.inf, torch.inf)
        spread = torch.maximum(spread, torch.where(_same_special(t, b), 0.0, away))
    return spread


def _within(a: Tensor, b: Tensor, wide: Tensor | None, runs: Sequence[Tensor]) -> Tensor:
    """Where ours is as near to eager's as noise and float64 are, or a few times as far."""
    spread = _spread(b, runs)
    if wide is not None:
        away = (wide.double() - b.double()).abs()
        spread = torch.maximum(spread, torch.where(away.isfinite(), away, 0.0))
    off = (a.double() - b.double()).abs().nan_to_num(torch.inf, torch.inf)
    return off <= 8 * spread + 8 * _eps(b) * b.double().abs() + _least(b)


def _out_of_range(a: Tensor, b: Tensor, wide: Tensor | None, runs: Sequence[Tensor]) -> Tensor:
    """Where eager's is no number, and needn't be ours.

    A formula's infinities depend on how it is written: x · scale + shift is NaN where (x - mean) · scale is inf, and
    a mean that is updated element by element is NaN after an infinite one. A run with noise evaluates such ops by
    their definitions: what one of those gives is right, too. Where float64 gives a number, eager's step over the
    largest number of the type is an error of its own, and there is nothing to be held against.
    """
    given = torch.zeros(b.shape, dtype=torch.bool)
    if wide is not None and wide.is_floating_point():
        given |= wide.isfinite()
    for t in runs:
        near = (a.double() - t.double()).abs() <= 8 * _eps(b) * t.double().abs()
        given |= near | _same_special(a, t)
    return given & ~b.isfinite()


def _as_near(a: Tensor, b: Tensor, wide: Tensor) -> Tensor:
    """Where our error to float64 is about eager's own, or less."""
    if not wide.is_floating_point():
        return torch.zeros(b.shape, dtype=torch.bool)
    ours, theirs = (a.double() - wide).abs(), (b.double() - wide).abs()
    theirs = torch.where(theirs.isfinite(), theirs, 0.0)
    near = ours <= 2 * theirs + 4 * _eps(b) * wide.abs() + _least(b)
    return (near & wide.isfinite()) | _same_special(a.double(), wide.double())


def _describe(name: str, wrong: Tensor, ours: Seen, eager: Seen, runs: _References) -> str:
    a, b = _plain(ours.values[name]), _plain(eager.values[name])
    at = tuple(wrong.nonzero()[0].tolist())
    text = f"{name}: {int(wrong.sum())} of {wrong.numel()} differ, at {list(at)} "
    text += f"{a[at].item()!r}, eager {b[at].item()!r}"
    wide = runs.float64
    if wide is not None and name in wide.values and _plain(wide.values[name]).shape == b.shape:
        text += f", float64 {_plain(wide.values[name])[at].item()!r}"
    return text
