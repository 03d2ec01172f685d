"""What the functions of Winograd's algorithm share: the place of a tile, and the search for infinities and NaN."""

from __future__ import annotations

from ..function import LANES, VECTOR, Function

#: external functions, besides those whose addresses are arguments
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")


class WinogradFunction(Function):
    """Attributes: w: the arguments by name, of which there are `tiles_w`, `tiles_h` and `d`."""

    w: dict[str, str]

    def place(self, t: str) -> tuple[str, str, str, str]:
        """The image, depth, and row and column of tiles, of a tile by its number."""
        rest, tw = self.split(t, self.w["tiles_w"])
        rest, th = self.split(rest, self.w["tiles_h"])
        image, d = self.split(rest, self.w["d"])
        return image, d, th, tw

    def both(self, a: str, b: str) -> str:
        """Whether both conditions hold."""
        return self(f"arith.andi {a}, {b} : i1")

    def plus_zero_times(self, x: str, found: str) -> str:
        """`found` plus zero times a vector: NaN where one of its elements is infinite or NaN."""
        return self(f"math.fma {x}, {self.const(0.0, VECTOR)}, {found} : {VECTOR}")

    def is_nan(self, x: str) -> str:
        """Whether some element of a vector is NaN."""
        nan = self(f"arith.cmpf uno, {x}, {x} : {VECTOR}")
        return self(f"vector.reduction <or>, {nan} : vector<{LANES}xi1> into i1")
