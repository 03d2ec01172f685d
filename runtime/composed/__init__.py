"""Executables that run several programs in order.

frozen         runs a program with frozen parameters: a prologue computes values that depend only on them, once
micro_batches  runs a training step in several micro-batches
pipeline       runs a training step in pipeline stages: the actions of this rank, and messages between ranks
"""
