"""What may differ from call to call of one program: sizes and numbers; and calls that are split along a size.

automatic          dimensions that become dynamic by themselves, once a second size of them has come
automatic_numbers  Python numbers among a call's arguments that become inputs, once a second value of them has come
dynamic_dim        `gflow.dynamic_dim(x, 0, min=1, max=64)`: dimensions whose size may differ from call to call
micro_batches      gradient accumulation: one call of a training graph in several micro-batches
"""
