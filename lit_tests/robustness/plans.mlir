// RUN: not %gflow-opt %s --emit=kernels --split-input-file 2>&1 | FileCheck %s

// Plans that were not made by gflow-plan-memory: no code is made of them.

// CHECK: the function '@unbounded' has no memory plan
func.func @unbounded(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 256 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["arena:99"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----
// CHECK: the memory plan of '@outside' is not sound: bytes 128 to 384 are not an aligned part of an arena of 256 ('gflow.matmul')
func.func @outside(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 256 : i64, gflow.lower_bound = 256 : i64} {
  %t = "gflow.matmul"(%g, %g) {gflow.buffers = ["arena:128"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %u = "gflow.matmul"(%t, %g) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----
// CHECK: the memory plan of '@words' is not sound: needs a place for each result
func.func @words(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 256 : i64, gflow.lower_bound = 256 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["somewhere"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----
// CHECK: the memory plan of '@size' is not sound: gflow.arena_size must be an integer, found "big"
func.func @size(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = "big", gflow.lower_bound = 256 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----
// CHECK: the memory plan of '@scratch' is not sound: gflow.scratch must be array<i64: offset, bytes>, found 7 : i64
func.func @scratch(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 256 : i64, gflow.lower_bound = 256 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["result:0"], gflow.scratch = 7 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----
// A report reads what there is.
// RUN: %gflow-opt %s --gflow-report --split-input-file -o /dev/null 2>&1 | FileCheck %s --check-prefix=REPORT
// REPORT: kernels
func.func @nothing_planned(%g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = "big"} {
  return %g : tensor<8x8xf32>
}
