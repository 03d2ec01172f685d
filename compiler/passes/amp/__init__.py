"""Mixed precision: what is kept in halves."""
