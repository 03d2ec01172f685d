// An all-reduce along one axis of the mesh, along which ranks have values of their own, in a program whose values are
// placed along the other: parts are added up as they lie, and the token is no term of a sum.
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-propagate-shardings,gflow-partition))' | FileCheck %s
module attributes {gflow.mesh = {axes = ["dp", "tp"], sizes = array<i64: 2, 2>}} {
  // CHECK-LABEL: func.func @gradient
  // CHECK-SAME: -> (tensor<4x2xf32> {{.*}}, tensor<i8>
  // CHECK: %[[W:.*]] = "gflow.matmul"{{.*}} -> tensor<4x2xf32>
  // CHECK-NEXT: %[[G:.*]]:2 = "gflow.collective"(%[[W]]) {axes = ["dp"], {{.*}}kind = "all_reduce"{{.*}} -> (tensor<4x2xf32>, tensor<i8>)
  // CHECK-NEXT: return %[[G]]#0, %[[G]]#1
  func.func @gradient(%x: tensor<4x8xf32>, %dy: tensor<8x4xf32> {gflow.sharding = ["B", "S(1)"]})
      -> (tensor<4x4xf32>, tensor<i8> {gflow.name = "order", gflow.role = "order"}) {
    %0 = "gflow.matmul"(%x, %dy) : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %g, %t = "gflow.collective"(%0) {kind = "all_reduce", reduction = "sum", axes = ["dp"], ranks = 2 : i64,
        sequence = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>}
        : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i8>)
    return %g, %t : tensor<4x4xf32>, tensor<i8>
  }
}
