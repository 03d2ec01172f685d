"""Calls that are several programs, run in order.

frozen         runs a program whose parameters are frozen: a prologue computes once what follows from them alone
micro_batches  runs a training step in several micro-batches
pipeline       runs a training step in pipeline stages: this rank's actions, with messages to and from others
"""
