// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-select-kernels{target=cuda:90}))' | FileCheck %s --check-prefix=SM90
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-select-kernels{target=cuda:80}))' | FileCheck %s --check-prefix=SM80
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-select-kernels{target=cpu threads=2 isa=none}))' | FileCheck %s --check-prefix=CPU

// What is chosen stands in the IR: tiles, split-K, copies of operands and the way they are loaded, scratch.
// SM90:  attributes {gflow.target = "cuda:90"}
// SM90:  "gflow.matmul"{{.*}} {gflow.kernel = {kind = "product", scratch = 7864320 : i64, split_k = 24 : i64, stages = 4 : i64, then = [{block = array<i64: 4, 128>, stages = 2 : i64, warps = 4 : i64}], tile = array<i64: 128, 64, 64>, warps = 4 : i64}}
// SM90:  "gflow.matmul"{{.*}} {gflow.kernel = {copies = ["a"], kind = "product", loads = "descriptors", parts = 3 : i64, persistent = 132 : i64, scratch = 823525376 : i64, stages = 3 : i64, then = [{block = array<i64: 2048>, warps = 4 : i64}], tile = array<i64: 256, 192, 64>, warps = 8 : i64}}
// SM90:  {gflow.kernel = {block = array<i64: 64, 32>, kind = "region", pieces = 512 : i64, scratch = 131072 : i64, stages = 3 : i64, then = [{block = array<i64: 128, 32>, stages = 3 : i64, warps = 8 : i64}], warps = 4 : i64}, kind = "column"
// SM80:  attributes {gflow.target = "cuda:80"}
// SM80:  "gflow.matmul"{{.*}} {gflow.kernel = {kind = "product", scratch = 5242880 : i64, split_k = 16 : i64, stages = 4 : i64, then = [{block = array<i64: 4, 128>, stages = 2 : i64, warps = 4 : i64}], tile = array<i64: 64, 64, 64>, warps = 4 : i64}}
// SM80:  "gflow.matmul"{{.*}} {gflow.kernel = {kind = "product", scratch = 100663296 : i64, split_k = 4 : i64, stages = 2 : i64, then = [{block = array<i64: 4, 128>, stages = 2 : i64, warps = 4 : i64}], tile = array<i64: 128, 64, 32>, warps = 8 : i64}}
// SM80:  {gflow.kernel = {block = array<i64: 64, 32>, kind = "region", pieces = 432 : i64, scratch = 65536 : i64, stages = 3 : i64, then = [{block = array<i64: 128, 32>, stages = 3 : i64, warps = 8 : i64}], warps = 4 : i64}, kind = "column"
// CPU:   attributes {gflow.target = "cpu"}
// CPU:   "gflow.matmul"{{.*}} {gflow.kernel = {kind = "blas", rows = 128 : i64, scratch = 117604352 : i64, then = [{{.*}}], widened = array<i64: 0, 1, 2>}}
// CPU:   {gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>, scratch = 1024 : i64, share = "inner", threads = "all", unroll = 4 : i64}, kind = "column"
func.func @f(%x: tensor<256x65536xbf16>, %w: tensor<65536x320xbf16>, %big: tensor<8192x50257xbf16>, %v: tensor<50257x768xbf16>, %s: tensor<65536x64xf32>) -> (tensor<256x320xbf16>, tensor<8192x768xbf16>, tensor<64xf32>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<256x65536xbf16>, tensor<65536x320xbf16>) -> tensor<256x320xbf16>
  %1 = "gflow.matmul"(%big, %v) : (tensor<8192x50257xbf16>, tensor<50257x768xbf16>) -> tensor<8192x768xbf16>
  %2 = "gflow.reduce"(%s) {kind = "sum", dims = array<i64: 0>} : (tensor<65536x64xf32>) -> tensor<64xf32>
  return %0, %1, %2 : tensor<256x320xbf16>, tensor<8192x768xbf16>, tensor<64xf32>
}
