"""Kernels that fusion has made become part of another that has their values, or leave it.

join_columns       reduces columns in the product that computes them
join_operand_sums  sums an operand of a product in the product
join_reductions    computes column sums in the row kernel that reads the same values
region             a kernel under construction, and the options of passes that build one by the model of tiles
unfuse             runs contractions apart from their epilogues, where that was measured to be faster
"""
