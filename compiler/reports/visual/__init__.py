"""Drawings of programs: pages and pictures that are one file and need no network.

dataflow  a function as a graph to draw: its ops, what flows between them, and their modules
dot       a function as text for Graphviz: `gflow-opt --emit=dot model.mlir | dot -Tsvg`
graph     a function as a layered drawing: `gflow-opt --view-graph FILE.html` or `FILE.svg`
layered   a layered drawing of a directed graph, after Sugiyama: layers, order within them, coordinates
memory    the arena over time as a page: `gflow-opt --view-memory FILE.html`
timeline  what ranks do over time as a page: `gflow-opt --view-timeline FILE.html`
page      what all pages share: the frame, the style, and moving around in a drawing
"""
