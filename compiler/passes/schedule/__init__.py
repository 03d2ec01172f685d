"""The parts of gflow-schedule: what must come before what, and orders for one aim each."""
