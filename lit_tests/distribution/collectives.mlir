// RUN: %gflow-opt %s | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(cse,gflow-simplify,cse,gflow-fuse,gflow-schedule))' | FileCheck %s --check-prefix=ORDER

// Equal ones are not merged, none is dropped, and they stay in order: each takes the token of the one before.
// CHECK-LABEL: func.func @kinds(
// ORDER-LABEL: func.func @kinds(
// ORDER:         sequence = 0
// ORDER:         sequence = 1
// ORDER:         sequence = 2
// ORDER:         sequence = 3
// ORDER:         sequence = 4
// ORDER:         sequence = 5
// ORDER:         sequence = 6
module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 2>}} {
func.func @kinds(%x: tensor<8x4xf32> {gflow.sharding = ["S(0)", "B"]})
    -> (tensor<8x4xf32> {gflow.sharding = ["S(0)", "P(sum)"]}, tensor<i8> {gflow.name = "order", gflow.role = "order"}) {
  // CHECK: "gflow.collective"(%arg0) {axes = ["dp"], kind = "all_reduce"
  %a, %t0 = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<i8>)
  %b, %t1 = "gflow.collective"(%x, %t0) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x4xf32>, tensor<i8>) -> (tensor<8x4xf32>, tensor<i8>)
  // CHECK: -> (tensor<8x8xf32>, tensor<i8>)
  %c, %t2 = "gflow.collective"(%a, %t1) {kind = "all_gather", dim = 1 : i64, axes = ["tp"], ranks = 2 : i64, sequence = 2 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x4xf32>, tensor<i8>) -> (tensor<8x8xf32>, tensor<i8>)
  // CHECK: -> (tensor<2x8xf32>, tensor<i8>)
  %d, %t3 = "gflow.collective"(%c, %t2) {kind = "reduce_scatter", reduction = "avg", axes = ["dp", "tp"], ranks = 4 : i64, sequence = 3 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x8xf32>, tensor<i8>) -> (tensor<2x8xf32>, tensor<i8>)
  // CHECK: -> (tensor<1x16xf32>, tensor<i8>)
  %e, %t4 = "gflow.collective"(%d, %t3) {kind = "all_to_all", dim = 0 : i64, concat_dim = 1 : i64, axes = ["tp"], ranks = 2 : i64, sequence = 4 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<2x8xf32>, tensor<i8>) -> (tensor<1x16xf32>, tensor<i8>)
  %f, %t5 = "gflow.collective"(%e, %t4) {kind = "broadcast", root = 1 : i64, group = "0", ranks = 4 : i64, sequence = 5 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<1x16xf32>, tensor<i8>) -> (tensor<1x16xf32>, tensor<i8>)
  // CHECK: (tensor<i8>) -> (tensor<3xf32>, tensor<i8>)
  %g, %t6 = "gflow.collective"(%t5) {kind = "recv", peer = 0 : i64, type = tensor<3xf32>, axes = ["tp"], ranks = 2 : i64, sequence = 6 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<i8>) -> (tensor<3xf32>, tensor<i8>)
  // CHECK: "gflow.shard"(%arg0) {axes = ["dp"], ranks = 2 : i64} : (tensor<8x4xf32>) -> tensor<16xf32>
  %s = "gflow.shard"(%x) {axes = ["dp"], ranks = 2 : i64} : (tensor<8x4xf32>) -> tensor<16xf32>
  return %b, %t6 : tensor<8x4xf32>, tensor<i8>
}
}
