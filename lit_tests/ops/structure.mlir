// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// Every op reads back as it was printed.

// CHECK-LABEL: func.func @fused(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg0, %arg1) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<4xf32>, %arg3: tensor<4xf32>):
// CHECK-NEXT:   %[[v1:.+]] = "gflow.add"(%arg2, %arg3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.tanh"(%[[v1]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v2]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> ()
// CHECK-NEXT:   }) {kind = "pointwise", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @fused(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.fused"(%arg0, %arg1) ({
  ^bb0(%arg2: tensor<4xf32>, %arg3: tensor<4xf32>):
    %1 = "gflow.add"(%arg2, %arg3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "gflow.tanh"(%1) : (tensor<4xf32>) -> tensor<4xf32>
    "gflow.yield"(%2) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> ()
  }) {kind = "pointwise", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @aten(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.aten"(%arg0) {args = "{{\[\[}}{\22t\22: 0}, 2], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.topk.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v0]]#1 : tensor<4x2xf32>, tensor<4x2xi64>
func.func @aten(%arg0: tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>) {
  %0:2 = "gflow.aten"(%arg0) {args = "[[{\22t\22: 0}, 2], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.topk.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  return %0#0, %0#1 : tensor<4x2xf32>, tensor<4x2xi64>
}

// CHECK-LABEL: func.func @check(
// CHECK-NEXT:   "gflow.check"(%arg0, %arg1) {error = "IndexError", message = "index {} is out of bounds for a dimension of size 3"} : (tensor<i1>, tensor<i64>) -> ()
// CHECK-NEXT:   "gflow.check"(%arg0) {error = "RuntimeError", message = "no"} : (tensor<i1>) -> ()
func.func @check(%arg0: tensor<i1>, %arg1: tensor<i64>) {
  "gflow.check"(%arg0, %arg1) {error = "IndexError", message = "index {} is out of bounds for a dimension of size 3"} : (tensor<i1>, tensor<i64>) -> ()
  "gflow.check"(%arg0) {error = "RuntimeError", message = "no"} : (tensor<i1>) -> ()
  return
}
