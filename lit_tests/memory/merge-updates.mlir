// RUN: %gflow-opt %s --gflow-merge-updates | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-merge-updates{least=4}))' | FileCheck %s --check-prefix=FEW

// The two weights go together, after the last gradient; the count that they read goes after them.
// CHECK-LABEL: func.func @step(
// CHECK-NEXT:    %[[G:.+]] = "gflow.matmul"
// CHECK-NEXT:    %[[A:.+]] = "gflow.fused"(%arg0, %arg0, %arg2)
// CHECK:         gflow.launch = 0
// CHECK:         %[[B:.+]] = "gflow.fused"(%[[G]], %arg1, %arg2)
// CHECK:         gflow.launch = 0
// CHECK:         %[[N:.+]] = "gflow.fused"(%arg2)
// CHECK:         gflow.launch = 1
// CHECK:         return %[[A]], %[[B]], %[[N]]
// FEW-LABEL:   func.func @step(
// FEW-NOT:       gflow.launch
func.func @step(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %n: tensor<f32>)
    -> (tensor<4x4xf32> {gflow.alias = 0 : i64}, tensor<4x4xf32> {gflow.alias = 1 : i64}, tensor<f32> {gflow.alias = 2 : i64}) {
  %u0 = "gflow.fused"(%w0, %w0, %n) ({
  ^bb0(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %c: tensor<f32>):
    %0 = "gflow.broadcast"(%c) {shape = array<i64: 4, 4>, dims = array<i64>} : (tensor<f32>) -> tensor<4x4xf32>
    %1 = "gflow.add"(%a, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "gflow.add"(%1, %0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    "gflow.yield"(%2) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> ()
  }) {operandSegmentSizes = array<i32: 2, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, kind = "pointwise"} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %g = "gflow.matmul"(%w1, %w1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %u1 = "gflow.fused"(%g, %w1, %n) ({
  ^bb0(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %c: tensor<f32>):
    %0 = "gflow.broadcast"(%c) {shape = array<i64: 4, 4>, dims = array<i64>} : (tensor<f32>) -> tensor<4x4xf32>
    %1 = "gflow.add"(%a, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "gflow.add"(%1, %0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    "gflow.yield"(%2) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> ()
  }) {operandSegmentSizes = array<i32: 2, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, kind = "pointwise"} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %m = "gflow.fused"(%n) ({
  ^bb0(%a: tensor<f32>):
    %0 = "gflow.add"(%a, %a) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    "gflow.yield"(%0) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, kind = "pointwise"} : (tensor<f32>) -> tensor<f32>
  return %u0, %u1, %m : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
}

// What is read later is not written now: the count stays where it is, for gflow-materialize to copy.
// CHECK-LABEL: func.func @read_later(
// CHECK-NOT:     gflow.launch
func.func @read_later(%w: tensor<f32>, %n: tensor<f32>) -> (tensor<f32> {gflow.alias = 1 : i64}, tensor<f32> {gflow.alias = 0 : i64}) {
  %m = "gflow.fused"(%n) ({
  ^bb0(%a: tensor<f32>):
    %0 = "gflow.add"(%a, %a) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    "gflow.yield"(%0) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, kind = "pointwise"} : (tensor<f32>) -> tensor<f32>
  %u = "gflow.fused"(%w, %n) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %0 = "gflow.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    "gflow.yield"(%0) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, kind = "pointwise"} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %m, %u : tensor<f32>, tensor<f32>
}
