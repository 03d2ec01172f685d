// RUN: %gflow-opt %s --gflow-repeat-copies | FileCheck %s

// %a is read at the end in any case, so its copy is made again rather than kept over the peak.
// CHECK-LABEL: func.func @copy(
// CHECK:         %[[A:.+]] = "gflow.matmul"(%arg0, %arg0)
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[A]]) ({
// CHECK:         %[[V:.+]] = "gflow.transpose"(%[[C]])
// CHECK:         "gflow.matmul"(%[[V]], %arg0)
// CHECK:         "gflow.matmul"
// CHECK:         %[[D:.+]] = "gflow.fused"(%[[A]]) ({
// CHECK:         %[[W:.+]] = "gflow.transpose"(%[[D]])
// CHECK:         "gflow.matmul"({{.*}}, %[[W]])
func.func @copy(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %a = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %c = "gflow.fused"(%a) ({
  ^bb0(%i: tensor<8x8xf32>):
    "gflow.yield"(%i) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = "gflow.transpose"(%c) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %0 = "gflow.matmul"(%t, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %t) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.matmul"(%2, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}

// Here %a would have to live longer, so its copy is kept.
// CHECK-LABEL: func.func @source_dies(
// CHECK-COUNT-1: "gflow.fused"
// CHECK-NOT:     "gflow.fused"
func.func @source_dies(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %c = "gflow.fused"(%a) ({
  ^bb0(%i: tensor<8x8xf32>):
    "gflow.yield"(%i) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %0 = "gflow.matmul"(%c, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %c) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
