"""Drawings of programs: pages and pictures. Each is one file and needs no network.

dataflow  a function as a graph to draw: its ops, what flows between them, and their modules
dot       a function as text for Graphviz: `gflow-opt --emit=dot model.mlir | dot -Tsvg`
graph     a function as a page of collapsible modules: `gflow-opt --view-graph FILE.html`; graph_tree.js holds the
          module tree, graph_layout.js places boxes in the browser, since the layout depends on which modules are open
picture   a function as one layered drawing: `gflow-opt --view-graph FILE.svg`
layered   a layered drawing of a directed graph, after Sugiyama: layers, order within them, coordinates
memory    the arena over time as a page: `gflow-opt --view-memory FILE.html`
timeline  a timeline as a page: `gflow-opt --view-timeline FILE.html`, `graph.profile(…).html(path)`
page      the parts that all pages share: frame, style, keyboard, panning and zooming
"""
