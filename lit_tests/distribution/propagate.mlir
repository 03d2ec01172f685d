// RUN: %gflow-opt %s --gflow-propagate-shardings | FileCheck %s

// A column-parallel and a row-parallel product: nothing is sent between them, the sum comes after the second.
// CHECK-LABEL: func.func @mlp(
// CHECK-SAME:    %arg3: tensor<8xf32> {gflow.sharding = ["B", "B"]}
// CHECK-SAME:    -> (tensor<4x8xf32> {gflow.sharding = ["S(0)", "B"]})
// CHECK:         "gflow.matmul"(%arg0, %arg1) {gflow.operand_shardings = {{\[\[}}"S(0)", "B"], ["B", "S(1)"]], gflow.sharding = {{\[\[}}"S(0)", "S(1)"]], gflow.why = "dp: m is split. tp: n is split"}
// CHECK:         "gflow.matmul"({{.*}}) {gflow.operand_shardings = {{\[\[}}"S(0)", "S(1)"], ["B", "S(0)"]], gflow.sharding = {{\[\[}}"S(0)", "P(sum)"]], gflow.why = "dp: m is split. tp: k is split, each rank has a term"}
// The row-parallel bias is added on the first rank, before the sum.
// CHECK:         "gflow.add"({{.*}}) {{.*}}gflow.why = "dp: d0 is split. tp: terms stay terms; operand 1 comes as B"}
module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 2>}} {
  func.func @mlp(%x: tensor<4x8xf32> {gflow.sharding = ["S(0)", "B"]}, %w: tensor<8x16xf32> {gflow.sharding = ["B", "S(1)"]}, %v: tensor<16x8xf32> {gflow.sharding = ["B", "S(0)"]}, %b: tensor<8xf32>) -> (tensor<4x8xf32> {gflow.sharding = ["S(0)", "B"]}) {
    %0 = "gflow.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = "gflow.tanh"(%0) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %2 = "gflow.matmul"(%1, %v) : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %3 = "gflow.broadcast"(%b) {shape = array<i64: 4, 8>, dims = array<i64: 1>} : (tensor<8xf32>) -> tensor<4x8xf32>
    %4 = "gflow.add"(%2, %3) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }
}
