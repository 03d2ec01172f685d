"""A trace as plain data: ops, values, numbers, places, sizes."""
