"""Runs pipelines: from a module in the dialect to a program, with reproducers where a pass fails."""
