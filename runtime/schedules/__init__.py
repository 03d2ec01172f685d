"""Learning rate schedulers: those that OneFlow has and PyTorch has not, and all of them as data in artifacts.

data                PyTorch's learning rate schedulers as data: by their class's name and state, without pickle
lr_scheduler        OneFlow's learning rate schedulers that PyTorch does not have, as schedulers of PyTorch
stepped_schedulers  PyTorch's learning rate schedulers with the arguments that OneFlow's have besides
"""
