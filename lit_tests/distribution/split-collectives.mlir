// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-normalize-collectives,gflow-materialize,gflow-split-collectives))' | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-normalize-collectives,gflow-fuse,gflow-materialize,gflow-split-collectives,gflow-select-kernels,gflow-plan-memory,gflow-verify-memory))' | FileCheck %s --check-prefix=PLAN

module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
// The wait comes late, and keeps the operand until then.
// CHECK-LABEL: func.func @overlap(
// CHECK-NEXT:    %[[S:.*]]:2 = "gflow.collective_start"(%arg0)
// CHECK-NEXT:    %[[M:.*]] = "gflow.matmul"(%arg1, %arg1)
// CHECK-NEXT:    %[[W:.*]] = "gflow.collective_wait"(%[[S]]#0, %arg0)
// CHECK-NEXT:    "gflow.matmul"(%[[W]], %[[M]])
// PLAN-LABEL:  func.func @overlap(
func.func @overlap(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  %m = "gflow.matmul"(%y, %y) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %r = "gflow.matmul"(%0, %m) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}

// The argument that is sent is not updated in place before it has been sent.
// CHECK-LABEL: func.func @sent(
// CHECK:         "gflow.collective_start"(%arg0)
// CHECK:         "gflow.collective_wait"(%{{.*}}, %arg0)
// CHECK:         return
func.func @sent(%x: tensor<4xf32>) -> (tensor<4xf32> {gflow.alias = 0 : i64}, tensor<4xf32>) {
  %0, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  %n = "gflow.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %n, %0 : tensor<4xf32>, tensor<4xf32>
}

// What is gathered is written where the argument lies; the operand, made in the arena, is not overwritten until the wait.
// CHECK-LABEL: func.func @update(
// PLAN-LABEL:  func.func @update(
// PLAN:          "gflow.collective_start"({{.*}}gflow.buffers = ["arg:1", "result:1"]
func.func @update(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 1 : i64}) {
  %s = "gflow.exp"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %0, %t = "gflow.collective"(%s) {kind = "all_gather", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  return %0 : tensor<8x8xf32>
}

// An all_reduce reduces in place: its result has the place of the operand. Not if the operand is read meanwhile.
// PLAN-LABEL:  func.func @reduced(
// PLAN:          "gflow.matmul"(%arg0, %arg0) {gflow.buffers = ["arena:[[A:[0-9]+]]"]
// PLAN:          "gflow.collective_start"({{.*}}gflow.buffers = ["arena:[[A]]",
func.func @reduced(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %s = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %0, %t = "gflow.collective"(%s) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  %m = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %r = "gflow.matmul"(%0, %m) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}

// PLAN-LABEL:  func.func @read_meanwhile(
// PLAN:          "gflow.matmul"(%arg0, %arg0) {gflow.buffers = ["arena:[[A:[0-9]+]]"]
// PLAN-NOT:      "gflow.collective_start"({{.*}}gflow.buffers = ["arena:[[A]]",
// PLAN:          return
func.func @read_meanwhile(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %s = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %0, %t = "gflow.collective"(%s) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  %m = "gflow.matmul"(%s, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %r = "gflow.matmul"(%0, %m) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}
}
