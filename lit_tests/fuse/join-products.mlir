// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{split-reductions=true},gflow-join-reductions{programs=512}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{split-reductions=true},gflow-join-reductions{programs=5000}))' | FileCheck %s --check-prefix=FEW

// The gradient of a bias before an activation: the tiles of the product that makes it sum 64 rows each.

// CHECK-LABEL: func.func @product(
// CHECK: %[[p:.+]]:2 = "gflow.fused"({{.*}}) ({
// CHECK: "gflow.matmul"
// CHECK: %[[d:.+]] = "gflow.mul"
// CHECK: "gflow.partial_sums"(%[[d]]) {run = 64 : i64} : (tensor<16390x256xf32>) -> tensor<257x256xf32>
// CHECK: kind = "contraction"
// CHECK: "gflow.fused"(%arg3, %[[p]]#1) ({
// CHECK: "gflow.reduce"({{.+}}) {dims = array<i64: 0>, kind = "sum"} : (tensor<257x256xf32>) -> tensor<256xf32>
// CHECK: kind = "column"
func.func @product(%x: tensor<16390x64xf32>, %w: tensor<64x256xf32>, %h: tensor<16390x256xf32>, %v: tensor<256xf32>)
    -> (tensor<16390x256xf32>, tensor<256xf32> {gflow.alias = 3 : i64}) {
  %p = "gflow.matmul"(%x, %w) : (tensor<16390x64xf32>, tensor<64x256xf32>) -> tensor<16390x256xf32>
  %d = "gflow.mul"(%p, %h) : (tensor<16390x256xf32>, tensor<16390x256xf32>) -> tensor<16390x256xf32>
  %t = "gflow.reduce"(%d) {dims = array<i64: 0>, kind = "sum"} : (tensor<16390x256xf32>) -> tensor<256xf32>
  %u = "gflow.add"(%v, %t) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  return %d, %u : tensor<16390x256xf32>, tensor<256xf32>
}

// With fewer tiles than the device needs, the product may want split-K.
// FEW-NOT: partial_sums
