"""Sizes and numbers that may differ from call to call of one program; and calls that are split along a size.

automatic          dimensions that become dynamic automatically, after a second size was seen
automatic_numbers  Python numbers among a call's arguments that become inputs, after a second value was seen
dynamic_dim        `gflow.dynamic_dim(x, 0, min=1, max=64)`: dimensions whose size may differ from call to call
micro_batches      gradient accumulation: one call of a training graph in several micro-batches
"""
