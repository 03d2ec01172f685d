"""Learning rate schedulers: those of OneFlow that PyTorch lacks, and all of them as data in artifacts.

data                PyTorch's learning rate schedulers as data: by class name and state, without pickle
lr_scheduler        OneFlow's learning rate schedulers that PyTorch lacks, as schedulers of PyTorch
stepped_schedulers  PyTorch's learning rate schedulers with OneFlow's additional arguments
"""
