"""The pass pipelines that the compile path runs, by target."""

from __future__ import annotations

DEFAULT_PIPELINES: dict[str, str] = {
    "cpu": (
        "builtin.module(func.func(gflow-simplify,cse,gflow-assign-layout,gflow-simplify,cse,"
        "gflow-fuse,gflow-schedule,gflow-materialize,gflow-plan-memory))"
    ),
}
