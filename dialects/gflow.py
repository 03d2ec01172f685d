"""Where the bindings look for the ops of the `gflow` namespace.

Each time the bindings wrap an op in its class, they import `<prefix>.<namespace>` for the prefixes
they know; a module that is not there is searched for again at every op (about 60 µs each). This
module being there makes that a look-up of well under a microsecond.
"""

from __future__ import annotations

from .dialect import OP_CLASSES, Gflow

__all__ = ["OP_CLASSES", "Gflow"]
