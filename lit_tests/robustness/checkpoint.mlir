// RUN: %gflow-opt %s --gflow-checkpoint --split-input-file --verify-diagnostics | FileCheck %s

// Finds of the fuzzer in gflow-checkpoint.

// The backward begins before the scope's last op: the scope stays as it is.
// CHECK-LABEL: func.func @interleaved(
// CHECK-COUNT-1: "gflow.exp"
// CHECK-NOT:     "gflow.exp"
func.func @interleaved(%x: tensor<33xf32>, %dy: tensor<33xf32>) -> (tensor<33xf32>, tensor<33xf32>) {
  %u = "gflow.aten"(%x) {overload = "aten.poisson.default", args = "[[{\"t\": 0}], {}]", unique = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, gflow.scope = ["p#0"]} : (tensor<33xf32>) -> tensor<33xf32>
  %e = "gflow.exp"(%u) {gflow.scope = ["p#0"]} : (tensor<33xf32>) -> tensor<33xf32>
  %g = "gflow.mul"(%dy, %e) {gflow.phase = "backward"} : (tensor<33xf32>, tensor<33xf32>) -> tensor<33xf32>
  %y = "gflow.mul"(%x, %e) {gflow.scope = ["p#0"]} : (tensor<33xf32>, tensor<33xf32>) -> tensor<33xf32>
  return %y, %g : tensor<33xf32>, tensor<33xf32>
}

// -----
func.func @scope_of_numbers(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{'gflow.scope' must be an array of names, found array<i64: 0, 1>}}
  %0 = "gflow.exp"(%x) {gflow.scope = array<i64: 0, 1>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
