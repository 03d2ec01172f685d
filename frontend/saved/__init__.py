"""State dicts and saved graphs."""
