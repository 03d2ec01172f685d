// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// Every op reads back as it was printed; a bias and a generator state are optional.

// CHECK-LABEL: func.func @attention(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.attention"(%arg0, %arg1, %arg2) {causal = true, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x5x4x8xbf16>, tensor<2x6x2x8xbf16>, tensor<2x6x2x8xbf16>) -> (tensor<2x5x4x8xbf16>, tensor<2x4x5xf32>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v0]]#1 : tensor<2x5x4x8xbf16>, tensor<2x4x5xf32>
func.func @attention(%q: tensor<2x5x4x8xbf16>, %k: tensor<2x6x2x8xbf16>, %v: tensor<2x6x2x8xbf16>) -> (tensor<2x5x4x8xbf16>, tensor<2x4x5xf32>) {
  %0, %1 = "gflow.attention"(%q, %k, %v) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xbf16>, tensor<2x6x2x8xbf16>, tensor<2x6x2x8xbf16>) -> (tensor<2x5x4x8xbf16>, tensor<2x4x5xf32>)
  return %0, %1 : tensor<2x5x4x8xbf16>, tensor<2x4x5xf32>
}

// CHECK-LABEL: func.func @dropout(
// CHECK-NEXT:   %[[v0:.+]]:2 = "gflow.attention"(%arg0, %arg1, %arg2, %arg3, %arg4) {causal = false, dropout = 2.500000e-01 : f64, operandSegmentSizes = array<i32: 1, 2, 1, 1, 0, 0, 0, 0>, scale = 1.250000e-01 : f64, stream = 3 : i64} : (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x1x5x6xf32>, tensor<2xi64>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v0]]#1 : tensor<2x5x4x8xf32>, tensor<2x4x5xf32>
func.func @dropout(%q: tensor<2x5x4x8xf32>, %k: tensor<2x6x4x8xf32>, %v: tensor<2x6x4x8xf32>, %bias: tensor<1x1x5x6xf32>, %rng: tensor<2xi64>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>) {
  %0, %1 = "gflow.attention"(%q, %k, %v, %bias, %rng) {causal = false, dropout = 0.25, scale = 0.125, stream = 3 : i64, operandSegmentSizes = array<i32: 1, 2, 1, 1, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x1x5x6xf32>, tensor<2xi64>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return %0, %1 : tensor<2x5x4x8xf32>, tensor<2x4x5xf32>
}

// CHECK-LABEL: func.func @grad(
// CHECK-NEXT:   %[[v0:.+]]:4 = "gflow.attention_grad"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6) {bias_grad = true, causal = false, operandSegmentSizes = array<i32: 2, 2, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 1, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x4x5xf32>, tensor<1x4x5x6xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x4x5x6xf32>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v0]]#1, %[[v0]]#2, %[[v0]]#3 : tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x4x5x6xf32>
func.func @grad(%dy: tensor<2x5x4x8xf32>, %q: tensor<2x5x4x8xf32>, %k: tensor<2x6x4x8xf32>, %v: tensor<2x6x4x8xf32>, %y: tensor<2x5x4x8xf32>, %l: tensor<2x4x5xf32>, %bias: tensor<1x4x5x6xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x4x5x6xf32>) {
  %0:4 = "gflow.attention_grad"(%dy, %q, %k, %v, %y, %l, %bias) {bias_grad = true, causal = false, scale = 0.125, operandSegmentSizes = array<i32: 2, 2, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 1, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x4x5xf32>, tensor<1x4x5x6xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x4x5x6xf32>)
  return %0#0, %0#1, %0#2, %0#3 : tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<1x4x5x6xf32>
}
