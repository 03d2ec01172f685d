// RUN: gflow-opt %s --emit=stablehlo | FileCheck %s

// CHECK: func.func public @main(%[[X:.*]]: tensor<4x8xf32>) -> (tensor<4xi64>, tensor<4x8xf32>)
// CHECK: %[[BEST:.*]] = stablehlo.reduce(%[[X]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [1]
// CHECK: stablehlo.compare {{ *}}EQ, %[[X]]
// CHECK: stablehlo.iota
// CHECK: stablehlo.logistic %[[X]]
func.func @f(%x: tensor<4x8xf32> {gflow.name = "x"}) -> (tensor<4xi64>, tensor<4x8xf32>) {
  %0 = "gflow.reduce"(%x) {kind = "argmax", dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xi64>
  %1 = "gflow.sigmoid"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1 : tensor<4xi64>, tensor<4x8xf32>
}

// A size that varies: its dimension is dynamic, and shapes that depend on it are computed.
// CHECK: func.func public @main(%[[X:.*]]: tensor<?x4xf32>) -> (tensor<?xf32>, tensor<?x4xf32>)
// CHECK: %[[D:.*]] = stablehlo.get_dimension_size %[[X]], dim = 0
// CHECK: %[[N:.*]] = stablehlo.convert %[[D]] : (tensor<i32>) -> tensor<i64>
// CHECK: stablehlo.custom_call @shape_assertion(%{{.*}}, %[[N]]) {{.*}}error_message = "n must be 2 to 64, and is {0}"
// CHECK: stablehlo.multiply {{.*}}%[[N]]
// CHECK: stablehlo.dynamic_reshape %[[X]], %{{.*}} : (tensor<?x4xf32>, tensor<1xi64>) -> tensor<?xf32>
// CHECK: stablehlo.real_dynamic_slice %[[X]], %{{.*}} -> tensor<?x4xf32>
func.func @g(
    %n: tensor<i64> {gflow.role = "size", gflow.name = "n", gflow.min = 2, gflow.max = 64, gflow.stand_in = 1000000007},
    %x: tensor<1000000007x4xf32> {gflow.name = "x"}) -> (tensor<4000000028xf32>, tensor<1000000006x4xf32>) {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 4000000028>} : (tensor<1000000007x4xf32>) -> tensor<4000000028xf32>
  %1 = "gflow.slice"(%x) {starts = array<i64: 0, 0>, limits = array<i64: 1000000006, 4>, strides = array<i64: 1, 1>} : (tensor<1000000007x4xf32>) -> tensor<1000000006x4xf32>
  return %0, %1 : tensor<4000000028xf32>, tensor<1000000006x4xf32>
}
