"""Passes that give values their memory: copies, places, scratch, and the check of the plan."""
