"""Where the bindings look for classes of ops of the `gflow` namespace. There are none.

Each time the bindings wrap an op, they import `<prefix>.<namespace>` for the prefixes they know; a module
that is not there is searched for again at every op (about 60 µs each). This module being there makes
that a look-up of well under a microsecond.
"""
