"""Collectives of one rank's program: normalization, bucketing, overlap with computation.

bucket_collectives     merges small collectives into buckets, so fewer messages pay the network latency
normalize_collectives  normalizes collectives: along the first dimension, in one total order
overlap_collectives    orders ops so that collectives overlap with computation
split_collectives      splits each collective into its start and its wait
streams                an order of ops for two streams: computation and communication
"""
