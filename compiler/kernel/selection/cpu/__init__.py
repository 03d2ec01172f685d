"""Choices for a processor.

- `chooser.py`: the choice for each op
- `loops.py`, `row_values.py`: how a generated kernel walks its index space, and what of a row it keeps
- `rows.py`: a contraction's rows in pieces, each with what follows it; `batches.py`: batches of products in BLAS calls
- `strips.py`: products whose weight was packed beforehand
- `patches.py`: convolutions by patches and matrix products

    attention   attention on a processor: whether our own kernel makes it, and how that is cut
    batches     the batches of a product of matrices in calls of a BLAS function, each with a loop over some of them
    blocking    products of matrices on a processor: how one of our own would be cut, and whether it or the library
                makes it
    chooser     the choice for each op on a processor: what computes it, and its scratch
    loops       how a generated kernel walks its index space on a processor: the vectors' dimension, what threads
                share, and what of a row is kept between passes, in scratch
    other_ops   ops that are neither fused nor contractions: copies, quantized products
    patches     convolutions of channels-last float32 in one or two dimensions: by patches and matrix products, or
                depthwise
    row_values  which values of a row are worth keeping between the passes over it
    rows        the rows of a contraction's result in pieces, each made and then followed by what comes after the
                contraction
    strips      products whose B was packed beforehand: the tile in registers, and what a thread takes at a time
    sharing     which steps all threads run: those that take longer than starting the threads does
"""
