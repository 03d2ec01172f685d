"""Products of bfloat16 values by Intel AMX or AVX-512, and float32 products from products of bfloat16 by AMX.

panels      packing: float32 values as sums of three bfloat16 values
tile        the tile by AMX, and the same by float32 multiply-adds
dots        the sums of a tile by AVX-512's dot products
words       pairs of values as 32-bit words, and their products
word_tile   the tile of a product of words
"""
