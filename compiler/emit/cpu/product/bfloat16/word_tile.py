"""The microkernel of a product of words, which are pairs of bfloat16 values along K: a tile of C, summed in registers.

It is that of `product/tile.py`, except that each step adds two products (`words.py`). Strides and sizes along K count
words.
"""

from __future__ import annotations

from functools import cache

from ..function import ITEM
from ..tile import ARGUMENTS, CHAIN, RegisterTile
from .words import Products, both_ways, dot, row_of_products


@cache
def tile(
    name: str,
    rows: int,
    vectors: int,
    steps: tuple[int, int] | None = None,
    chain: int = CHAIN,
    ahead: int = 0,
) -> str:
    """The text of the function `name`; the arguments are those of `product/tile.py`. B is packed or read in place."""
    made = _WordTile(rows, vectors, True, steps or (rows * ITEM, ITEM), chain, ahead)
    return made.function(name, ARGUMENTS)


class _WordTile(RegisterTile):
    def _write(self, straight: str) -> None:
        def write(products: Products) -> None:
            self.products = products
            if products is dot:
                super(_WordTile, self)._write(straight)
            else:
                self._parts()

        both_ways(self, write)

    def _row_of_products(self, at: str, columns: list[str], sums: list[str]) -> list[str]:
        return row_of_products(self, self.products, at, columns, sums)
