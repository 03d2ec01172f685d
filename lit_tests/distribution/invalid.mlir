// RUN: not %gflow-opt %s --split-input-file 2>&1 | FileCheck %s

// CHECK: 'gflow.mesh' must be {axes = […], sizes = array<i64: …>}, found "dp"
module attributes {gflow.mesh = "dp"} {}

// -----
// CHECK: 'gflow.mesh' needs different axes
module attributes {gflow.mesh = {axes = ["dp", "dp"], sizes = array<i64: 2, 2>}} {}

// -----
// CHECK: no mesh axis 'tp'; there are dp
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", axes = ["tp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  return %a : tensor<4xf32>
}
}

// -----
// CHECK: has 4 ranks, and its mesh axes have 2
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 4 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  return %a : tensor<4xf32>
}
}

// -----
// CHECK: has the number 3 in the order of collectives, after 3
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 3 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  %b, %u = "gflow.collective"(%a, %t) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 3 : i64, operandSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>, tensor<i8>) -> (tensor<4xf32>, tensor<i8>)
  return %b : tensor<4xf32>
}

// -----
// CHECK: does not take the token of the collective before it
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  %b, %u = "gflow.collective"(%a) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 1 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  return %b : tensor<4xf32>
}

// -----
// CHECK: needs one gflow.collective_wait, and no other reader of what it gives
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective_start"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  return %a : tensor<4xf32>
}

// -----
// CHECK: its wait does not read its operand, which so is not kept until then
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a, %t = "gflow.collective_start"(%x) {kind = "all_reduce", reduction = "sum", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<i8>)
  %b = "gflow.collective_wait"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}

// -----
// CHECK: reduce_scatter needs 'reduction'
func.func @f(%x: tensor<4xf32>) -> tensor<2xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "reduce_scatter", group = "0", ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<i8>)
  return %a : tensor<2xf32>
}

// -----
// CHECK: 3 ranks cannot have equal parts of dimension 0 of a tensor<4xf32>
func.func @f(%x: tensor<4xf32>) -> tensor<2xf32> {
  %a, %t = "gflow.collective"(%x) {kind = "reduce_scatter", reduction = "sum", group = "0", ranks = 3 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<i8>)
  return %a : tensor<2xf32>
}

// -----
// CHECK: 'gflow.sharding': a placement is S(d), B or P(sum), found 'R'
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @f(%x: tensor<4xf32> {gflow.sharding = ["R"]}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
}
