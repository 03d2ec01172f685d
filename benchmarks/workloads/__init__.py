"""What the benchmarks measure: models and training steps, made from fixed seeds.

cuda_steps       training steps at a GPU's full size, and their programs without one
items            the items of the main table: the same work for each peer
language_models  models of the transformers library at small but realistic sizes
memory_steps     the training steps whose memory is measured
mixed_precision  small models and training loops for loss curves under autocast
networks         the models as plain PyTorch
numerics_steps   architectures of timm, torchvision and transformers at sizes at which float64 is quick
cached_decoder   GPT-2 that decodes a token at a time: the caches are arguments, updated in place
synthetic        training graphs of any number of ops
third_party      libraries of others beside PyTorch's CPU build
"""
