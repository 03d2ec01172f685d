"""What a traced program consists of besides its ops: modules, shared memory, collectives, seeds.

aliases        tensors that share memory when a call is over: results with arguments, and what stays until the
               next one
batch_rows     micro-batches of global tensors: how the rows of inputs and results lie
collectives    collectives in `build()`: what of `torch.distributed` a graph holds, and what it refuses
data_parallel  data-parallel modules in `build()`: what `DistributedDataParallel` does by hooks, as ops of the graph
graph_blocks   what OneFlow's `GraphModule` and `GraphTensor` say of themselves: names in a graph, and kind
interpreter    run a trace op by op with PyTorch
module_config  what graphs do with one module of a model: `BlockConfig`, and how authors reach it
module_stages  which pipeline stages the modules of a graph are in, and on which ranks
modules        the modules of a graph: their dotted names, parameters and buffers
parallel_modules  hooks of `parallelize_module` in a trace
resharding     where `build()` says how ranks are to hold a value
seeding        seeds of PyTorch's generator in `build()`: they would act once, while the graph is traced, so
               they are refused
sharded_modules  modules of `fully_shard` (FSDP2) in a trace: as ZeRO stage 3
shared         different tensors in one memory, where a program updates one of them
unwrapped      what views of a graph's modules stand for
"""
