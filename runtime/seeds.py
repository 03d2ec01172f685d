"""The seeds of a program's random ops: PyTorch's default generator, from which each call draws.

The random numbers of a call are a function of that generator's state, as those of eager ops are: `torch.manual_seed`,
`torch.set_rng_state` and `torch.random.fork_rng` affect them. A checkpoint has the generator's state. Loading one sets
the generator, and the graph continues with its own copy of it as long as only programs draw from the generator, and
nothing seeds it. Thus several graphs that were loaded, or one that was saved and continues, don't take numbers from
each other.
"""

from __future__ import annotations

import weakref

import torch

_default = torch.default_generator
#: `Seeds` that draw from a copy
_copies: weakref.WeakSet[Seeds] = weakref.WeakSet()
#: the state of the default generator after the latest draw of a program, while there are copies
_seen: list[torch.Tensor] = []


def _touched() -> bool:
    """Whether anything except programs has changed the default generator."""
    return not _seen or not torch.equal(_seen[0], _default.get_state())


class Seeds:
    """The seeds of one graph. `value` is the operand of random ops: (seed, offset)."""

    def __init__(self) -> None:
        self.value = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._seed = self.value[0]
        self._own: torch.Generator | None = None
        self._before: torch.Tensor | None = None  # the generator's state before the latest draw
        self._pending: tuple[torch.Generator, torch.Tensor, torch.Tensor | None] | None = None

    def _generator(self) -> torch.Generator:
        """The generator for the next seed."""
        if _copies and _touched():
            for seeds in [*_copies]:
                seeds._own = None
            _copies.clear()
            _seen.clear()
        return self._own or _default

    def draw(self) -> torch.Tensor:
        """The (seed, offset) of one call, which `undo` can return until `keep`."""
        generator = self._generator()
        before = generator.get_state()
        self._pending = (generator, before, self._before)
        self._before = before
        self._seed.random_(generator=generator)
        if _seen and generator is _default:
            _seen[0] = _default.get_state()
        return self.value

    def keep(self) -> None:
        """The call of the latest seed is complete."""
        self._pending = None

    def undo(self) -> None:
        """Return the latest seed if its call has not taken place."""
        if self._pending is not None:
            generator, before, self._before = self._pending
            generator.set_state(before)
            if _seen and generator is _default:
                _seen[0] = before
            self._pending = None

    def state(self) -> torch.Tensor | None:
        """The state for a checkpoint: the generator after the latest draw; None if no call has drawn."""
        if self._own is not None:
            return self._own.get_state()
        if self._before is None:
            return None
        after = torch.Generator()
        after.set_state(self._before)
        torch.zeros((), dtype=torch.int64, device="cpu").random_(generator=after)
        return after.get_state()

    def load(self, state: torch.Tensor) -> None:
        """Continue from a checkpoint.

        Args:
            state: a generator's state; or, in checkpoints before version 12, a seed and a number of calls.

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
        self._generator()  # copies that are no longer valid are dropped
        _default.set_state(own.get_state())
        _seen[:] = [_default.get_state()]
        self._own = own
        _copies.add(self)
