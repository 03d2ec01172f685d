// RUN: %gflow-opt %s --gflow-assign-layout --cse | FileCheck %s

// An op that knows no layouts reads the channels-first view; what follows it is channels last again.
// CHECK-LABEL: func.func @pool(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x8x8xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 4, 1, 1, 3>} : (tensor<4x3x1x1xf32>) -> tensor<4x1x1x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<4x1x1x3xf32>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.transpose"(%[[v2]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x8x8x4xf32>) -> tensor<2x4x8x8xf32>
// CHECK-NEXT:   %[[v4:.+]]:2 = "gflow.aten"(%[[v3]]) {args = "{{\[\[}}{\22t\22: 0}, [2, 2]], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.max_pool2d_with_indices.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x8xf32>) -> (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>)
// CHECK-NEXT:   %[[v5:.+]] = "gflow.transpose"(%[[v4]]#0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.tanh"(%[[v5]]) : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v6]]) {dims = array<i64: 1, 2>, kind = "sum"} : (tensor<2x4x4x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v7]] : tensor<2x4xf32>
func.func @pool(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x1x1xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8x8xf32>, tensor<4x3x1x1xf32>) -> tensor<2x4x8x8xf32>
  %1:2 = "gflow.aten"(%0) {args = "[[{\22t\22: 0}, [2, 2]], {}]", overload = "aten.max_pool2d_with_indices.default", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x8xf32>) -> (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>)
  %2 = "gflow.tanh"(%1#0) : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 2, 3>, kind = "sum"} : (tensor<2x4x4x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
