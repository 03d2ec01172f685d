// RUN: %gflow-opt %s --gflow-plan-memory --split-input-file --verify-diagnostics
// RUN: not %gflow-opt %s --gflow-fuse --split-input-file 2>&1 | FileCheck %s
// CHECK-NOT: internal error

// What is valid MLIR, but no function that the passes can plan.

// expected-error@+1 {{expects tensors of static shape and a known element type, found f32}}
func.func @scalar(%a0: f32) {
  return
}

// -----
// expected-error@+1 {{expects tensors of static shape and a known element type, found tensor<?xf32>}}
func.func @dynamic(%a0: tensor<?xf32>) {
  return
}

// -----
// expected-error@+1 {{a tensor<4611686018427387904x4xf32> has 73,786,976,294,838,206,464 bytes, more than can be addressed}}
func.func @huge(%a0: tensor<4611686018427387904x4xf32>) {
  return
}

// -----
func.func @foreign(%a0: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{expects ops of the gflow dialect, found 'arith.addf'}}
  %0 = arith.addf %a0, %a0 : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// expected-error@+1 {{expects a function of one block, found 2}}
func.func @blocks(%a0: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^next
^next:
  return %a0 : tensor<4xf32>
}

// -----
// expected-error@+1 {{'gflow.alias' of result 0 must be the number of an argument of type tensor<4xf32> that no other result updates, found 1}}
func.func @alias(%a0: tensor<4xf32>, %a1: tensor<5xf32>) -> (tensor<4xf32> {gflow.alias = 1 : i64}) {
  %0 = "gflow.exp"(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// expected-error@+1 {{'gflow.strides' of a tensor<4xf32> must be array<i64: ...> with 1 strides, found array<i64: 1, 2>}}
func.func @strides(%a0: tensor<4xf32> {gflow.strides = array<i64: 1, 2>}) -> tensor<4xf32> {
  %0 = "gflow.exp"(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
