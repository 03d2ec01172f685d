"""A call of a graph: its signature, the plan that it runs, and what a call changes as a whole or not at all."""
