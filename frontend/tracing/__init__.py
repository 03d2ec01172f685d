"""Tracing: `build()`, backward and optimizer updates as one list of functional ATen ops."""
