// RUN: %gflow-opt %s --gflow-assign-layout --cse | FileCheck %s

// Pooling is channels last between convolutions, its positions and its gradient too.
// CHECK-LABEL: func.func @pool(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x8x8xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 4, 1, 1, 3>} : (tensor<4x3x1x1xf32>) -> tensor<4x1x1x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<4x1x1x3xf32>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v3:.+]]:2 = "gflow.max_pool"(%[[v2]]) {kernel = array<i64: 3, 3>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 1, 1>, positions = "plane", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x4xf32>) -> (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>)
// CHECK-NEXT:   %[[v4:.+]] = "gflow.avg_pool"(%[[v3]]#0) {kernel = array<i64: 3, 3>, layout = "N*C", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reshape"(%arg2) {shape = array<i64: 4, 1, 1, 4>} : (tensor<4x4x1x1xf32>) -> tensor<4x1x1x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convolution"(%[[v4]], %[[v5]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x4x4x4xf32>, tensor<4x1x1x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.max_pool_grad"(%[[v6]], %[[v3]]#1) {kernel = array<i64: 3, 3>, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 2, 8, 8, 4>, stride = array<i64: 2, 2>} : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.transpose"(%[[v7]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x8x8x4xf32>) -> tensor<2x4x8x8xf32>
// CHECK-NEXT:   return %[[v8]] : tensor<2x4x8x8xf32>
func.func @pool(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %v: tensor<4x4x1x1xf32>) -> tensor<2x4x8x8xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8x8xf32>, tensor<4x3x1x1xf32>) -> tensor<2x4x8x8xf32>
  %1:2 = "gflow.max_pool"(%0) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "NC*", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x8xf32>) -> (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>)
  %2 = "gflow.avg_pool"(%1#0) {kernel = array<i64: 3, 3>, stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, layout = "NC*"} : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  %3 = "gflow.convolution"(%2, %v) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x4x4x4xf32>, tensor<4x4x1x1xf32>) -> tensor<2x4x4x4xf32>
  %4 = "gflow.max_pool_grad"(%3, %1#1) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "NC*", shape = array<i64: 2, 4, 8, 8>} : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi64>) -> tensor<2x4x8x8xf32>
  return %4 : tensor<2x4x8x8xf32>
}

// A call into PyTorch knows no layouts: it reads the channels-first view; what follows it is channels last again.
// CHECK-LABEL: func.func @other(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x8x8xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 4, 1, 1, 3>} : (tensor<4x3x1x1xf32>) -> tensor<4x1x1x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<4x1x1x3xf32>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.transpose"(%[[v2]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x8x8x4xf32>) -> tensor<2x4x8x8xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.aten"(%[[v3]]) {args = "{{\[\[}}{\22t\22: 0}, [4, 4], null], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.upsample_nearest2d.default", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x8xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.transpose"(%[[v4]]) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.tanh"(%[[v5]]) : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v6]]) {dims = array<i64: 1, 2>, kind = "sum"} : (tensor<2x4x4x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v7]] : tensor<2x4xf32>
func.func @other(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x1x1xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8x8xf32>, tensor<4x3x1x1xf32>) -> tensor<2x4x8x8xf32>
  %1 = "gflow.aten"(%0) {args = "[[{\22t\22: 0}, [4, 4], null], {}]", overload = "aten.upsample_nearest2d.default", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x8xf32>) -> tensor<2x4x4x4xf32>
  %2 = "gflow.tanh"(%1) : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 2, 3>, kind = "sum"} : (tensor<2x4x4x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
