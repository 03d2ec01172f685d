// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{recompute-normalized=true split-reductions=true}))' | FileCheck %s

// A residual and its norm after a product, as for a GPU: the sum is the product's epilogue, the norm reads it. The
// gradient reads the sum and the row's number, and computes the normalized value again.
// CHECK-LABEL: func.func @norm(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg0, %arg1, %arg2) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<64x64xf32>, %arg5: tensor<64x64xf32>, %arg6: tensor<64x64xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%arg4, %arg5) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%[[v4]], %arg6) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v5]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>) -> ()
// CHECK-NEXT:   }) {kind = "contraction", operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v1:.+]]:2 = "gflow.fused"(%[[v0]]) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<64x64xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.reduce"(%arg4) {dims = array<i64: 1>, kind = "max"} : (tensor<64x64xf32>) -> tensor<64xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.broadcast"(%[[v4]]) {dims = array<i64: 0>, shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.sub"(%arg4, %[[v5]]) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.exp"(%[[v6]]) : (tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v7]], %[[v4]]) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>, tensor<64xf32>) -> ()
// CHECK-NEXT:   }) {kind = "row", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>)
// CHECK-NEXT:   %[[v2:.+]]:2 = "gflow.fused"(%arg3, %[[v0]], %[[v1]]#0) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<64x64xf32>, %arg5: tensor<64x64xf32>, %arg6: tensor<64x64xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%arg6, %arg4) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%[[v4]], %arg5) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v4]], %[[v5]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>, tensor<64x64xf32>) -> ()
// CHECK-NEXT:   }) {kind = "contraction", operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>)
// CHECK-NEXT:   %[[v3:.+]] = "gflow.fused"(%[[v0]], %[[v2]]#0, %[[v1]]#1) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<64x64xf32>, %arg5: tensor<64x64xf32>, %arg6: tensor<64xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.broadcast"(%arg6) {dims = array<i64: 0>, shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.sub"(%arg4, %[[v4]]) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.mul"(%arg5, %[[v5]]) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v6]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v7]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64xf32>) -> ()
// CHECK-NEXT:   }) {kind = "row", operandSegmentSizes = array<i32: 2, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>) -> tensor<64xf32>
// CHECK-NEXT:   return %[[v2]]#1, %[[v3]] : tensor<64x64xf32>, tensor<64xf32>
func.func @norm(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>, %r: tensor<64x64xf32>, %v: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "gflow.add"(%0, %r) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "max"} : (tensor<64x64xf32>) -> tensor<64xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0>, shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
  %4 = "gflow.sub"(%1, %3) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %5 = "gflow.exp"(%4) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %6 = "gflow.matmul"(%5, %v) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %7 = "gflow.add"(%6, %1) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %8 = "gflow.mul"(%6, %4) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %9 = "gflow.reduce"(%8) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %7, %9 : tensor<64x64xf32>, tensor<64xf32>
}
