// RUN: not %gflow-opt %s --gflow-zero-3 2>&1 | FileCheck %s
// RUN: not %gflow-opt %s --gflow-freeze 2>&1 | FileCheck %s

// CHECK: error: 'gflow.alias' of result 0 must be the number of an argument{{.*}} found dense<1> : tensor<2xi64>
func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32> {gflow.frozen = true}) -> (tensor<4xf32> {gflow.alias = dense<1> : tensor<2xi64>}) {
  %a = "gflow.exp"(%y) : (tensor<4xf32>) -> tensor<4xf32>
  %b = "gflow.add"(%a, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
