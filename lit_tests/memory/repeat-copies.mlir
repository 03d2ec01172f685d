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

// All that reads the copy comes after the peak: it is moved there, and nothing is left where it was.
// CHECK-LABEL: func.func @moved(
// CHECK:         "gflow.matmul"
// CHECK-NEXT:    "gflow.matmul"
// CHECK-NEXT:    "gflow.matmul"
// CHECK-NEXT:    %[[C:.+]] = "gflow.fused"(%arg1)
// CHECK:         %[[V:.+]] = "gflow.transpose"(%[[C]])
// CHECK-NEXT:    "gflow.matmul"({{.*}}, %[[V]])
// CHECK-NEXT:    return
func.func @moved(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %c = "gflow.fused"(%w) ({
  ^bb0(%i: tensor<8x8xf32>):
    "gflow.yield"(%i) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = "gflow.transpose"(%c) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %0 = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.matmul"(%2, %t) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3, %w : tensor<8x8xf32>, tensor<8x8xf32>
}

// A value of 4 bytes beside one of 1 MiB: repeating it would cost a launch, and free nothing.
// CHECK-LABEL: func.func @small(
// CHECK-NEXT:    %[[C:.+]] = "gflow.fused"(%arg1)
// CHECK-NOT:     "gflow.fused"
func.func @small(%x: tensor<512x512xf32>, %w: tensor<1x1xf32>) -> (tensor<512x512xf32>, tensor<512x1xf32>) {
  %c = "gflow.fused"(%w) ({
  ^bb0(%i: tensor<1x1xf32>):
    "gflow.yield"(%i) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1xf32>) -> ()
  }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1xf32>) -> tensor<1x1xf32>
  %0 = "gflow.matmul"(%x, %x) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = "gflow.matmul"(%0, %x) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %2 = "gflow.matmul"(%1, %x) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %s = "gflow.slice"(%2) {starts = array<i64: 0, 0>, limits = array<i64: 512, 1>, strides = array<i64: 1, 1>} : (tensor<512x512xf32>) -> tensor<512x1xf32>
  %3 = "gflow.matmul"(%s, %c) : (tensor<512x1xf32>, tensor<1x1xf32>) -> tensor<512x1xf32>
  return %2, %3 : tensor<512x512xf32>, tensor<512x1xf32>
}
