// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f() {
  // expected-error @+1 {{result #0 must be tensor<3xf32>, found tensor<4xf32>}}
  %0 = "gflow.constant"() {value = dense<1.0> : tensor<3xf32>} : () -> tensor<4xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{attribute 'value' must be a dense constant, found 1.000000e+00 : f32}}
  %0 = "gflow.constant"() {value = 1.0 : f32} : () -> tensor<4xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{dim 2 is out of range for rank 2}}
  %0 = "gflow.iota"() {shape = array<i64: 2, 3>, dim = 2 : i64, dtype = "i64"} : () -> tensor<2x3xi64>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{cannot reshape tensor<4xf32> (4 elements) to [3] (3 elements)}}
  %0 = "gflow.reshape"(%a0) {shape = array<i64: 3>} : (tensor<4xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{[0, 0] is not a permutation of the 2 dimensions of tensor<2x3xf32>}}
  %0 = "gflow.transpose"(%a0) {permutation = array<i64: 0, 0>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
  return
}

// -----

func.func @f(%a0: tensor<3xf32>) {
  // expected-error @+1 {{dims must name a result dimension for each of the 1 dimensions of tensor<3xf32>, found []}}
  %0 = "gflow.broadcast"(%a0) {shape = array<i64: 2, 3>, dims = array<i64>} : (tensor<3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<3x2xf32>) {
  // expected-error @+1 {{dims must be strictly increasing, found [1, 0]}}
  %0 = "gflow.broadcast"(%a0) {shape = array<i64: 2, 3>, dims = array<i64: 1, 0>} : (tensor<3x2xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{a dimension of size 4 cannot be broadcast to size 3 (result dimension 1)}}
  %0 = "gflow.broadcast"(%a0) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (tensor<4xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<3xf32>) {
  // expected-error @+1 {{result dimension 2 is out of range for rank 2}}
  %0 = "gflow.broadcast"(%a0) {shape = array<i64: 2, 3>, dims = array<i64: 2>} : (tensor<3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{slice [0:5:1] is out of range for a dimension of size 4}}
  %0 = "gflow.slice"(%a0) {starts = array<i64: 0>, limits = array<i64: 5>, strides = array<i64: 1>} : (tensor<4xf32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{slice [0:4:0] is out of range for a dimension of size 4}}
  %0 = "gflow.slice"(%a0) {starts = array<i64: 0>, limits = array<i64: 4>, strides = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{starts, limits and strides must each have 1 entries for tensor<4xf32>}}
  %0 = "gflow.slice"(%a0) {starts = array<i64: 0, 0>, limits = array<i64: 4>, strides = array<i64: 1>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<f32>) {
  // expected-error @+1 {{low and high must each have 1 non-negative entries for tensor<4xf32>}}
  %0 = "gflow.pad"(%a0, %a1) {low = array<i64: -1>, high = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<f64>) {
  // expected-error @+1 {{the padding value must be tensor<f32>, found tensor<f64>}}
  %0 = "gflow.pad"(%a0, %a1) {low = array<i64: 1>, high = array<i64: 0>} : (tensor<4xf32>, tensor<f64>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>, %a1: tensor<2x4xf32>) {
  // expected-error @+1 {{operands must agree but for dimension 0: found tensor<2x3xf32> and tensor<2x4xf32>}}
  %0 = "gflow.concatenate"(%a0, %a1) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<4x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>) {
  // expected-error @+1 {{dim 2 is out of range for rank 2}}
  %0 = "gflow.concatenate"(%a0) {dim = 2 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{needs at least one operand}}
  %0 = "gflow.concatenate"() {dim = 0 : i64, operandSegmentSizes = array<i32: 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{dim 3 is out of range for rank 1}}
  %0 = "gflow.reverse"(%a0) {dims = array<i64: 3>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<f32>, %a1: tensor<2xi64>) {
  // expected-error @+1 {{cannot take from a tensor of rank 0}}
  %0 = "gflow.take"(%a0, %a1) {dim = 0 : i64} : (tensor<f32>, tensor<2xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<2xf32>) {
  // expected-error @+1 {{indices must be i64 or i32, found f32}}
  %0 = "gflow.take"(%a0, %a1) {dim = 0 : i64} : (tensor<4xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<2xi64>) {
  // expected-error @+1 {{dim -1 is out of range for rank 1}}
  %0 = "gflow.take"(%a0, %a1) {dim = -1 : i64} : (tensor<4xf32>, tensor<2xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x3xf32>, %a1: tensor<3x3xi64>) {
  // expected-error @+1 {{the index tensor<3x3xi64> does not fit tensor<2x3xf32> along dimension 1}}
  %0 = "gflow.gather"(%a0, %a1) {dim = 1 : i64} : (tensor<2x3xf32>, tensor<3x3xi64>) -> tensor<3x3xf32>
  return
}

// -----

func.func @f(%a0: tensor<9x4xf32>, %a1: tensor<3xi64>, %a2: tensor<3x5xf32>) {
  // expected-error @+1 {{the source must be tensor<3x4xf32>, found tensor<3x5xf32>}}
  %0 = "gflow.index_add"(%a0, %a1, %a2) {dim = 0 : i64} : (tensor<9x4xf32>, tensor<3xi64>, tensor<3x5xf32>) -> tensor<9x4xf32>
  return
}

// -----
func.func @f(%a0: tensor<f32>) {
  // expected-error@+1 {{'gflow.concatenate' op cannot concatenate tensors of rank 0}}
  %0 = "gflow.concatenate"(%a0) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a0: tensor<2x9xf32>, %a1: tensor<3x1xi64>, %a2: tensor<2x3x1xf32>) {
  // expected-error @+1 {{the index must have one dimension, found tensor<3x1xi64>}}
  %0 = "gflow.index_copy"(%a0, %a1, %a2) {dim = 1 : i64} : (tensor<2x9xf32>, tensor<3x1xi64>, tensor<2x3x1xf32>) -> tensor<2x9xf32>
  return
}

// -----

func.func @f(%a0: tensor<2x9xf32>, %a1: tensor<3xi64>, %a2: tensor<2x4xf32>) {
  // expected-error @+1 {{the source must be tensor<2x3xf32>, found tensor<2x4xf32>}}
  %0 = "gflow.index_copy"(%a0, %a1, %a2) {dim = 1 : i64} : (tensor<2x9xf32>, tensor<3xi64>, tensor<2x4xf32>) -> tensor<2x9xf32>
  return
}

// -----

func.func @f(%a0: tensor<3x4xf32>, %a1: tensor<3xi64>, %a2: tensor<4xf32>) {
  // expected-error @+1 {{the source must be tensor<3xf32>, found tensor<4xf32>}}
  %0 = "gflow.put"(%a0, %a1, %a2) : (tensor<3x4xf32>, tensor<3xi64>, tensor<4xf32>) -> tensor<3x4xf32>
  return
}
