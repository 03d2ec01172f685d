"""How each ATen op is lowered; a file for each family."""
