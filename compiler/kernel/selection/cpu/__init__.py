"""Choices for a processor.

- `chooser.py`: the choice for each op
- `loops.py`, `row_values.py`: how a generated kernel walks its index space, and what of a row it keeps
- `rows.py`: a contraction's rows in pieces, each with what follows it; `batches.py`: batches of products in BLAS calls
- `patches.py`: convolutions by patches and matrix products
"""
