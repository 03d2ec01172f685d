"""Programs for CUDA devices: kernels as machine code, launched through the driver.

Needs PyTorch and the driver; neither Triton nor MLIR.

    binding             makes arguments accessible to kernels
    capture             a call as one CUDA graph
    device              the interface of devices that launch kernels
    driver              the functions of the CUDA driver that launches need, through ctypes
    fake                a device that runs nothing and checks every step
    gpu                 a GPU, through the CUDA driver and PyTorch
    graph               a CUDA graph whose launches can get other arguments
    interpreter         a device without hardware: kernels run as Python on CPU tensors, by Triton's interpreter
    interpreter_repair  additions to Triton's interpreter, and corrections
    launcher            the base of devices that launch kernels: how they load programs
    launches            the launches of a program: their arguments, as the driver takes them
    ownership           which program of a launch reads and writes which address, for the interpreter
    recording           the base of devices without hardware: records steps for graphs, and replays them
    timing              measures single steps of a program on a device
"""
