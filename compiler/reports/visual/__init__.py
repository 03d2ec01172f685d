"""Drawings of programs: pages and pictures that are one file and need no network.

dataflow  a function as a graph to draw: its ops, what flows between them, and their modules
dot       a function as text for Graphviz: `gflow-opt --emit=dot model.mlir | dot -Tsvg`
graph     a function as a page of collapsible modules: `gflow-opt --view-graph FILE.html`; graph_tree.js has its
          modules, graph_layout.js places them in the browser, as that depends on what is open
picture   a function as one layered drawing: `gflow-opt --view-graph FILE.svg`
layered   a layered drawing of a directed graph, after Sugiyama: layers, order within them, coordinates
memory    the arena over time as a page: `gflow-opt --view-memory FILE.html`
timeline  what happens over time as a page: `gflow-opt --view-timeline FILE.html`, `graph.profile(…).html(path)`
page      what all pages share: the frame, the style, the keys, and moving around in a drawing
"""
