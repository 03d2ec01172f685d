"""Names and spellings of OneFlow's graphs."""
