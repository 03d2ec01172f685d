"""OneFlow's names, for programs written for OneFlow's graphs.

attributes     attributes of a graph: modules are stored separately, and names that gflow defines are refused
functions      OneFlow's functions without an equivalent in PyTorch: `flow.cast`, `flow.gather_nd`, …
graph_methods  methods of OneFlow's graphs that have another name in gflow
refused        names of OneFlow that gflow lacks, each with a sentence that says what to use instead
switches       switches of OneFlow's `GraphConfig`: each is applied, warned about or refused
views          modules as attributes of a graph: `graph.model` outside of `build()`, and containers of them
"""
