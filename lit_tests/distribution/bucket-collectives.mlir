// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-bucket-collectives))' --verify-each | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-bucket-collectives{bytes=40}))' --verify-each | FileCheck %s --check-prefix=SMALL

// Both gradients are one collective, where the last of them is made; the author's own stays.
// CHECK-LABEL: func.func @gradients(
// CHECK:         %[[C:.*]] = "gflow.concatenate"({{.*}}) {dim = 0 : i64
// CHECK-NEXT:    %[[A:.*]]:2 = "gflow.collective"(%[[C]]) {axes = ["dp"], gflow.gradient = "w,b", kind = "all_reduce"{{.*}}sequence = 0
// CHECK-NEXT:    "gflow.slice"(%[[A]]#0) {limits = array<i64: 8>, starts = array<i64: 0>
// CHECK:         "gflow.slice"(%[[A]]#0) {limits = array<i64: 12>, starts = array<i64: 8>
// CHECK:         "gflow.collective"({{.*}}, %[[A]]#1) {axes = ["dp"], kind = "all_reduce"{{.*}}sequence = 1
// SMALL-LABEL: func.func @gradients(
// SMALL:         gflow.gradient = "w", kind
// SMALL:         gflow.gradient = "b", kind
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @gradients(%x: tensor<4x2xf32>, %y: tensor<4xf32>) -> (tensor<4x2xf32>, tensor<4xf32>, tensor<4xf32>) {
  %g = "gflow.exp"(%x) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %h = "gflow.exp"(%y) : (tensor<4xf32>) -> tensor<4xf32>
  %a, %t = "gflow.collective"(%g) {kind = "all_reduce", reduction = "sum", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<i8>)
  %b, %u = "gflow.collective"(%h, %t) {kind = "all_reduce", reduction = "sum", gflow.gradient = "b", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<4xf32>, tensor<i8>)
  %c, %v = "gflow.collective"(%y, %u) {kind = "all_reduce", reduction = "max", axes = ["dp"], ranks = 2 : i64, sequence = 2 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<4xf32>, tensor<i8>)
  return %a, %b, %c : tensor<4x2xf32>, tensor<4xf32>, tensor<4xf32>
}

// Each rank's parts of a reduce_scatter lie together.
// CHECK-LABEL: func.func @scatter(
// CHECK:         "gflow.reshape"(%{{.*}}) {shape = array<i64: 2, 4>}
// CHECK:         "gflow.reshape"(%{{.*}}) {shape = array<i64: 2, 2>}
// CHECK:         "gflow.concatenate"({{.*}}) {dim = 1 : i64
// CHECK-NEXT:    "gflow.collective"({{.*}} : (tensor<2x6xf32>) -> (tensor<1x6xf32>, tensor<i8>)
func.func @scatter(%x: tensor<8xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>) {
  %a, %t = "gflow.collective"(%x) {kind = "reduce_scatter", reduction = "sum", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8xf32>) -> (tensor<4xf32>, tensor<i8>)
  %b, %u = "gflow.collective"(%y, %t) {kind = "reduce_scatter", reduction = "sum", gflow.gradient = "b", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<2xf32>, tensor<i8>)
  return %a, %b : tensor<4xf32>, tensor<2xf32>
}

// The first bucket takes 16 bytes at most, all others 32.
// CHECK-LABEL: func.func @limits(
// CHECK:         gflow.gradient = "a", kind
// CHECK:         gflow.gradient = "b,c", kind
// CHECK-NOT:     gflow.gradient
func.func @limits(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %ax = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %bx = "gflow.sin"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %cx = "gflow.cos"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %a, %t0 = "gflow.collective"(%ax) {kind = "all_reduce", reduction = "sum", gflow.gradient = "a", gflow.buckets = array<i64: 16, 32>, axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  %b, %t1 = "gflow.collective"(%bx, %t0) {kind = "all_reduce", reduction = "sum", gflow.gradient = "b", gflow.buckets = array<i64: 16, 32>, axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<4xf32>, tensor<i8>)
  %c, %t2 = "gflow.collective"(%cx, %t1) {kind = "all_reduce", reduction = "sum", gflow.gradient = "c", gflow.buckets = array<i64: 16, 32>, axes = ["dp"], ranks = 2 : i64, sequence = 2 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<4xf32>, tensor<i8>)
  return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
}
