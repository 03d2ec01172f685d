"""Programs for CUDA devices: kernels as machine code, launched through the driver.

Needs PyTorch and the driver; neither Triton nor MLIR.

    binding             bringing arguments to where kernels can read them
    capture             a call as one CUDA graph
    device              what launches kernels, as far as tables of launches, bindings and graphs are concerned
    driver              the part of the CUDA driver that launching kernels takes, by ctypes
    fake                a device that runs nothing, and checks everything that is begun on it
    gpu                 a GPU, through the CUDA driver and PyTorch
    interpreter         a device without hardware: kernels run as Python on CPU tensors, by Triton's interpreter
    interpreter_repair  what Triton's interpreter lacks, or does wrong
    launcher            what all devices that launch kernels have in common: how they load programs
    launches            the launches of a program: their arguments, as the driver takes them
    ownership           which program of a launch reads and writes which address, for the interpreter
    recording           devices that stand in for a GPU: what was begun is noted for graphs, and begun again as it was
    timing              how long single steps of a program take on a device
"""
