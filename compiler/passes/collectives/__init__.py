"""Collectives of one rank's program: in one form, few large ones, and work beside them.

bucket_collectives     make few large collectives of many small ones, so that each message is worth its latency
normalize_collectives  bring collectives into the one form that runs: along the first dimension, in one order
overlap_collectives    let ranks compute while collectives move data
split_collectives      take each collective apart into its start and its wait
streams                an order of ops for two streams: a device computes, and links move data meanwhile
"""
