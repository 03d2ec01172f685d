"""Where a program's random ops get their seed: PyTorch's default generator, which each call draws from.

A call's numbers are so a function of that generator's state, as an eager op's are: `torch.manual_seed`,
`torch.set_rng_state` and `torch.random.fork_rng` act on them. The state that a checkpoint holds is the
generator's. Loading one sets the generator, and the graph goes on in a copy of its own for as long as
nothing but programs draws from the generator or seeds it: several graphs that were loaded, or one that was
saved and goes on, don't take numbers from each other.
"""

from __future__ import annotations

import weakref

import torch

_default = torch.default_generator
#: seeds that are drawn from a copy
_copies: weakref.WeakSet[Seeds] = weakref.WeakSet()
#: the default generator as a program has left it, while there are copies
_seen: list[torch.Tensor] = []


def _touched() -> bool:
    """Whether anything but programs has changed the default generator."""
    return not _seen or not torch.equal(_seen[0], _default.get_state())


class Seeds:
    """Seeds of one graph. `value` is the operand of random ops: (seed, offset)."""

    def __init__(self) -> None:
        self.value = torch.zeros(2, dtype=torch.int64)
        self._seed = self.value[0]
        self._own: torch.Generator | None = None
        self._before: torch.Tensor | None = None  # the generator's state before the latest draw
        self._pending: tuple[torch.Generator, torch.Tensor, torch.Tensor | None] | None = None

    def _generator(self) -> torch.Generator:
        """What the next seed is drawn from."""
        if _copies and _touched():
            for seeds in [*_copies]:
                seeds._own = None
            _copies.clear()
            _seen.clear()
        return self._own or _default

    def draw(self) -> torch.Tensor:
        """The (seed, offset) of one call, which `undo` can put back until `keep`."""
        generator = self._generator()
        before = generator.get_state()
        self._pending = (generator, before, self._before)
        self._before = before
        self._seed.random_(generator=generator)
        if _seen and generator is _default:
            _seen[0] = _default.get_state()
        return self.value

    def keep(self) -> None:
        """The call of the latest seed has taken place."""
        self._pending = None

    def undo(self) -> None:
        """Put the latest seed back if its call has not taken place."""
        if self._pending is not None:
            generator, before, self._before = self._pending
            generator.set_state(before)
            if _seen and generator is _default:
                _seen[0] = before
            self._pending = None

    def state(self) -> torch.Tensor | None:
        """What a checkpoint holds, the generator after the latest draw; None where no call has drawn."""
        if self._own is not None:
            return self._own.get_state()
        if self._before is None:
            return None
        after = torch.Generator()
        after.set_state(self._before)
        torch.zeros((), dtype=torch.int64).random_(generator=after)
        return after.get_state()

    def load(self, state: torch.Tensor) -> None:
        """Go on from a checkpoint.

        state: a generator's; or, of checkpoints before version 12, a seed and a number of calls.

        Raises:
            ValueError: it is neither.
        """
        own = torch.Generator()
        if state.dtype == torch.int64 and state.shape == (2,):
            seed, calls = state.tolist()
            own.manual_seed((seed + calls * 0x9E3779B97F4A7C15) % (1 << 63))
        elif state.dtype == torch.uint8 and state.shape == own.get_state().shape:
            own.set_state(state.cpu())
        else:
            raise ValueError(f"no state of a random generator: {state.dtype}{list(state.shape)}")
        self._generator()  # copies that do not hold any more are dropped
        _default.set_state(own.get_state())
        _seen[:] = [_default.get_state()]
        self._own = own
        _copies.add(self)
