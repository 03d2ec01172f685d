// RUN: %gflow-opt %s --gflow-narrow-positions | FileCheck %s

// CHECK-LABEL: func.func @gradient(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.max_pool"(%arg0) {kernel = array<i64: 3, 3>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 1, 1>, positions = "window", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xui8>)
// CHECK-NEXT:   %[[v1:.+]] = "gflow.max_pool_grad"(%arg1, %[[v0]]#1) {kernel = array<i64: 3, 3>, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 2, 8, 8, 3>, stride = array<i64: 2, 2>} : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xui8>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   return %[[v0]]#0, %[[v1]] : tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>
func.func @gradient(%x: tensor<2x8x8x3xf32>, %dy: tensor<2x4x4x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>) {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
  %dx = "gflow.max_pool_grad"(%dy, %y#1) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", shape = array<i64: 2, 8, 8, 3>} : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>) -> tensor<2x8x8x3xf32>
  return %y#0, %dx : tensor<2x4x4x3xf32>, tensor<2x8x8x3xf32>
}

// Nothing reads them.
// CHECK-LABEL: func.func @none(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.max_pool"(%arg0) {kernel = array<i64: 3, 3>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 1, 1>, positions = "none", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x3xf32>) -> tensor<2x4x4x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x4x4x3xf32>
func.func @none(%x: tensor<2x8x8x3xf32>) -> tensor<2x4x4x3xf32> {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
  return %y#0 : tensor<2x4x4x3xf32>
}

// Something else does; windows that share the input have many sizes.
// CHECK-LABEL: func.func @plane(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.max_pool"(%arg0) {kernel = array<i64: 3, 3>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 1, 1>, positions = "plane", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
// CHECK-NEXT:   %[[v1:.+]]:2 = "gflow.max_pool"(%arg0) {layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, positions = "plane", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, size = array<i64: 3, 3>} : (tensor<2x8x8x3xf32>) -> (tensor<2x3x3x3xf32>, tensor<2x3x3x3xi64>)
// CHECK-NEXT:   %[[v2:.+]] = "gflow.max_pool_grad"(%arg1, %[[v1]]#1) {layout = "N*C", shape = array<i64: 2, 8, 8, 3>, size = array<i64: 3, 3>} : (tensor<2x3x3x3xf32>, tensor<2x3x3x3xi64>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   return %[[v0]]#1, %[[v2]] : tensor<2x4x4x3xi64>, tensor<2x8x8x3xf32>
func.func @plane(%x: tensor<2x8x8x3xf32>, %dy: tensor<2x3x3x3xf32>) -> (tensor<2x4x4x3xi64>, tensor<2x8x8x3xf32>) {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
  %z:2 = "gflow.max_pool"(%x) {size = array<i64: 3, 3>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x3xf32>) -> (tensor<2x3x3x3xf32>, tensor<2x3x3x3xi64>)
  %dx = "gflow.max_pool_grad"(%dy, %z#1) {size = array<i64: 3, 3>, layout = "N*C", shape = array<i64: 2, 8, 8, 3>} : (tensor<2x3x3x3xf32>, tensor<2x3x3x3xi64>) -> tensor<2x8x8x3xf32>
  return %y#1, %dx : tensor<2x4x4x3xi64>, tensor<2x8x8x3xf32>
}
