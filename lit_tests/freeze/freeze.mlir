// RUN: %gflow-opt %s --gflow-freeze | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-freeze{growth=2000}))' | FileCheck %s --check-prefix=GROW

// The product of two weights is computed once; %a and %b are no arguments any more, %c is read as it is. The
// alias names the argument by its new number.
// CHECK-LABEL: func.func @product(%arg0: tensor<8x4xf32>, %arg1: tensor<2xf32> {gflow.role = "buffer"}, %arg2: tensor<3xf32>, %arg3: tensor<4x3xf32> {gflow.name = "frozen.0", gflow.role = "frozen"})
// CHECK-SAME:    tensor<2xf32> {gflow.alias = 1 : i64}
// CHECK-SAME:    gflow.given = array<i64: 0, 3, 4, -1>
// CHECK-NEXT:    %[[Y:.+]] = "gflow.matmul"(%arg0, %arg3)
// CHECK:       func.func @product_prologue(%arg0: tensor<4x5xf32>, %arg1: tensor<5x3xf32>)
// CHECK-SAME:    gflow.given = array<i64: 1, 2>, gflow.prologue_of = "product"
// CHECK-NEXT:    %[[W:.+]] = "gflow.matmul"(%arg0, %arg1)
// CHECK-NEXT:    return %[[W]]
func.func @product(%x: tensor<8x4xf32>, %a: tensor<4x5xf32> {gflow.frozen = true}, %b: tensor<5x3xf32> {gflow.frozen = true}, %n: tensor<2xf32> {gflow.role = "buffer"}, %c: tensor<3xf32> {gflow.frozen = true}) -> (tensor<8x3xf32>, tensor<2xf32> {gflow.alias = 3 : i64}) {
  %w = "gflow.matmul"(%a, %b) : (tensor<4x5xf32>, tensor<5x3xf32>) -> tensor<4x3xf32>
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
  %1 = "gflow.broadcast"(%c) {dims = array<i64: 1>, shape = array<i64: 8, 3>} : (tensor<3xf32>) -> tensor<8x3xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
  %3 = "gflow.add"(%n, %n) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2, %3 : tensor<8x3xf32>, tensor<2xf32>
}

// What the function updates is not frozen, whatever its mark says.
// CHECK-LABEL: func.func @updated(
// CHECK-SAME:    gflow.frozen = true
// CHECK-NEXT:    "gflow.exp"(%arg0)
// CHECK-NOT:   func.func @updated_prologue
func.func @updated(%w: tensor<4xf32> {gflow.frozen = true}) -> (tensor<4xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.exp"(%w) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// A matrix made of a vector is made at each call, unless it may be that much larger.
// CHECK-LABEL: func.func @outer(
// CHECK:         "gflow.mul"
// CHECK-NOT:   func.func @outer_prologue
// GROW-LABEL:  func.func @outer(
// GROW-NOT:      "gflow.mul"
// GROW:        func.func @outer_prologue(
// GROW:          "gflow.mul"
func.func @outer(%x: tensor<128x128xf32>, %w: tensor<128xf32> {gflow.frozen = true}) -> tensor<128x128xf32> {
  %0 = "gflow.broadcast"(%w) {dims = array<i64: 0>, shape = array<i64: 128, 128>} : (tensor<128xf32>) -> tensor<128x128xf32>
  %1 = "gflow.broadcast"(%w) {dims = array<i64: 1>, shape = array<i64: 128, 128>} : (tensor<128xf32>) -> tensor<128x128xf32>
  %2 = "gflow.mul"(%0, %1) : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  %3 = "gflow.add"(%x, %2) : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %3 : tensor<128x128xf32>
}

// What depends on a size is computed at each call.
// CHECK-LABEL: func.func @sized(
// CHECK:         "gflow.broadcast"(%arg2)
// CHECK-NEXT:    "gflow.exp"
// CHECK:       func.func @sized_prologue(%arg0: tensor<4xf32>)
// CHECK-NEXT:    "gflow.tanh"
func.func @sized(%n: tensor<i64> {gflow.role = "size", gflow.name = "n", gflow.min = 1 : i64, gflow.max = 64 : i64, gflow.stand_in = 1000000007 : i64}, %x: tensor<1000000007x4xf32>, %w: tensor<4xf32> {gflow.frozen = true}) -> tensor<1000000007x4xf32> {
  %0 = "gflow.tanh"(%w) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.broadcast"(%0) {dims = array<i64: 1>, shape = array<i64: 1000000007, 4>} : (tensor<4xf32>) -> tensor<1000000007x4xf32>
  %2 = "gflow.exp"(%1) : (tensor<1000000007x4xf32>) -> tensor<1000000007x4xf32>
  %3 = "gflow.add"(%x, %2) : (tensor<1000000007x4xf32>, tensor<1000000007x4xf32>) -> tensor<1000000007x4xf32>
  return %3 : tensor<1000000007x4xf32>
}
