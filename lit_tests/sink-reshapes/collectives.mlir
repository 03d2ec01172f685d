// RUN: %gflow-opt %s --gflow-sink-reshapes | FileCheck %s

// What a collective gives stays in the shape of its readers: no kernel makes it that they could join.
// CHECK-LABEL: func.func @sent(
// CHECK:        %[[s:.+]] = "gflow.slice"
// CHECK-NEXT:   %[[g:.+]] = "gflow.reshape"(%[[s]]) {shape = array<i64: 4, 2>} : (tensor<8xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[m:.+]] = "gflow.exp"(%arg1) : (tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[n:.+]] = "gflow.add"(%[[m]], %[[g]]) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   return %[[n]] : tensor<4x2xf32>
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @sent(%g: tensor<12xf32>, %m: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %a, %t = "gflow.collective"(%g) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<12xf32>) -> (tensor<12xf32>, tensor<i8>)
  %0 = "gflow.slice"(%a) {starts = array<i64: 4>, limits = array<i64: 12>, strides = array<i64: 1>} : (tensor<12xf32>) -> tensor<8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 4, 2>} : (tensor<8xf32>) -> tensor<4x2xf32>
  %2 = "gflow.exp"(%m) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %3 = "gflow.add"(%2, %1) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %3 : tensor<4x2xf32>
}
}
