// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{dims must be strictly increasing, found [1, 0]}}
  %0 = "gflow.reduce"(%a0) {kind = "sum", dims = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{dim 2 is out of range for rank 2}}
  %0 = "gflow.reduce"(%a0) {kind = "sum", dims = array<i64: 2>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{kind any needs element type i1, found f32}}
  %0 = "gflow.reduce"(%a0) {kind = "any", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x0xf32>) {
  // expected-error @+1 {{kind max has no value over zero elements}}
  %0 = "gflow.reduce"(%a0) {kind = "max", dims = array<i64: 1>} : (tensor<2x0xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{kind argmax reduces one dimension, found [0, 1]}}
  %0 = "gflow.reduce"(%a0) {kind = "argmax", dims = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<i64>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{result #0 must be tensor<2xi64>, found tensor<2xf32>}}
  %0 = "gflow.reduce"(%a0) {kind = "argmax", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{attribute 'kind' must be one of sum, prod, max, min, any, all, argmax, argmin, found "mean"}}
  %0 = "gflow.reduce"(%a0) {kind = "mean", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>, %a1: tensor<4x5xf32>) {
  // expected-error @+1 {{the contracted dimensions differ: 3 in tensor<2x3xf32>, 4 in tensor<4x5xf32>}}
  %0 = "gflow.matmul"(%a0, %a1) : (tensor<2x3xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
  return
}

// -----

func.func @f(%a0: tensor<7x2x3xf32>, %a1: tensor<3x5xf32>) {
  // expected-error @+1 {{operands must be [..., M, K] and [..., K, N] with equal batch dimensions and types}}
  %0 = "gflow.matmul"(%a0, %a1) : (tensor<7x2x3xf32>, tensor<3x5xf32>) -> tensor<7x2x5xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>, %a1: tensor<3x5xf64>) {
  // expected-error @+1 {{operands must be [..., M, K] and [..., K, N] with equal batch dimensions and types}}
  %0 = "gflow.matmul"(%a0, %a1) : (tensor<2x3xf32>, tensor<3x5xf64>) -> tensor<2x5xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<4x2x3x3xf32>) {
  // expected-error @+1 {{3 input channels do not fit weight tensor<4x2x3x3xf32> with groups = 1}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3x8x8xf32>, tensor<4x2x3x3xf32>) -> tensor<1x4x6x6xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<4x3x3x3xf32>) {
  // expected-error @+1 {{stride must have 2 entries for tensor<1x3x8x8xf32>, found [1]}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<4x3x3x3xf32>) {
  // expected-error @+1 {{groups, stride and dilation must be at least 1 and padding at least 0}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: -1, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x4x4xf32>, %a1: tensor<4x3x9x9xf32>) {
  // expected-error @+1 {{the kernel of tensor<4x3x9x9xf32> is larger than the padded input tensor<1x3x4x4xf32>}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3x4x4xf32>, tensor<4x3x9x9xf32>) -> tensor<1x4x1x1xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<4x3x3x3xf64>) {
  // expected-error @+1 {{input and weight must agree in rank and element type}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf64>) -> tensor<1x4x6x6xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3xf32>, %a1: tensor<4x3xf32>) {
  // expected-error @+1 {{operands need at least one spatial dimension, found tensor<1x3xf32>}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<1x3xf32>, tensor<4x3xf32>) -> tensor<1x4xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<4x3x3x3xf32>) {
  // expected-error @+1 {{attribute 'layout' must be one of NC*, N*C, found "CN*"}}
  %0 = "gflow.convolution"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "CN*"} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x4x6x6xf32>, %a1: tensor<4x3x3x3xf32>) {
  // expected-error @+1 {{a convolution of tensor<1x3x9x9xf32> with tensor<4x3x3x3xf32> does not give tensor<1x4x6x6xf32>}}
  %0 = "gflow.convolution_input_grad"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", shape = array<i64: 1, 3, 9, 9>} : (tensor<1x4x6x6xf32>, tensor<4x3x3x3xf32>) -> tensor<1x3x9x9xf32>
  return
}

// -----

func.func @f(%a0: tensor<1x3x8x8xf32>, %a1: tensor<1x4x6x6xf32>) {
  // expected-error @+1 {{a convolution of tensor<1x3x8x8xf32> with tensor<4x3x5x5xf32> does not give tensor<1x4x6x6xf32>}}
  %0 = "gflow.convolution_weight_grad"(%a0, %a1) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", shape = array<i64: 4, 3, 5, 5>} : (tensor<1x3x8x8xf32>, tensor<1x4x6x6xf32>) -> tensor<4x3x5x5xf32>
  return
}

// -----

func.func @f(%a0: tensor<3xi64>) {
  // expected-error @+1 {{the generator state must be tensor<2xi64> (seed, offset), found tensor<3xi64>}}
  %0 = "gflow.random"(%a0) {kind = "uniform", stream = 0 : i64, shape = array<i64: 4>, dtype = "f32"} : (tensor<3xi64>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<2xi64>) {
  // expected-error @+1 {{kind uniform does not give element type i64}}
  %0 = "gflow.random"(%a0) {kind = "uniform", stream = 0 : i64, shape = array<i64: 4>, dtype = "i64"} : (tensor<2xi64>) -> tensor<4xi64>
  return
}

// -----
func.func @f(%a0: tensor<f32>) {
  // expected-error@+1 {{'gflow.reduce' op a tensor of rank 0 has no dimensions to reduce}}
  %0 = "gflow.reduce"(%a0) {dims = array<i64: 0>, kind = "max"} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a0: tensor<3xf32>) {
  // expected-error @+1 {{x must have rows of floats, found tensor<3xf32>}}
  %0 = "gflow.partial_sums"(%a0) {run = 2 : i64} : (tensor<3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4x3xf32>) {
  // expected-error @+1 {{run must be at least 1, found 0}}
  %0 = "gflow.partial_sums"(%a0) {run = 0 : i64} : (tensor<4x3xf32>) -> tensor<4x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4x3xf32>, %a1: tensor<3xi64>) {
  // expected-error @+1 {{there must be one index, i64 or i32, for each row of tensor<4x3xf32>, found tensor<3xi64>}}
  %0:4 = "gflow.softmax_runs"(%a0, %a1) {run = 2 : i64} : (tensor<4x3xf32>, tensor<3xi64>) -> (tensor<4x3xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<4xf32>)
  return
}

// -----

func.func @f(%a0: tensor<4x10xbf16>, %a1: tensor<10x5xbf16>, %a2: tensor<3x10xf32>) {
  // expected-error @+1 {{the scale must be tensor<3x4xf32>, found tensor<3x10xf32>}}
  %0 = "gflow.scaled_matmul"(%a0, %a1, %a2) {along = "columns", run = 4 : i64} : (tensor<4x10xbf16>, tensor<10x5xbf16>, tensor<3x10xf32>) -> tensor<4x5xbf16>
  return
}
