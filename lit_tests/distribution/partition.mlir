// RUN: %gflow-opt %s --split-input-file --pass-pipeline='builtin.module(func.func(gflow-propagate-shardings,gflow-partition))' | FileCheck %s

// An embedding whose table is split: each rank looks up what it owns, the sum is the rest.
// CHECK-LABEL: func.func @embedding(
// CHECK-SAME:    %arg0: tensor<32x4xf32> {gflow.sharding = ["S(0)"]}
// CHECK:         %[[RANK:.+]] = "gflow.shard"
// CHECK:         %[[IN:.+]] = "gflow.and"
// CHECK:         %[[AT:.+]] = "gflow.select"(%[[IN]]
// CHECK:         %[[ROWS:.+]] = "gflow.take"(%arg0, %[[AT]])
// CHECK:         %[[OWN:.+]] = "gflow.select"({{.+}}, %[[ROWS]]
// CHECK:         %[[SUM:.+]]:2 = "gflow.collective"(%[[OWN]]) {axes = ["tp"], kind = "all_reduce"
// CHECK:         return %[[SUM]]#0, %[[SUM]]#1
module attributes {gflow.mesh = {axes = ["tp"], sizes = array<i64: 2>}} {
  func.func @embedding(%x: tensor<64x4xf32> {gflow.sharding = ["S(0)"]}, %i: tensor<3xi64>) -> (tensor<3x4xf32> {gflow.sharding = ["B"]}) {
    %0 = "gflow.take"(%x, %i) {dim = 0 : i64} : (tensor<64x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }
}

// -----

// Numbers drawn for parts of one value come from seeds of their own.
// CHECK-LABEL: func.func @dropout(
// CHECK:         %[[RNG:.+]] = "gflow.add"(%arg1,
// CHECK:         "gflow.random"(%[[RNG]]) {{.*}}shape = array<i64: 4, 4>
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
  func.func @dropout(%x: tensor<8x4xf32> {gflow.sharding = ["S(0)"]}, %rng: tensor<2xi64>) -> tensor<8x4xf32> {
    %0 = "gflow.random"(%rng) {kind = "uniform", stream = 0 : i64, shape = array<i64: 8, 4>, dtype = "f32"} : (tensor<2xi64>) -> tensor<8x4xf32>
    %1 = "gflow.mul"(%x, %0) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}

// -----

// A gradient of which ranks along dp have terms and ranks along tp parts: one collective, which is said to be a gradient's.
// CHECK-LABEL: func.func @gradient(
// CHECK:         %[[DW:.+]] = "gflow.matmul"({{.+}}) : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
// CHECK:         "gflow.collective"(%[[DW]]) {axes = ["dp"], gflow.gradient = "w", kind = "all_reduce"
// CHECK-NOT:     "gflow.collective"
module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 2>}} {
  func.func @gradient(%x: tensor<4x8xf32> {gflow.sharding = ["S(1)", "B"]}, %dy: tensor<8x6xf32> {gflow.sharding = ["S(0)", "S(1)"]},
                      %w: tensor<4x6xf32> {gflow.sharding = ["B", "S(1)"]}) -> (tensor<4x6xf32> {gflow.alias = 2 : i64}) {
    %0 = "gflow.matmul"(%x, %dy) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = "gflow.reshard"(%0) {sharding = ["B", "S(1)"], gflow.gradient = "w", gflow.copies = ["dp"]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = "gflow.sub"(%w, %1) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
}

// -----

// What the author says of a value in the middle: rows become columns by an exchange.
// CHECK-LABEL: func.func @resharded(
// CHECK:         "gflow.collective"({{.+}}) {axes = ["dp"], concat_dim = 0 : i64, dim = 1 : i64, kind = "all_to_all"
// CHECK:         "gflow.exp"({{.+}}) : (tensor<8x2xf32>) -> tensor<8x2xf32>
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
  func.func @resharded(%x: tensor<8x4xf32> {gflow.sharding = ["S(0)"]}) -> tensor<8x4xf32> {
    %0 = "gflow.tanh"(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "gflow.reshard"(%0) {sharding = ["S(1)"]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = "gflow.exp"(%1) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
}
