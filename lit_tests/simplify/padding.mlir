// RUN: %gflow-opt %s --gflow-simplify | FileCheck %s

// The convolution adds the zeros itself, and leaves them out of the gradient.
// CHECK-LABEL: func.func @both_sides(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convolution"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 2, 2>, stride = array<i64: 2, 1>} : (tensor<2x3x8x6xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x5x8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convolution_weight_grad"(%arg0, %arg2) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 2, 2>, shape = array<i64: 4, 3, 3, 3>, stride = array<i64: 2, 1>} : (tensor<2x3x8x6xf32>, tensor<2x4x5x8xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution_input_grad"(%arg2, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 2, 2>, shape = array<i64: 2, 3, 8, 6>, stride = array<i64: 2, 1>} : (tensor<2x4x5x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x6xf32>
// CHECK-NEXT:   return %[[v0]], %[[v1]], %[[v2]] : tensor<2x4x5x8xf32>, tensor<4x3x3x3xf32>, tensor<2x3x8x6xf32>
func.func @both_sides(%x: tensor<2x3x8x6xf32>, %w: tensor<4x3x3x3xf32>, %dy: tensor<2x4x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<4x3x3x3xf32>, tensor<2x3x8x6xf32>) {
  %0 = "gflow.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %q = "gflow.pad"(%x, %0) {low = array<i64: 0, 0, 2, 1>, high = array<i64: 0, 0, 2, 1>} : (tensor<2x3x8x6xf32>, tensor<f32>) -> tensor<2x3x12x8xf32>
  %z = "gflow.convolution"(%q, %w) {stride = array<i64: 2, 1>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x12x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x5x8xf32>
  %dw = "gflow.convolution_weight_grad"(%q, %dy) {stride = array<i64: 2, 1>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", shape = array<i64: 4, 3, 3, 3>} : (tensor<2x3x12x8xf32>, tensor<2x4x5x8xf32>) -> tensor<4x3x3x3xf32>
  %dq = "gflow.convolution_input_grad"(%dy, %w) {stride = array<i64: 2, 1>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", shape = array<i64: 2, 3, 12, 8>} : (tensor<2x4x5x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x12x8xf32>
  %dx = "gflow.slice"(%dq) {starts = array<i64: 0, 0, 2, 1>, limits = array<i64: 2, 3, 10, 7>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x3x12x8xf32>) -> tensor<2x3x8x6xf32>
  return %z, %dw, %dx : tensor<2x4x5x8xf32>, tensor<4x3x3x3xf32>, tensor<2x3x8x6xf32>
}

// One side only, another value, or channels: no padding of a convolution.
// CHECK-LABEL: func.func @others(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<f32>} : () -> tensor<f32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.pad"(%arg0, %[[v0]]) {high = array<i64: 0, 0, 1, 0>, low = array<i64: 0, 0, 0, 0>} : (tensor<2x3x8x6xf32>, tensor<f32>) -> tensor<2x3x9x6xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convolution"(%[[v2]], %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x3x9x6xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x7x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.pad"(%arg0, %[[v1]]) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<2x3x8x6xf32>, tensor<f32>) -> tensor<2x3x10x8xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convolution"(%[[v4]], %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x3x10x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x6xf32>
// CHECK-NEXT:   return %[[v3]], %[[v5]] : tensor<2x4x7x4xf32>, tensor<2x4x8x6xf32>
func.func @others(%x: tensor<2x3x8x6xf32>, %w: tensor<4x3x3x3xf32>) -> (tensor<2x4x7x4xf32>, tensor<2x4x8x6xf32>) {
  %0 = "gflow.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "gflow.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %p = "gflow.pad"(%x, %0) {low = array<i64: 0, 0, 0, 0>, high = array<i64: 0, 0, 1, 0>} : (tensor<2x3x8x6xf32>, tensor<f32>) -> tensor<2x3x9x6xf32>
  %y = "gflow.convolution"(%p, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x9x6xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x7x4xf32>
  %q = "gflow.pad"(%x, %1) {low = array<i64: 0, 0, 1, 1>, high = array<i64: 0, 0, 1, 1>} : (tensor<2x3x8x6xf32>, tensor<f32>) -> tensor<2x3x10x8xf32>
  %z = "gflow.convolution"(%q, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x10x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x6xf32>
  return %y, %z : tensor<2x4x7x4xf32>, tensor<2x4x8x6xf32>
}
