// RUN: %gflow-opt %s --gflow-narrow-sums | FileCheck %s

// CHECK-LABEL: func.func @embedding(
// CHECK: %[[z:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<100x8xbf16>}
// CHECK-NEXT: %[[s:.+]] = "gflow.index_add"(%[[z]], %arg0, %arg1) {dim = 0 : i64} : (tensor<100x8xbf16>, tensor<64xi64>, tensor<64x8xbf16>) -> tensor<100x8xbf16>
// CHECK-NEXT: return %[[s]]
func.func @embedding(%i: tensor<64xi64>, %dy: tensor<64x8xbf16>) -> tensor<100x8xbf16> {
  %s = "gflow.convert"(%dy) {dtype = "f32"} : (tensor<64x8xbf16>) -> tensor<64x8xf32>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xf32>} : () -> tensor<100x8xf32>
  %0 = "gflow.index_add"(%z, %i, %s) {dim = 0 : i64} : (tensor<100x8xf32>, tensor<64xi64>, tensor<64x8xf32>) -> tensor<100x8xf32>
  %1 = "gflow.convert"(%0) {dtype = "bf16"} : (tensor<100x8xf32>) -> tensor<100x8xbf16>
  return %1 : tensor<100x8xbf16>
}

// Something else reads the sum of float32; and what is added does not come from bfloat16.
// CHECK-LABEL: func.func @float(
// CHECK: "gflow.index_add"{{.*}} -> tensor<100x8xf32>
// CHECK: "gflow.index_add"{{.*}} -> tensor<100x8xf32>
func.func @float(%i: tensor<64xi64>, %dy: tensor<64x8xbf16>, %dz: tensor<64x8xf32>)
    -> (tensor<100x8xbf16>, tensor<100x8xf32>, tensor<100x8xbf16>) {
  %s = "gflow.convert"(%dy) {dtype = "f32"} : (tensor<64x8xbf16>) -> tensor<64x8xf32>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xf32>} : () -> tensor<100x8xf32>
  %0 = "gflow.index_add"(%z, %i, %s) {dim = 0 : i64} : (tensor<100x8xf32>, tensor<64xi64>, tensor<64x8xf32>) -> tensor<100x8xf32>
  %1 = "gflow.convert"(%0) {dtype = "bf16"} : (tensor<100x8xf32>) -> tensor<100x8xbf16>
  %2 = "gflow.index_add"(%z, %i, %dz) {dim = 0 : i64} : (tensor<100x8xf32>, tensor<64xi64>, tensor<64x8xf32>) -> tensor<100x8xf32>
  %3 = "gflow.convert"(%2) {dtype = "bf16"} : (tensor<100x8xf32>) -> tensor<100x8xbf16>
  return %1, %0, %3 : tensor<100x8xbf16>, tensor<100x8xf32>, tensor<100x8xbf16>
}

// The gradient of a table that is also the weight of a product: the sum starts from the product's part.
// CHECK-LABEL: func.func @tied(
// CHECK: %[[g:.+]] = "gflow.matmul"(%arg2, %arg3)
// CHECK: %[[s:.+]] = "gflow.index_add"(%[[g]], %arg0, %arg1) {dim = 0 : i64}
// CHECK: return %[[s]]
func.func @tied(%i: tensor<64xi64>, %dy: tensor<64x8xbf16>, %x: tensor<100x4xbf16>, %y: tensor<4x8xbf16>) -> tensor<100x8xbf16> {
  %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xbf16>} : () -> tensor<100x8xbf16>
  %0 = "gflow.matmul"(%x, %y) : (tensor<100x4xbf16>, tensor<4x8xbf16>) -> tensor<100x8xbf16>
  %1 = "gflow.index_add"(%z, %i, %dy) {dim = 0 : i64} : (tensor<100x8xbf16>, tensor<64xi64>, tensor<64x8xbf16>) -> tensor<100x8xbf16>
  %2 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<100x8xbf16>) -> tensor<100x8xf32>
  %3 = "gflow.convert"(%1) {dtype = "f32"} : (tensor<100x8xbf16>) -> tensor<100x8xf32>
  %4 = "gflow.add"(%2, %3) : (tensor<100x8xf32>, tensor<100x8xf32>) -> tensor<100x8xf32>
  %5 = "gflow.convert"(%4) {dtype = "bf16"} : (tensor<100x8xf32>) -> tensor<100x8xbf16>
  return %5 : tensor<100x8xbf16>
}

// The sum itself is a result; and the other summand is an argument, which an update writes in place.
// CHECK-LABEL: func.func @apart(
// CHECK: "gflow.index_add"
// CHECK: "gflow.add"
// CHECK: "gflow.add"
func.func @apart(%i: tensor<64xi64>, %dy: tensor<64x8xf32>, %g: tensor<100x8xf32>) -> (tensor<100x8xf32>, tensor<100x8xf32>, tensor<100x8xf32>) {
  %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xf32>} : () -> tensor<100x8xf32>
  %0 = "gflow.index_add"(%z, %i, %dy) {dim = 0 : i64} : (tensor<100x8xf32>, tensor<64xi64>, tensor<64x8xf32>) -> tensor<100x8xf32>
  %1 = "gflow.index_add"(%z, %i, %dy) {dim = 0 : i64} : (tensor<100x8xf32>, tensor<64xi64>, tensor<64x8xf32>) -> tensor<100x8xf32>
  %e = "gflow.exp"(%g) : (tensor<100x8xf32>) -> tensor<100x8xf32>
  %2 = "gflow.add"(%0, %e) : (tensor<100x8xf32>, tensor<100x8xf32>) -> tensor<100x8xf32>
  %3 = "gflow.add"(%g, %1) : (tensor<100x8xf32>, tensor<100x8xf32>) -> tensor<100x8xf32>
  return %0, %2, %3 : tensor<100x8xf32>, tensor<100x8xf32>, tensor<100x8xf32>
}
