"""The IR of a program between two passes, by name: `graph.ir("fused")`.

A stage is what the pipeline has made of a module after some pass; `STAGES` has them as data. To see
another point, run `gflow-opt` with a pipeline of your own.
"""

from __future__ import annotations

from gflow.dialects.mlir import ir

from .pass_manager import Pipeline

#: the stages in the pipeline's order, each with the pass that ends it (where it stands last)
STAGES = {
    "traced": "",
    "checkpointed": "gflow-checkpoint",
    "mixed": "gflow-amp",
    "partitioned": "gflow-partition-engines",
    "laid-out": "gflow-assign-layout",
    "simplified": "cse",
    "frozen": "gflow-freeze",
    "fused": "gflow-fuse",
    "scheduled": "gflow-schedule",
    "rematerialized": "gflow-rematerialize",
    "materialized": "gflow-materialize",
    "selected": "gflow-select-kernels",
    "planned": "gflow-plan-memory",
}


class NoStage(ValueError):
    """A pipeline has no such stage; the message lists those that it has."""


def stages_of(pipeline: Pipeline) -> dict[str, int]:
    """The stages that a pipeline has, each with the number of passes that lead to it."""
    last = {step.name: i + 1 for i, step in enumerate(pipeline.steps)}
    found = {name: last.get(end, 0) for name, end in STAGES.items() if not end or end in last}
    found["planned"] = len(pipeline.steps)
    return found


def run_to(module: ir.Module, pipeline: str, stage: str) -> None:
    """Run a pipeline on a module up to a stage.

    Raises:
        NoStage: the pipeline has no such stage.
        PipelineError: a pass failed.
    """
    with module.context:
        parsed = Pipeline(pipeline)
    stages = stages_of(parsed)
    if stage not in stages:
        listed = ", ".join(repr(s) for s in sorted(stages, key=lambda s: stages[s]))
        why = ""
        if stage in STAGES:
            why = f"; {STAGES[stage]} is not among this graph's passes"
        raise NoStage(f"stages are {listed}; got {stage!r}{why}")
    parsed.steps = parsed.steps[: stages[stage]]
    if parsed.steps:
        parsed.run(module)
