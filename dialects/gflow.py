"""An empty module, in which the bindings look for classes of ops of the `gflow` namespace.

Each time the bindings wrap an op, they import `<prefix>.<namespace>` for each known prefix. Without this module, the
import system searches for it again at every op (about 60 µs). With it, the import is a look-up of less than a
microsecond.
"""
