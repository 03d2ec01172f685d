// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%q: tensor<2x5x4x8xf32>, %k: tensor<2x6x3x8xf32>) {
  // expected-error @+1 {{4 heads of q cannot share 3 heads of k and v evenly}}
  %0, %1 = "gflow.attention"(%q, %k, %k) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x6x3x8xf32>, tensor<2x6x3x8xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>, %k: tensor<2x6x4x8xf16>) {
  // expected-error @+1 {{q, k and v must be [batch, position, head, channel] of one element type}}
  %0, %1 = "gflow.attention"(%q, %k, %k) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf16>, tensor<2x6x4x8xf16>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>, %k: tensor<2x6x4x8xf32>, %b: tensor<2x2x5x6xf32>) {
  // expected-error @+1 {{the bias must broadcast to [2, 4, 5, 6], found tensor<2x2x5x6xf32>}}
  %0, %1 = "gflow.attention"(%q, %k, %k, %b) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 1, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x2x5x6xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>) {
  // expected-error @+1 {{dropout goes with a generator state and a stream, and they with it}}
  %0, %1 = "gflow.attention"(%q, %q, %q) {causal = true, dropout = 0.5, scale = 0.125, operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>, %l: tensor<2x4x5xf32>) {
  // expected-error @+1 {{bias_grad needs a bias of floats}}
  %0:3 = "gflow.attention_grad"(%q, %q, %q, %q, %q, %l) {bias_grad = true, causal = true, scale = 0.125, operandSegmentSizes = array<i32: 5, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x4x5xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>, %d: tensor<2x5xi64>) {
  // expected-error @+1 {{or, last, one of two documents of rank 2, found tensor<2x5xi64>}}
  %0, %1 = "gflow.attention"(%q, %q, %q, %d) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5xi64>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>, %k: tensor<2x6x4x8xf32>, %d: tensor<2x5xi64>) {
  // expected-error @+1 {{documents must be i32 or i64 of [batch, position of q] and [batch, position of k], found tensor<2x5xi64> and tensor<2x5xi64>}}
  %0, %1 = "gflow.attention"(%q, %k, %k, %d, %d) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 2, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x6x4x8xf32>, tensor<2x5xi64>, tensor<2x5xi64>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x5x4x8xf32>) {
  // expected-error @+1 {{window must be two numbers, found 1}}
  %0, %1 = "gflow.attention"(%q, %q, %q) {causal = true, scale = 0.125, window = array<i64: 3>, operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>, tensor<2x5x4x8xf32>) -> (tensor<2x5x4x8xf32>, tensor<2x4x5xf32>)
  return
}
