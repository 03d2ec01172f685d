"""What is a mismatch between the two runs of a session; a smaller session that shows it."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo.exc

from gflow.inspection.noise import Noise

from ..campaign import FINDS, Result
from ..judge import OTHER_REFUSALS, REFUSALS, Verdict, apart, unexplained
from ..minimize import greedy
from .session import Action, Session, draw, text, to_json
from .world import NotThere, Seen, run

Tensor = torch.Tensor


#: actions that gflow may refuse, after which the session goes on: in eager, what they did is undone
UNDONE = ("call", "raises", "other graph", "artifact")


def judge(session: Session) -> Verdict:
    """Run the session by gflow and eagerly, and where they differ, eagerly with noise."""
    ours = run(session, "gflow")
    errors = {i: e for i, e in ours.errors.items() if not isinstance(e, NotThere)}
    eager = run(session, "eager", refused=frozenset(errors))
    runs = _Runs(session, frozenset(errors))
    refused = ""
    rounded = False
    for i, step in enumerate(session.actions):
        at = f"{i} {step.name}"
        error, there = ours.errors.get(i), eager.errors.get(i)
        if error is not None and there is None:
            if not _is_refusal(error, session):
                return Verdict("crash", _brief(error), at)
            refused = refused or _brief(error)
            if step.name not in UNDONE or "lazy module" in str(
                error
            ):  # eager's call has made it another module
                break
        elif there is not None and error is None and "support sparse gradients" in str(there):
            return Verdict("more", _brief(there), at)  # graphs have dense ones
        elif there is not None and error is None and "the deepcopy protocol" in str(there):
            return Verdict(
                "more", _brief(there), at
            )  # after a graph's call, what it assigned has no history
        elif there is not None and error is None:
            return Verdict("missed", f"eager raises {_brief(there)}", at)
        if error is not None and there is not None and session.entry in ("compile", "dynamo"):
            break  # as in eager, what was done before the error stays
        if any("seen" in text for text in ours.warned):  # happens once for a program, as gflow says
            ours.steps[i].pop("state['seen']")
            eager.steps[i].pop("state['seen']")
        found = _difference(ours.steps[i], eager.steps[i], i, error is not None, runs)
        if isinstance(found, str):
            return _found(session, ours, i, found)
        rounded |= found
    return Verdict("refused", refused) if refused else Verdict("rounding" if rounded else "ok")


def _found(session: Session, ours: Seen, i: int, found: str) -> Verdict:
    """The verdict on a difference after an action."""
    at = f"{i} {session.actions[i].name}"
    if "only one has it, eager" in found and any("puts a tensor into" in t for t in ours.warned):
        return Verdict("told", found, at)
    if session.entry == "dynamo":
        aot, runs = run(session, "aot"), _Runs(session, frozenset())
        if not any(
            isinstance(_difference(a, b, j, j in ours.errors, runs), str)
            for j, (a, b) in enumerate(zip(ours.steps[: i + 1], aot.steps))
        ):
            return Verdict("of Dynamo", found, at)
    warned = f"; warned: {ours.warned[0][:160]}" if ours.warned else ""
    return Verdict("mismatch", f"after {at}, {found}{warned}", at)


def _is_refusal(error: BaseException, session: Session) -> bool:
    # weak references, as those of TorchDynamo's guards; attributes with a history of the user's
    known = ("Cannot swap t", "support the deepcopy protocol", "get the gradient edge for a Tensor")
    if any(text in str(error) for text in known):
        return True
    if isinstance(error, REFUSALS) or any(t in str(error) for t in OTHER_REFUSALS):
        return True
    return session.entry == "dynamo" and isinstance(error, torch._dynamo.exc.TorchDynamoException)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class _Runs:
    """Eager runs of a session with noise, made when they are asked for."""

    def __init__(self, session: Session, refused: frozenset[int]) -> None:
        self.session, self.refused = session, refused
        self.made: list[Seen] = []

    def values(self, i: int, name: str, count: int) -> list[Tensor]:
        """What such runs had by a name after an action."""
        while len(self.made) < min(count, 8):
            k = len(self.made)
            noise = functools.partial(Noise, 7919 * k + 1, 1.0 + k % 2)
            self.made.append(run(self.session, "eager", refused=self.refused, noise=noise))
        found = [s.steps[i].get(name) for s in self.made]
        return [t for t in found if isinstance(t, Tensor)]


def _difference(
    ours: dict[str, Any], eager: dict[str, Any], i: int, raised: bool, runs: _Runs
) -> str | bool:
    """How the states after an action differ, if they do; else whether they do as rounding may."""
    rounded = False
    for name in {**ours, **eager}:
        if name not in ours or name not in eager:
            if raised and name.startswith(("results", "shares", "inputs")):
                continue
            return f"{name}: only one has it, {'gflow' if name in ours else 'eager'}"
        how = _apart(ours[name], eager[name], i, name, runs)
        if isinstance(how, str):
            return f"{name}: {how}"
        rounded |= how
    return rounded


def _apart(a: Any, b: Any, i: int, name: str, runs: _Runs) -> str | bool:
    """How two values differ, if they do; else whether they differ as rounding may."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        if isinstance(a, float) and isinstance(b, float):
            same = math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-30) or (a != a and b != b)
        else:
            same = type(a) is type(b) and a == b
        return False if same else f"{a!r}, eager {b!r}"[:300]
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}"
    if name.endswith(("['eta']", "['mu']")):  # which ASGD makes of float32
        a, b = a.float(), b.float()
    wrong = apart(a, b)
    if not wrong.any():
        return False
    left = unexplained(wrong, a, b, None, lambda count: runs.values(i, name, count))
    if left is None:
        return True
    at = tuple(left.nonzero()[0].tolist())
    return f"{int(left.sum())} of {left.numel()} differ, at {list(at)} {a[at].item()!r}, eager {b[at].item()!r}"


# -- smaller sessions


def minimized(session: Session, verdict: Verdict, seconds: float) -> Session:
    """A smaller session with a verdict of the same kind."""
    deadline = time.process_time() + seconds
    wanted = _kind(verdict)
    before = None
    while session != before and time.process_time() < deadline:
        before = session
        for shrink in (_fewer_actions, _plainer):
            session = greedy(session, shrink, lambda s: _kind(judge(s)) == wanted, deadline)
    return session


def _kind(verdict: Verdict) -> str:
    if verdict.status == "mismatch":
        what = verdict.detail.partition(", ")[2].partition(":")[0].split()
        return f"mismatch {'only one' if 'only one has it' in verdict.detail else what[0] if what else ''}"
    return f"{verdict.status} {verdict.detail[:40]}"


def _fewer_actions(session: Session) -> Iterator[Session]:
    actions = session.actions
    size = len(actions) // 2
    while size:
        for start in range(0, len(actions), size):
            yield replace(session, actions=actions[:start] + actions[start + size :])
        size //= 2


def _plainer(session: Session) -> Iterator[Session]:
    plain = Session(0)
    for name in ("schedule", "clip", "scaler", "reads", "returns", "reach"):
        if getattr(session, name) != getattr(plain, name):
            yield replace(session, **{name: getattr(plain, name)})
    for name in ("reads", "returns", "blocks", "optimizers"):
        held = getattr(session, name)
        for i in range(len(held)):
            if len(held) > 1 or name in ("reads", "returns"):
                yield replace(session, **{name: held[:i] + held[i + 1 :]})
    for i, block in enumerate(session.blocks):
        if block != "linear":
            yield replace(session, blocks=(*session.blocks[:i], "linear", *session.blocks[i + 1 :]))
    if session.optimizers and session.optimizers[0] != ("SGD", {"lr": 0.1}):
        yield replace(session, optimizers=(("SGD", {"lr": 0.1}), *session.optimizers[1:]))
    usual = {"size": 4, "layout": "plain", "share": "", "form": "tensor", "target": "", "how": "by position",
             "number": None,
             "dtype": "", "requires_grad": False, "context": "", "thread": False, "backward": True}  # fmt: skip
    for key, value in usual.items():
        changed = tuple(
            replace(a, args={**a.args, key: value}) if a.name == "call" else a
            for a in session.actions
        )
        if changed != session.actions:
            yield replace(session, actions=changed)
    for i, a in enumerate(session.actions):
        if a.name == "call":
            for key, value in usual.items():
                if a.args[key] != value:
                    changed = Action("call", {**a.args, key: value})
                    yield replace(
                        session, actions=(*session.actions[:i], changed, *session.actions[i + 1 :])
                    )


def judged(seed: int, shrink: float) -> tuple[Result, str | None]:
    """A random session; JSON of it where it is a find."""
    start = time.process_time()
    session = draw(seed)
    verdict = judge(session)
    count = sum(a.name == "call" for a in session.actions)
    base = Result(seed, verdict.status, verdict.detail, verdict.where, session.entry, count)
    if verdict.status not in FINDS:
        return replace(base, seconds=round(time.process_time() - start, 3)), None
    if shrink:
        session = minimized(session, verdict, shrink)
        verdict = judge(session)
    seconds = round(time.process_time() - start, 3)
    found = replace(
        base,
        detail=verdict.detail,
        where=verdict.where,
        signature=signature(session, verdict),
        seconds=seconds,
    )
    return found, to_json(session)


def signature(session: Session, verdict: Verdict) -> str:
    """Kind, what differs, and the actions of a (minimized) session."""
    names = sorted({a.name for a in session.actions if a.name != "call"})
    what = re.sub(r"[\d'\"\[\]().,-]+", "", _kind(verdict))[:50]
    return f"{what} | {session.entry} {' '.join(session.blocks)} | {', '.join(names)}"


__all__ = ["judge", "judged", "minimized", "text"]
