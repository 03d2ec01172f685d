"""Names of other libraries that mean something else while a graph is traced."""

from __future__ import annotations

import types

from gflow.tracing.context.threads import originals, replaced


def test_a_replacement_that_ended_within_originals_stays_away() -> None:
    owner = types.SimpleNamespace(name="original", kept="original")
    first, second = replaced((owner, "name", "other")), replaced((owner, "kept", "other"))
    first.__enter__()
    second.__enter__()
    with originals():
        assert (owner.name, owner.kept) == ("original", "original")
        first.__exit__(None, None, None)
    assert (owner.name, owner.kept) == ("original", "other")
    second.__exit__(None, None, None)
    assert (owner.name, owner.kept) == ("original", "original")
