"""Single kernels, beside other libraries and by their machine code.

attention       attention in float32: our own kernel, ATen's, and one written out
cubins          kernels of training steps as machine code, without a GPU
linalg          kernels through upstream's linalg and transform dialects beside our own
linalg_kernels  regions as `linalg.generic` ops with schedules of the transform dialect
loops           main loops of kernels by a model of machine code, beside what was written down
machine_code    what machine code says about how a kernel moves memory
products        products of matrices: own, MKL, oneDNN, and the peak
"""
