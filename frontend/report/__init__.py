"""What a graph prints while it is built and when it is printed."""
