// RUN: %gflow-opt %s --emit=timeline --target=cuda:90 --mesh=dp=1024 | FileCheck %s --check-prefix=MANY
// RUN: not %gflow-opt %s --emit=timeline --target=cuda:90 --mesh=pp=4 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: %gflow-opt %s --emit=timeline --target=cuda:90 | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-split-collectives))' --emit=timeline --target=cuda:90 | FileCheck %s --check-prefix=SPLIT
// RUN: not %gflow-opt %s --emit=timeline --network=token-ring 2>&1 | FileCheck %s --check-prefix=NETWORK

// 64 MiB over the links of a node take 2 * 7/8 * 64 MiB / 370 GB/s and some latency; the product needs 2 * 4096^3
// operations. One after the other, or at once.
// CHECK:      @step on 8 ranks (dp=8) of h100, network h100
// CHECK:      step {{.*}} µs
// CHECK:      waiting for collectives 373.4 µs
// CHECK:      collectives between nodes 0.0 µs
// CHECK:      bytes sent by a rank 112.0 MiB
// CHECK:      of these covered by work 0.0 %
// CHECK:      all_reduce over dp 1 112.0 MiB 373.4 µs 373.4 µs
// SPLIT:      of these covered by work 47.1 %
// MANY:       @step on 1024 ranks (dp=1024) of h100, network h100
// MANY:       collectives within a node 0.0 µs
// MANY:       bytes sent by a rank 127.9 MiB
// NONE:       the module's mesh has no axis 'pp' (it has: dp)
// NETWORK:    no network 'token-ring' (known: h100, a100, gloo)
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 8>}} {
func.func @step(%g: tensor<4096x4096xf32>, %y: tensor<4096x4096xbf16>) -> (tensor<4096x4096xf32>, tensor<4096x4096xbf16>) {
  %0, %t = "gflow.collective"(%g) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 8 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4096x4096xf32>) -> (tensor<4096x4096xf32>, tensor<i8>)
  %m = "gflow.matmul"(%y, %y) : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
  return %0, %m : tensor<4096x4096xf32>, tensor<4096x4096xbf16>
}
}
