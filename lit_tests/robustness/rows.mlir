// RUN: not %gflow-opt %s --pipeline-for=cuda --emit=triton --split-input-file 2>&1 | FileCheck %s
// CHECK-NOT: internal error

// What a kernel for sorts, top-k and scans is not written for.

// CHECK: aten.sort.default with dim = 2 of a tensor<4x8xf32>; PyTorch has no such call
func.func @dim(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xi64>) {
  %0:2 = "gflow.aten"(%x) {args = "[[{\22t\22: 0}, 2], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.sort.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xi64>)
  return %0#0, %0#1 : tensor<4x8xf32>, tensor<4x8xi64>
}

// -----
// CHECK: aten.cumsum.default with no tensor as its first argument
func.func @first(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.aten"(%x) {args = "[[0, 0], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.cumsum.default", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// CHECK: aten.topk.default gives tensor<4x3xf32>, tensor<4x3xi64>, and is said to give tensor<4x2xf32>, tensor<4x2xi64>
func.func @results(%x: tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>) {
  %0:2 = "gflow.aten"(%x) {args = "[[{\22t\22: 0}, 3], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.topk.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  return %0#0, %0#1 : tensor<4x2xf32>, tensor<4x2xi64>
}
