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
