// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize --gflow-plan-memory | FileCheck %s
// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize --gflow-plan-memory | %gflow-opt | FileCheck %s

// Temporaries lie in the arena, results in the results' buffers; the arena is as small as can be.
// CHECK-LABEL: func.func @two_kernels(
// CHECK-SAME:    attributes {gflow.arena_size = [[SIZE:[0-9]+]] : i64, gflow.lower_bound = [[SIZE]] : i64}
// CHECK:         }) {gflow.buffers = ["arena:{{[0-9]+}}"]
// CHECK:         "gflow.matmul"({{.*}}) {gflow.buffers = ["arena:{{[0-9]+}}"]}
// CHECK:         }) {gflow.buffers = ["result:0"]
func.func @two_kernels(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.add"(%0, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "gflow.matmul"(%1, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = "gflow.tanh"(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
