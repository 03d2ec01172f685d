// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%x: tensor<2x8x8x3xf32>) {
  // expected-error @+1 {{windows need kernel, stride and padding, or size alone}}
  %0 = "gflow.avg_pool"(%x) {kernel = array<i64: 3, 3>, size = array<i64: 2, 2>, layout = "N*C"} : (tensor<2x8x8x3xf32>) -> tensor<2x2x2x3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x8x8x3xf32>) {
  // expected-error @+1 {{stride must have 2 entries, found [2]}}
  %0 = "gflow.avg_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2>, padding = array<i64: 1, 1>, layout = "N*C"} : (tensor<2x8x8x3xf32>) -> tensor<2x4x4x3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x8x8x3xf32>) {
  // expected-error @+1 {{a window of 3 cannot have padding of 2: at most half of it}}
  %0 = "gflow.avg_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 2, 1>, layout = "N*C"} : (tensor<2x8x8x3xf32>) -> tensor<2x4x4x3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3x2x8xf32>) {
  // expected-error @+1 {{the window [3, 3] is larger than the padded tensor<2x3x2x8xf32>}}
  %0 = "gflow.avg_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "NC*"} : (tensor<2x3x2x8xf32>) -> tensor<2x3x0x3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3x8x8xi32>) {
  // expected-error @+1 {{element type i32 is not one of}}
  %0 = "gflow.avg_pool"(%x) {size = array<i64: 2, 2>, layout = "NC*"} : (tensor<2x3x8x8xi32>) -> tensor<2x3x2x2xi32>
  return
}

// -----

func.func @f(%dy: tensor<2x3x2x2xf32>, %p: tensor<2x3x2x2xi32>) {
  // expected-error @+1 {{positions must be tensor<2x3x2x2xi64>, found tensor<2x3x2x2xi32>}}
  %0 = "gflow.max_pool_grad"(%dy, %p) {size = array<i64: 2, 2>, layout = "NC*", shape = array<i64: 2, 3, 8, 8>} : (tensor<2x3x2x2xf32>, tensor<2x3x2x2xi32>) -> tensor<2x3x8x8xf32>
  return
}

// -----

func.func @f(%dy: tensor<2x3x2x2xf32>) {
  // expected-error @+1 {{pooling of tensor<2x4x8x8xf32> does not give tensor<2x3x2x2xf32>}}
  %0 = "gflow.avg_pool_grad"(%dy) {size = array<i64: 2, 2>, layout = "NC*", shape = array<i64: 2, 4, 8, 8>} : (tensor<2x3x2x2xf32>) -> tensor<2x4x8x8xf32>
  return
}
