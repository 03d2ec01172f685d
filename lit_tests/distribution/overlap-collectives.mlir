// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-overlap-collectives{device=h100 growth=1}))' --verify-each | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-overlap-collectives{device=h100 growth=-1}))' --verify-each | FileCheck %s --check-prefix=BUDGET

module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
// The last layer's parameter is gathered while the others compute; where no order is small enough, the order stays.
// CHECK-LABEL: func.func @gathers(
// CHECK:         "gflow.collective"(%arg1){{.*}}sequence = 0
// CHECK-NEXT:    %[[W:.*]]:2 = "gflow.collective"(%arg2{{.*}}sequence = 1
// CHECK-NEXT:    %[[A:.*]] = "gflow.matmul"(%arg0
// CHECK-NEXT:    %[[B:.*]] = "gflow.matmul"(%[[A]], %[[A]])
// CHECK-NEXT:    "gflow.matmul"(%[[B]], %[[W]]#0)
// BUDGET-LABEL: func.func @gathers(
// BUDGET:         "gflow.matmul"
// BUDGET-NEXT:    "gflow.matmul"
// BUDGET-NEXT:    "gflow.collective"
// BUDGET-NEXT:    "gflow.matmul"
func.func @gathers(%x: tensor<2048x2048xbf16>, %p: tensor<1024x2048xbf16>, %q: tensor<1024x2048xbf16>) -> tensor<2048x2048xbf16> {
  %w, %t = "gflow.collective"(%p) {kind = "all_gather", gflow.gradient = "p", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<1024x2048xbf16>) -> (tensor<2048x2048xbf16>, tensor<i8>)
  %a = "gflow.matmul"(%x, %w) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %b = "gflow.matmul"(%a, %a) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %v, %u = "gflow.collective"(%q, %t) {kind = "all_gather", gflow.gradient = "q", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<1024x2048xbf16>, tensor<i8>) -> (tensor<2048x2048xbf16>, tensor<i8>)
  %y = "gflow.matmul"(%b, %v) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  return %y : tensor<2048x2048xbf16>
}

// A gradient is sent as soon as it is there, and what reads the sum comes after the work that is left.
// CHECK-LABEL: func.func @gradient(
// CHECK-NEXT:    %[[G:.*]] = "gflow.matmul"(%arg0, %arg0)
// CHECK-NEXT:    %[[S:.*]]:2 = "gflow.collective"(%[[G]])
// CHECK-NEXT:    "gflow.matmul"(%arg1, %arg1)
// CHECK-NEXT:    "gflow.neg"(%[[S]]#0)
func.func @gradient(%x: tensor<2048x2048xbf16>, %y: tensor<2048x2048xbf16>) -> (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) {
  %g = "gflow.matmul"(%x, %x) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %s, %t = "gflow.collective"(%g) {kind = "all_reduce", reduction = "sum", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<2048x2048xbf16>) -> (tensor<2048x2048xbf16>, tensor<i8>)
  %u = "gflow.neg"(%s) : (tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %d = "gflow.matmul"(%y, %y) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  return %u, %d : tensor<2048x2048xbf16>, tensor<2048x2048xbf16>
}

// An update waits for the time in which the last gradient is sent.
// CHECK-LABEL: func.func @update(
// CHECK:         %[[FIRST:.*]]:2 = "gflow.collective"
// CHECK-COUNT-4: "gflow.matmul"
// CHECK-NEXT:    %[[LAST:.*]]:2 = "gflow.collective"
// CHECK-NEXT:    "gflow.neg"(%[[FIRST]]#0)
// CHECK-NEXT:    "gflow.neg"(%[[LAST]]#0)
func.func @update(%x: tensor<2048x2048xbf16>, %y: tensor<2048x2048xbf16>) -> (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) {
  %g = "gflow.matmul"(%x, %x) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %s, %t = "gflow.collective"(%g) {kind = "all_reduce", reduction = "sum", gflow.gradient = "g", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<2048x2048xbf16>) -> (tensor<2048x2048xbf16>, tensor<i8>)
  %a = "gflow.matmul"(%y, %y) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %b = "gflow.matmul"(%a, %y) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %u = "gflow.neg"(%s) : (tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %c = "gflow.matmul"(%b, %y) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %h = "gflow.matmul"(%c, %c) : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  %v, %w = "gflow.collective"(%h, %t) {kind = "all_reduce", reduction = "sum", gflow.gradient = "h", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<2048x2048xbf16>, tensor<i8>) -> (tensor<2048x2048xbf16>, tensor<i8>)
  %z = "gflow.neg"(%v) : (tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  return %u, %z, %c : tensor<2048x2048xbf16>, tensor<2048x2048xbf16>, tensor<2048x2048xbf16>
}

// The author's collectives keep their order.
// CHECK-LABEL: func.func @authors(
// CHECK:         "gflow.collective"{{.*}}reduction = "max"{{.*}}sequence = 0
// CHECK:         "gflow.collective"{{.*}}reduction = "min"{{.*}}sequence = 1
func.func @authors(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %a, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "max", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8xf32>) -> (tensor<8xf32>, tensor<i8>)
  %b, %u = "gflow.collective"(%x, %t) {kind = "all_reduce", reduction = "min", axes = ["dp"], ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8xf32>, tensor<i8>) -> (tensor<8xf32>, tensor<i8>)
  %c, %v = "gflow.collective"(%a, %u) {kind = "all_reduce", reduction = "sum", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, sequence = 2 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8xf32>, tensor<i8>) -> (tensor<8xf32>, tensor<i8>)
  return %a, %b, %c : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
}
