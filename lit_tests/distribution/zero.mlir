// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-1{min-size=1}))' --verify-each | FileCheck %s --check-prefix=ONE
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-1{min-size=1},gflow-zero-2))' --verify-each | FileCheck %s --check-prefix=TWO
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-1{min-size=1},gflow-zero-3))' --verify-each | FileCheck %s --check-prefix=THREE
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-1{min-size=1},gflow-zero-3{restore-level=2}))' --verify-each | FileCheck %s --check-prefix=ONCE
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-1{min-size=100}))' | FileCheck %s --check-prefix=SMALL
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-decompose-all-reduce{min-size=1}))' --verify-each | FileCheck %s --check-prefix=APART

// The momentum is a piece; the weight is updated in pieces, and gathered.
// ONE:         func.func @step(%arg0: tensor<4x4xf32> {gflow.role = "parameter"}, %arg1: tensor<8xf32> {gflow.role = "optimizer_state", gflow.sharding = ["S(0)"], gflow.whole = array<i64: 4, 4>}
// ONE:           "gflow.matmul"
// ONE:           "gflow.matmul"
// ONE:           "gflow.matmul"
// ONE-NEXT:      "gflow.reshape"({{.*}}) {shape = array<i64: 16>}
// ONE-NEXT:      %[[S:.*]]:2 = "gflow.collective"({{.*}}) {{.*}}kind = "reduce_scatter"{{.*}} -> (tensor<8xf32>, tensor<i8>)
// ONE-NEXT:      %[[M:.*]] = "gflow.add"(%arg1, %[[S]]#0)
// ONE-NEXT:      %[[W:.*]] = "gflow.shard"(%arg0)
// ONE-NEXT:      %[[U:.*]] = "gflow.sub"(%[[W]], %[[M]])
// ONE-NEXT:      %[[A:.*]]:2 = "gflow.collective"(%[[U]], %[[S]]#1) {{.*}}kind = "all_gather"
// ONE-NEXT:      %[[R:.*]] = "gflow.reshape"(%[[A]]#0)
// ONE-NEXT:      return %[[R]], %[[M]], {{.*}}, %[[A]]#1

// The gradient is divided before the next product.
// TWO:           "gflow.matmul"
// TWO-NEXT:      "gflow.matmul"
// TWO-NEXT:      "gflow.reshape"
// TWO-NEXT:      "gflow.collective"({{.*}}kind = "reduce_scatter"
// TWO:           "gflow.matmul"

// The weight is a piece, gathered for the forward and for the backward; nothing is gathered at the end.
// THREE:       func.func @step(%arg0: tensor<8xf32>
// THREE:         "gflow.collective"(%arg0) {{.*}}kind = "all_gather"
// THREE:         "gflow.matmul"
// THREE:         "gflow.collective"(%arg0, {{.*}}kind = "all_gather"
// THREE:         "gflow.matmul"
// THREE:         %[[U:.*]] = "gflow.sub"(%arg0,
// THREE-NOT:     all_gather
// THREE:         return %[[U]]

// ONCE-COUNT-1:  all_gather
// ONCE-NOT:      all_gather

// SMALL:         kind = "all_reduce"
// SMALL-NOT:     reduce_scatter

// APART:         kind = "reduce_scatter"
// APART-NEXT:    kind = "all_gather"
// APART-NEXT:    "gflow.reshape"({{.*}}) {shape = array<i64: 4, 4>}
// APART-NOT:     all_reduce
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @step(%w: tensor<4x4xf32> {gflow.role = "parameter"}, %m: tensor<4x4xf32> {gflow.role = "optimizer_state"}, %x: tensor<4x4xf32> {gflow.role = "input"})
    -> (tensor<4x4xf32> {gflow.alias = 0 : i64}, tensor<4x4xf32> {gflow.alias = 1 : i64}, tensor<4x4xf32>) {
  %y = "gflow.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("forward:layer")
  %dw = "gflow.matmul"(%x, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("backward:layer")
  %dx = "gflow.matmul"(%y, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("backward:layer")
  %g, %t = "gflow.collective"(%dw) {kind = "all_reduce", reduction = "sum", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, sequence = 0 : i64, operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,1,0,0,0,0,0,0>} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i8>)
  %m1 = "gflow.add"(%m, %g) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("optimizer:")
  %w1 = "gflow.sub"(%w, %m1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("optimizer:")
  return %w1, %m1, %dx : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
}
