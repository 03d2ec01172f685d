// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-normalize-collectives))' | FileCheck %s

// What is along another dimension is moved to the first; the last token is a result.
// CHECK-LABEL: func.func @gather(
// CHECK-SAME:    tensor<i8> {gflow.name = "order", gflow.role = "order"}
// CHECK-NEXT:    %[[T:.*]] = "gflow.transpose"(%arg0) {permutation = array<i64: 1, 0>}
// CHECK-NEXT:    %[[G:.*]]:2 = "gflow.collective"(%[[T]]) {{.*}}sequence = 0 : i64} : (tensor<4x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
// CHECK-NEXT:    %[[B:.*]] = "gflow.transpose"(%[[G]]#0) {permutation = array<i64: 1, 0>}
// CHECK-NEXT:    %[[S:.*]]:2 = "gflow.collective"(%[[B]], %[[G]]#1) {{.*}}sequence = 1 : i64} : (tensor<8x8xf32>, tensor<i8>) -> (tensor<4x8xf32>, tensor<i8>)
// CHECK-NEXT:    return %[[S]]#0, %[[S]]#1
func.func @gather(%x: tensor<8x4xf32>) -> tensor<4x8xf32> {
  %0, %t = "gflow.collective"(%x) {kind = "all_gather", group = "0", ranks = 2 : i64, dim = 1 : i64, sequence = 7 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x4xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  %1, %u = "gflow.collective"(%0, %t) {kind = "reduce_scatter", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 9 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x8xf32>, tensor<i8>) -> (tensor<4x8xf32>, tensor<i8>)
  return %1 : tensor<4x8xf32>
}

// Parts that are concatenated along another dimension come by rank first.
// CHECK-LABEL: func.func @exchange(
// CHECK:         "gflow.collective"(%{{.*}}) {{.*}} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<i8>)
// CHECK:         "gflow.reshape"({{.*}}) {shape = array<i64: 2, 4, 4>}
// CHECK-NEXT:    "gflow.transpose"({{.*}}) {permutation = array<i64: 1, 0, 2>}
// CHECK-NEXT:    "gflow.reshape"({{.*}}) {shape = array<i64: 4, 8>}
func.func @exchange(%x: tensor<8x4xf32>) -> tensor<4x8xf32> {
  %0, %t = "gflow.collective"(%x) {kind = "all_to_all", group = "0", ranks = 2 : i64, dim = 0 : i64, concat_dim = 1 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x4xf32>) -> (tensor<4x8xf32>, tensor<i8>)
  return %0 : tensor<4x8xf32>
}
