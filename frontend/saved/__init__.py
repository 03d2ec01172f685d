"""State dicts and saved graphs.

engine_files  `gflow.save(graph, path, format="onnx")`: a step as a file that other engines' tools load
export        `gflow.save(graph, path)`: a graph's programs and state as a directory that runs without its code
regenerate    generates the code of programs from their IR, for `gflow.load(..., native=False)`
run           `gflow-run DIR --input x.npy --output y.npy`: run a saved graph on numpy files
runtime_state  `graph.runtime_state_dict()`: a compiled graph as a dict of bytes instead of a directory
saving        `gflow.save` and `gflow.load`: checkpoints and compiled graphs, without pickle
schedules     learning rate schedules of a graph's optimizers
state_dict    `graph.state_dict()`: the state from which a training run resumes
"""
