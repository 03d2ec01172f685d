"""Names and spellings of OneFlow's graphs.

attributes     what authors assign to a graph: modules apart, names of gflow's own refused
functions      OneFlow's functions that PyTorch has no function for: `flow.cast`, `flow.gather_nd`, …
graph_methods  methods of OneFlow's graphs that gflow's have under another name
refused        names of OneFlow that gflow does not have, each with a sentence that says what to use instead
switches       switches of OneFlow's `GraphConfig`: they act, warn or refuse
views          modules as attributes of a graph: `graph.model` outside of `build()`, and containers of them
"""
