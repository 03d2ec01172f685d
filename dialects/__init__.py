"""The `gflow` dialect: ops as data, verifiers, builders. Imports nothing else of gflow."""
