// A module whose sizes vary: its argument of role "size" says what stands for n in shapes. Passes compute
// with that as with any size; memory is planned for the greatest (64 rows of 8 floats are 2048 bytes).
// RUN: %gflow-opt %s --pass-pipeline="builtin.module(func.func(gflow-simplify,gflow-fuse,gflow-materialize,gflow-plan-memory))" | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline="builtin.module(func.func(gflow-simplify,gflow-fuse,gflow-materialize,gflow-plan-memory))" | FileCheck %s --check-prefix=ARENA

// Sums over what varies are not folded: they are made when the program runs.
// CHECK-LABEL: func.func @sums(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg1) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<1000000007x8xf32>):
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<1000000007x8xf32>} : () -> tensor<1000000007x8xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reduce"(%[[v1]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<1000000007x8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reduce"(%arg2) {dims = array<i64: 0>, kind = "sum"} : (tensor<1000000007x8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.div"(%[[v3]], %[[v2]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v4]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8xf32>) -> ()
// CHECK-NEXT:   }) {gflow.buffers = ["result:0"], kind = "column", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1000000007x8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<8xf32>
func.func @sums(%n: tensor<i64> {gflow.max = 64 : i64, gflow.min = 1 : i64, gflow.name = "n", gflow.role = "size", gflow.stand_in = 1000000007 : i64},
                %x: tensor<1000000007x8xf32> {gflow.name = "x", gflow.role = "input"}) -> tensor<8xf32> {
  %0 = "gflow.constant"() {value = dense<1.0> : tensor<1000000007x8xf32>} : () -> tensor<1000000007x8xf32>
  %1 = "gflow.reduce"(%0) {dims = array<i64: 0>, kind = "sum"} : (tensor<1000000007x8xf32>) -> tensor<8xf32>
  %2 = "gflow.reduce"(%x) {dims = array<i64: 0>, kind = "sum"} : (tensor<1000000007x8xf32>) -> tensor<8xf32>
  %3 = "gflow.div"(%2, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}

// -----

// ARENA: func.func @planned({{.*}}gflow.arena_size = 2048 : i64
// CHECK-LABEL: func.func @planned(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg1) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<1000000007x8xf32>):
// CHECK-NEXT:   %[[v3:.+]] = "gflow.exp"(%arg2) : (tensor<1000000007x8xf32>) -> tensor<1000000007x8xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v3]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1000000007x8xf32>) -> ()
// CHECK-NEXT:   }) {gflow.buffers = ["arena:0"], kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1000000007x8xf32>) -> tensor<1000000007x8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%[[v0]]) {permutation = array<i64: 1, 0>} : (tensor<1000000007x8xf32>) -> tensor<8x1000000007xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) {gflow.buffers = ["result:0"]} : (tensor<1000000007x8xf32>, tensor<8x1000000007xf32>) -> tensor<1000000007x1000000007xf32>
// CHECK-NEXT:   return %[[v2]] : tensor<1000000007x1000000007xf32>
func.func @planned(%n: tensor<i64> {gflow.max = 64 : i64, gflow.min = 1 : i64, gflow.name = "n", gflow.role = "size", gflow.stand_in = 1000000007 : i64},
                   %x: tensor<1000000007x8xf32> {gflow.name = "x", gflow.role = "input"}) -> tensor<1000000007x1000000007xf32> {
  %0 = "gflow.exp"(%x) : (tensor<1000000007x8xf32>) -> tensor<1000000007x8xf32>
  %1 = "gflow.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<1000000007x8xf32>) -> tensor<8x1000000007xf32>
  %2 = "gflow.matmul"(%0, %1) : (tensor<1000000007x8xf32>, tensor<8x1000000007xf32>) -> tensor<1000000007x1000000007xf32>
  return %2 : tensor<1000000007x1000000007xf32>
}
