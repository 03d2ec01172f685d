// RUN: %gflow-opt %s --gflow-sink-concatenations | FileCheck %s

// Halves of a row, turned: both products are of halves.
// CHECK-LABEL: func.func @rotate(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 4>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.neg"(%[[v1]]) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.slice"(%arg2) {limits = array<i64: 4, 4>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.mul"(%[[v2]], %[[v3]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.slice"(%arg2) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.mul"(%[[v0]], %[[v5]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 4>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.slice"(%arg1) {limits = array<i64: 4, 4>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.mul"(%[[v7]], %[[v8]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.add"(%[[v4]], %[[v9]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.slice"(%arg1) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v13:.+]] = "gflow.mul"(%[[v11]], %[[v12]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v14:.+]] = "gflow.add"(%[[v6]], %[[v13]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v15:.+]] = "gflow.concatenate"(%[[v10]], %[[v14]]) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   return %[[v15]] : tensor<4x8xf32>
func.func @rotate(%x: tensor<4x8xf32>, %c: tensor<4x8xf32>, %s: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "gflow.slice"(%x) {starts = array<i64: 0, 0>, limits = array<i64: 4, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %1 = "gflow.slice"(%x) {starts = array<i64: 0, 4>, limits = array<i64: 4, 8>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %2 = "gflow.neg"(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "gflow.concatenate"(%2, %0) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  %4 = "gflow.mul"(%3, %s) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = "gflow.mul"(%x, %c) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = "gflow.add"(%4, %5) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %6 : tensor<4x8xf32>
}

// What is computed for slices alone is computed for each of them; what can follow a product is not.
// CHECK-LABEL: func.func @slices(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 4>, starts = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.exp"(%[[v0]]) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.exp"(%[[v2]]) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.exp"(%[[v4]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.slice"(%[[v5]]) {limits = array<i64: 4, 8>, starts = array<i64: 0, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.concatenate"(%[[v3]], %[[v1]]) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   return %[[v7]], %[[v6]] : tensor<4x8xf32>, tensor<4x4xf32>
func.func @slices(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4x4xf32>) {
  %0 = "gflow.exp"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.slice"(%0) {starts = array<i64: 0, 0>, limits = array<i64: 4, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %2 = "gflow.slice"(%0) {starts = array<i64: 0, 4>, limits = array<i64: 4, 8>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %3 = "gflow.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %4 = "gflow.exp"(%3) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = "gflow.slice"(%4) {starts = array<i64: 0, 4>, limits = array<i64: 4, 8>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %6 = "gflow.concatenate"(%2, %1) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  return %6, %5 : tensor<4x8xf32>, tensor<4x4xf32>
}

// Parts that begin at no multiple of 16 bytes, and a concatenation that two ops read, stay.
// CHECK-LABEL: func.func @stay(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.concatenate"(%arg0, %arg0) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x6xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.exp"(%[[v0]]) : (tensor<4x6xf32>) -> tensor<4x6xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.concatenate"(%arg1, %arg1) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.exp"(%[[v2]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.sin"(%[[v2]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   return %[[v1]], %[[v3]], %[[v4]] : tensor<4x6xf32>, tensor<4x8xf32>, tensor<4x8xf32>
func.func @stay(%x: tensor<4x3xf32>, %y: tensor<4x4xf32>) -> (tensor<4x6xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "gflow.concatenate"(%x, %x) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x6xf32>
  %1 = "gflow.exp"(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = "gflow.concatenate"(%y, %y) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  %3 = "gflow.exp"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = "gflow.sin"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3, %4 : tensor<4x6xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
