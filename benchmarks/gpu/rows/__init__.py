"""What the rows of the GPU check measure.

bandwidth     memory-bound kernels
contractions  products, convolutions, attention
exactness     errors beside eager's, against float64
families      the families of ops whose numerics are checked
numerics      families of ops, and steps of small models
own_kernels   what ran; our own kernels alone, by configuration
work          one work of a row, checked and timed
"""
