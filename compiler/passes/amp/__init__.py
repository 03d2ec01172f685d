"""Mixed precision: the pass, and its rules of what runs in halves and where values are rounded."""
