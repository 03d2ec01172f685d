// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize | FileCheck %s

// A reshape of a transposed value needs a copy, and so does every returned view.
// CHECK-LABEL: func.func @views(
// CHECK:         %[[T:.+]] = "gflow.transpose"(%arg0)
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[T]]) ({
// CHECK-NEXT:    ^bb0(%[[X:.+]]: tensor<16x8xf32>):
// CHECK-NEXT:      "gflow.yield"(%[[X]])
// CHECK:         %[[R:.+]] = "gflow.reshape"(%[[C]])
// CHECK:         "gflow.fused"(%[[R]])
func.func @views(%x: tensor<8x16xf32>) -> (tensor<16x8xf32>, tensor<128xf32>) {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 128>} : (tensor<16x8xf32>) -> tensor<128xf32>
  return %0, %1 : tensor<16x8xf32>, tensor<128xf32>
}
