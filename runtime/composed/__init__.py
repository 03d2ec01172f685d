"""Training steps that are several programs, run in order.

micro_batches  runs a training step in several micro-batches
pipeline       runs a training step in pipeline stages: this rank's actions, with messages to and from others
"""
