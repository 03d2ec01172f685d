// RUN: %gflow-opt %s --pipeline-for=cuda --emit=triton --split-input-file --verify-diagnostics

// Calls that PyTorch does not have are refused, and dimensions that there are none of.

func.func @no_json(%x: tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>) {
  // expected-error@+1 {{'args' is not JSON}}
  %0:2 = "gflow.aten"(%x) {args = "[[{\22t\22: 0}, w], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.topk.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  return %0#0, %0#1 : tensor<4x2xf32>, tensor<4x2xi64>
}

// -----
func.func @no_dimension(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@+1 {{dim 0 is out of range for rank 0}}
  %0 = "gflow.reverse"(%x) {dims = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----
func.func @location(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{must be an array of names, found loc("x")}}
  %0 = "gflow.exp"(%x) {gflow.scope = loc("x")} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
func.func @no_elements() -> tensor<4xf32> {
  // expected-error@+1 {{the elements of the constant 'blob' are not in the text}}
  %0 = "gflow.constant"() {value = dense_resource<blob> : tensor<4xf32>} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
