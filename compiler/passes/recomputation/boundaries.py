"""Starts of the search at the boundaries of blocks, as marks by hand recompute: whole segments of the forward.

A boundary is a point of the forward after which few bytes are needed: between two layers of a decoder, a single value.
Boundaries follow from the dataflow, without the names of modules. For each one, the values that later ops read are
reduced to those from which the others follow, and the local minima of their bytes are the boundaries. A start keeps the
values at every boundary, at every second one, every fourth, …, and recomputes all others between them.
"""

from __future__ import annotations

from .problem import Problem
from .replay import Ends, Replay


def starts_at_boundaries(problem: Problem, whole: Replay) -> list[Ends]:
    """Choices that recompute all between boundaries; most boundaries first. whole: the replay without a choice."""
    ends = ends_of_forward(problem, whole)
    found = boundaries(problem, ends)
    starts = []
    step = 1
    while step <= len(found):
        kept = set().union(*found[step - 1 :: step])
        starts.append({v: t for v, t in ends.items() if v not in kept})
        step *= 2
    return starts


def ends_of_forward(problem: Problem, whole: Replay) -> Ends:
    """For each value that can be recomputed and is produced before the peak of live bytes, its last user until then."""
    top = int(whole.live.argmax()) if whole.live.size else 0
    ends: Ends = {}
    for v, made in enumerate(problem.maker):
        if 0 <= made < top and problem.size[v] and problem.recipe(v) is not None:
            ends[v] = max([made, *(t for t in problem.readers[v] if t < top)])
    return ends


def boundaries(problem: Problem, ends: Ends) -> list[set[int]]:
    """The values that are kept at each boundary, in order."""
    done: dict[int, list[int]] = {}
    for v, end in ends.items():
        done.setdefault(end, []).append(v)
    needed: set[int] = set()
    sets = []
    for t in sorted({*(problem.maker[v] for v in ends), *done}):
        needed.update(v for v in problem.makes[t] if v in ends)
        needed.difference_update(done.get(t, ()))
        sets.append(_without_what_follows(needed, problem, ends))
    sizes = [sum(problem.size[v] for v in kept) for kept in sets]
    return [
        sets[n]
        for n in range(1, len(sets) - 1)
        if sizes[n] < sizes[n - 1] and sizes[n] <= sizes[n + 1]
    ]


def _without_what_follows(values: set[int], problem: Problem, ends: Ends) -> set[int]:
    """Values without those that can be recomputed from the others and from results of the same kernel."""
    kept = set(values)

    def follows(v: int, seen: frozenset[int]) -> bool:
        recipe = problem.recipe(v)
        if recipe is None or v in seen:
            return False
        return all(
            w in kept
            or w not in ends
            or (problem.maker[w] == problem.maker[v] and follows(w, seen | {v}))
            for w in recipe.reads
        )

    for v in sorted(values, key=lambda v: (-problem.size[v], v)):
        kept.discard(v)
        if not follows(v, frozenset()):
            kept.add(v)
    return kept
