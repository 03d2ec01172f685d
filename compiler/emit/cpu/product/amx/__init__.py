"""Float32 products from products of bfloat16, by the tile registers of Intel AMX.

panels   packing: float32 values as sums of three bfloat16 values
tile     the tile by AMX, and the same by float32 multiply-adds
"""
