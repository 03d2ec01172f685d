"""Optimizers in a trace: their step, state, schedules, hooks, loss scaling."""
