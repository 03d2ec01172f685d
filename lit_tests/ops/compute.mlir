// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// Every op reads back as it was printed.

// CHECK-LABEL: func.func @reduce(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reduce"(%arg0) {dims = array<i64: 1>, kind = "sum"} : (tensor<2x3xf32>) -> tensor<2xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2xf32>
func.func @reduce(%arg0: tensor<2x3xf32>) -> tensor<2xf32> {
  %0 = "gflow.reduce"(%arg0) {dims = array<i64: 1>, kind = "sum"} : (tensor<2x3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CHECK-LABEL: func.func @partial_sums(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.partial_sums"(%arg0) {run = 3 : i64} : (tensor<2x4x3xf32>) -> tensor<3x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<3x3xf32>
func.func @partial_sums(%arg0: tensor<2x4x3xf32>) -> tensor<3x3xf32> {
  %0 = "gflow.partial_sums"(%arg0) {run = 3 : i64} : (tensor<2x4x3xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}

// CHECK-LABEL: func.func @softmax_runs(
// CHECK-NEXT:   %[[v0:.+]]:4 = "gflow.softmax_runs"(%arg0, %arg1) {run = 4 : i64} : (tensor<3x10xf32>, tensor<3xi64>) -> (tensor<3x10xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<3xf32>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v0]]#1 : tensor<3x10xf32>, tensor<3x3xf32>
func.func @softmax_runs(%arg0: tensor<3x10xf32>, %arg1: tensor<3xi64>) -> (tensor<3x10xf32>, tensor<3x3xf32>) {
  %0:4 = "gflow.softmax_runs"(%arg0, %arg1) {run = 4 : i64} : (tensor<3x10xf32>, tensor<3xi64>) -> (tensor<3x10xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<3xf32>)
  return %0#0, %0#1 : tensor<3x10xf32>, tensor<3x3xf32>
}

// CHECK-LABEL: func.func @scaled_matmul(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.scaled_matmul"(%arg0, %arg1, %arg2) {along = "rows", run = 2 : i64} : (tensor<3x10xbf16>, tensor<10x5xbf16>, tensor<2x10xf32>) -> tensor<3x5xbf16>
// CHECK-NEXT:   return %[[v0]] : tensor<3x5xbf16>
func.func @scaled_matmul(%arg0: tensor<3x10xbf16>, %arg1: tensor<10x5xbf16>, %arg2: tensor<2x10xf32>) -> tensor<3x5xbf16> {
  %0 = "gflow.scaled_matmul"(%arg0, %arg1, %arg2) {along = "rows", run = 2 : i64} : (tensor<3x10xbf16>, tensor<10x5xbf16>, tensor<2x10xf32>) -> tensor<3x5xbf16>
  return %0 : tensor<3x5xbf16>
}

// CHECK-LABEL: func.func @matmul(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.matmul"(%arg0, %arg1) : (tensor<8x2x3xf32>, tensor<8x3x4xf32>) -> tensor<8x2x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<8x2x4xf32>
func.func @matmul(%arg0: tensor<8x2x3xf32>, %arg1: tensor<8x3x4xf32>) -> tensor<8x2x4xf32> {
  %0 = "gflow.matmul"(%arg0, %arg1) : (tensor<8x2x3xf32>, tensor<8x3x4xf32>) -> tensor<8x2x4xf32>
  return %0 : tensor<8x2x4xf32>
}

// CHECK-LABEL: func.func @convolution(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convolution"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x4x8x8xf32>
func.func @convolution(%arg0: tensor<2x3x8x8xf32>, %arg1: tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32> {
  %0 = "gflow.convolution"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32>
  return %0 : tensor<2x4x8x8xf32>
}

// CHECK-LABEL: func.func @convolution_input_grad(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convolution_input_grad"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, shape = array<i64: 2, 3, 8, 8>, stride = array<i64: 1, 1>} : (tensor<2x4x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3x8x8xf32>
func.func @convolution_input_grad(%arg0: tensor<2x4x8x8xf32>, %arg1: tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32> {
  %0 = "gflow.convolution_input_grad"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, shape = array<i64: 2, 3, 8, 8>, stride = array<i64: 1, 1>} : (tensor<2x4x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32>
  return %0 : tensor<2x3x8x8xf32>
}

// CHECK-LABEL: func.func @convolution_weight_grad(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convolution_weight_grad"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, shape = array<i64: 4, 3, 3, 3>, stride = array<i64: 1, 1>} : (tensor<2x3x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4x3x3x3xf32>
func.func @convolution_weight_grad(%arg0: tensor<2x3x8x8xf32>, %arg1: tensor<2x4x8x8xf32>) -> tensor<4x3x3x3xf32> {
  %0 = "gflow.convolution_weight_grad"(%arg0, %arg1) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, shape = array<i64: 4, 3, 3, 3>, stride = array<i64: 1, 1>} : (tensor<2x3x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<4x3x3x3xf32>
  return %0 : tensor<4x3x3x3xf32>
}

// CHECK-LABEL: func.func @random(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.random"(%arg0) {dtype = "f32", kind = "uniform", shape = array<i64: 2, 3>, stream = 0 : i64} : (tensor<2xi64>) -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @random(%arg0: tensor<2xi64>) -> tensor<2x3xf32> {
  %0 = "gflow.random"(%arg0) {dtype = "f32", kind = "uniform", shape = array<i64: 2, 3>, stream = 0 : i64} : (tensor<2xi64>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
