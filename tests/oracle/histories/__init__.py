"""Histories: what a user does between calls, as data, run by gflow and by eager PyTorch side by side.

session.py    a session as data: network, entry point, optimizers, actions; how it is drawn; JSON
nets.py       small networks of many kinds of modules
programs.py   what is compiled: how it reaches the network and other Python state, forms of arguments and results
world.py      one run of a session, eagerly or by gflow: what stays between its actions, and what can be seen of it
calls.py      how a call is made: arguments, contexts, threads; the eager step that a graph's call stands for
actions.py    what is done between calls: to modules and parameters
settings.py   the same: to optimizers, schedules, scalers, PyTorch's settings, results, whole networks
judge.py      what is a mismatch; a smaller session that shows it
"""
