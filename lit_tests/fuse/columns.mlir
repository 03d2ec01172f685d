// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{column-length=64}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{column-length=63 recompute-small=true}))' | FileCheck %s --check-prefix=SMALL

// Columns of 64 elements: the kernel that sums them continues over the columns. Longer ones take a kernel of their own.
// CHECK-LABEL: func.func @center(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg0) ({
// CHECK-NEXT:   ^bb0(%arg1: tensor<64x96xf32>):
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reduce"(%arg1) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%[[v1]]) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : (tensor<96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.sub"(%arg1, %[[v2]]) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v3]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x96xf32>) -> ()
// CHECK-NEXT:   }) {kind = "column", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<64x96xf32>
func.func @center(%x: tensor<64x96xf32>) -> tensor<64x96xf32> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  %1 = "gflow.broadcast"(%0) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : (tensor<96xf32>) -> tensor<64x96xf32>
  %2 = "gflow.sub"(%x, %1) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  return %2 : tensor<64x96xf32>
}

// SMALL-LABEL: func.func @center(
// SMALL:         "gflow.reduce"
// SMALL:         kind = "column"
// SMALL:         kind = "pointwise"
// The mean of two rows is recomputed in the kernel that sums what differs from it: both rows are small next to the sum.
// CHECK-LABEL: func.func @around(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 1, 96>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 33, 96>, starts = array<i64: 32, 0>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.fused"(%[[v0]], %[[v1]]) ({
// CHECK-NEXT:   ^bb0(%arg1: tensor<1x96xf32>, %arg2: tensor<1x96xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%arg1, %arg2) : (tensor<1x96xf32>, tensor<1x96xf32>) -> tensor<1x96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v4]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x96xf32>) -> ()
// CHECK-NEXT:   }) {kind = "pointwise", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x96xf32>, tensor<1x96xf32>) -> tensor<1x96xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.fused"(%[[v2]], %arg0) ({
// CHECK-NEXT:   ^bb0(%arg1: tensor<1x96xf32>, %arg2: tensor<64x96xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 96>} : (tensor<1x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.broadcast"(%[[v4]]) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : (tensor<96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.sub"(%arg2, %[[v5]]) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v6]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v7]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<96xf32>) -> ()
// CHECK-NEXT:   }) {kind = "column", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x96xf32>, tensor<64x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   return %[[v3]] : tensor<96xf32>
// SMALL-LABEL: func.func @around(
// SMALL:         "gflow.fused"(
// SMALL:           "gflow.add"
// SMALL:           "gflow.reduce"
// SMALL-NOT:     "gflow.fused"
func.func @around(%x: tensor<64x96xf32>) -> tensor<96xf32> {
  %0 = "gflow.slice"(%x) {limits = array<i64: 1, 96>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
  %1 = "gflow.slice"(%x) {limits = array<i64: 33, 96>, starts = array<i64: 32, 0>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<1x96xf32>, tensor<1x96xf32>) -> tensor<1x96xf32>
  %3 = "gflow.reshape"(%2) {shape = array<i64: 96>} : (tensor<1x96xf32>) -> tensor<96xf32>
  %4 = "gflow.broadcast"(%3) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : (tensor<96xf32>) -> tensor<64x96xf32>
  %5 = "gflow.sub"(%x, %4) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  return %6 : tensor<96xf32>
}
