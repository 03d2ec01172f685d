// RUN: %gflow-opt %s --gflow-fold-batch-norm --gflow-simplify --cse | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fold-batch-norm{ratio=1000}))' | FileCheck %s --check-prefix=LARGE

// The weight is scaled, the rest becomes one shift.
// CHECK-LABEL: func.func @batch_norm(
// CHECK-DAG:     %[[S:.+]] = "gflow.broadcast"(%arg3) {dims = array<i64: 0>, shape = array<i64: 8, 3, 3, 3>}
// CHECK-DAG:     %[[W:.+]] = "gflow.mul"(%arg1, %[[S]])
// CHECK:         %[[Y:.+]] = "gflow.convolution"(%arg0, %[[W]])
// CHECK:         %[[B:.+]] = "gflow.broadcast"(%{{.+}}) {dims = array<i64: 1>, shape = array<i64: 4, 8, 6, 6>}
// CHECK:         %[[R:.+]] = "gflow.add"(%[[Y]], %[[B]])
// CHECK-NEXT:    return %[[R]]
// LARGE-LABEL: func.func @batch_norm(
// LARGE:         "gflow.convolution"(%arg0, %arg1)
func.func @batch_norm(%x: tensor<4x3x8x8xf32>, %w: tensor<8x3x3x3xf32>, %mean: tensor<8xf32>, %s: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<4x8x6x6xf32> {
  %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<4x3x8x8xf32>, tensor<8x3x3x3xf32>) -> tensor<4x8x6x6xf32>
  %m = "gflow.broadcast"(%mean) {dims = array<i64: 1>, shape = array<i64: 4, 8, 6, 6>} : (tensor<8xf32>) -> tensor<4x8x6x6xf32>
  %1 = "gflow.sub"(%0, %m) : (tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>) -> tensor<4x8x6x6xf32>
  %t = "gflow.broadcast"(%s) {dims = array<i64: 1>, shape = array<i64: 4, 8, 6, 6>} : (tensor<8xf32>) -> tensor<4x8x6x6xf32>
  %2 = "gflow.mul"(%1, %t) : (tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>) -> tensor<4x8x6x6xf32>
  %u = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 4, 8, 6, 6>} : (tensor<8xf32>) -> tensor<4x8x6x6xf32>
  %3 = "gflow.add"(%2, %u) : (tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>) -> tensor<4x8x6x6xf32>
  return %3 : tensor<4x8x6x6xf32>
}

// Nothing to fold: the convolution's own result is needed, too.
// CHECK-LABEL: func.func @needed(
// CHECK:         "gflow.convolution"(%arg0, %arg1)
func.func @needed(%x: tensor<4x3x8x8xf32>, %w: tensor<8x3x3x3xf32>, %s: tensor<8xf32>) -> (tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>) {
  %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<4x3x8x8xf32>, tensor<8x3x3x3xf32>) -> tensor<4x8x6x6xf32>
  %t = "gflow.broadcast"(%s) {dims = array<i64: 1>, shape = array<i64: 4, 8, 6, 6>} : (tensor<8xf32>) -> tensor<4x8x6x6xf32>
  %1 = "gflow.mul"(%0, %t) : (tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>) -> tensor<4x8x6x6xf32>
  return %0, %1 : tensor<4x8x6x6xf32>, tensor<4x8x6x6xf32>
}

// A linear layer; the factor comes second, then first in a difference.
// CHECK-LABEL: func.func @linear(
// CHECK:         "gflow.mul"(%arg1,
// CHECK:         "gflow.matmul"(%arg0,
func.func @linear(%x: tensor<64x4xf32>, %w: tensor<4x8xf32>, %s: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<64x8xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x4xf32>, tensor<4x8xf32>) -> tensor<64x8xf32>
  %t = "gflow.broadcast"(%s) {dims = array<i64: 1>, shape = array<i64: 64, 8>} : (tensor<8xf32>) -> tensor<64x8xf32>
  %u = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 64, 8>} : (tensor<8xf32>) -> tensor<64x8xf32>
  %1 = "gflow.sub"(%u, %0) : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %2 = "gflow.div"(%1, %t) : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  return %2 : tensor<64x8xf32>
}
