// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// CHECK-LABEL: func.func @max(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.max_pool"(%arg0) {kernel = array<i64: 3, 3>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 1, 1>, positions = "plane", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
// CHECK-NEXT:   %[[v1:.+]] = "gflow.max_pool_grad"(%arg1, %[[v0]]#1) {kernel = array<i64: 3, 3>, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 2, 8, 8, 3>, stride = array<i64: 2, 2>} : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   return %[[v0]]#0, %[[v1]] : tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>
func.func @max(%x: tensor<2x8x8x3xf32>, %dy: tensor<2x4x4x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>) {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
  %dx = "gflow.max_pool_grad"(%dy, %y#1) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", shape = array<i64: 2, 8, 8, 3>} : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>) -> tensor<2x8x8x3xf32>
  return %y#0, %dx : tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>
}

// Without positions; the last window begins in the input, whatever `ceil_mode` allows.
// CHECK-LABEL: func.func @ceil(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.max_pool"(%arg0) {ceil_mode = true, dilation = array<i64: 2>, kernel = array<i64: 2>, layout = "NC*", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 0>, positions = "none", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, stride = array<i64: 4>} : (tensor<2x3x6xf16>) -> tensor<2x3x2xf16>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3x2xf16>
func.func @ceil(%x: tensor<2x3x6xf16>) -> tensor<2x3x2xf16> {
  %y = "gflow.max_pool"(%x) {kernel = array<i64: 2>, stride = array<i64: 4>, padding = array<i64: 0>, dilation = array<i64: 2>, ceil_mode = true, layout = "NC*", positions = "none", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3x6xf16>) -> tensor<2x3x2xf16>
  return %y : tensor<2x3x2xf16>
}

// Five windows share seven rows.
// CHECK-LABEL: func.func @avg(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.avg_pool"(%arg0) {layout = "NC*", size = array<i64: 5, 2>} : (tensor<2x3x7x8xf32>) -> tensor<2x3x5x2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.avg_pool_grad"(%arg1) {count_padding = true, divisor = 7 : i64, kernel = array<i64: 3, 3>, layout = "NC*", padding = array<i64: 1, 1>, shape = array<i64: 2, 3, 7, 8>, stride = array<i64: 2, 2>} : (tensor<2x3x4x4xf32>) -> tensor<2x3x7x8xf32>
// CHECK-NEXT:   return %[[v0]], %[[v1]] : tensor<2x3x5x2xf32>, tensor<2x3x7x8xf32>
func.func @avg(%x: tensor<2x3x7x8xf32>, %dy: tensor<2x3x4x4xf32>) -> (tensor<2x3x5x2xf32>, tensor<2x3x7x8xf32>) {
  %y = "gflow.avg_pool"(%x) {size = array<i64: 5, 2>, layout = "NC*"} : (tensor<2x3x7x8xf32>) -> tensor<2x3x5x2xf32>
  %dx = "gflow.avg_pool_grad"(%dy) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, count_padding = true, divisor = 7 : i64, layout = "NC*", shape = array<i64: 2, 3, 7, 8>} : (tensor<2x3x4x4xf32>) -> tensor<2x3x7x8xf32>
  return %y, %dx : tensor<2x3x5x2xf32>, tensor<2x3x7x8xf32>
}
