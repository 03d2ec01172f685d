"""What a traced program has besides its ops: modules, shared memory, collectives, seeds.

aliases        tensors that share memory after a call: results with arguments, and tensors that are kept for the
               next call
batch_rows     micro-batches of global tensors: the sharding of the rows of inputs and results
collectives    collectives in `build()`: which functions of `torch.distributed` a graph supports
data_parallel  data-parallel modules in `build()`: records the effect of the hooks of `DistributedDataParallel` as ops
graph_blocks   OneFlow's `GraphModule` and `GraphTensor`: the name of a module or tensor in a graph, and its type
interpreter    runs a trace op by op with PyTorch
module_config  settings of graphs for one module of a model: `BlockConfig`, and how users access them
module_stages  the pipeline stages of a graph's modules, and their ranks
modules        the modules of a graph: their dotted names, parameters and buffers
parallel_modules  hooks of `parallelize_module` in a trace
resharding     shardings that `build()` requests
seeding        seeds of PyTorch's generator in `build()`: they would take effect once, while the graph is traced, so
               they are refused
sharded_modules  modules of `fully_shard` (FSDP2) in a trace: as ZeRO stage 3
shared         different tensors in one storage, where a program updates one of them
unwrapped      the modules behind a graph's views of them
"""
