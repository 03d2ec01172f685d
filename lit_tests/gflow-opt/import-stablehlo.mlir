// RUN: gflow-opt %s --import=stablehlo | FileCheck %s
// RUN: gflow-opt %s --import=stablehlo --pipeline-for=cpu --emit=plan | FileCheck %s --check-prefix=PLAN

// CHECK: func.func public @main(%[[X:.*]]: tensor<4x8xf32> {gflow.name = "x"}, %[[W:.*]]: tensor<3x8xf32>)
// CHECK: %[[T:.*]] = "gflow.transpose"(%[[W]]) {{.*}}permutation = array<i64: 1, 0>
// CHECK: %[[P:.*]] = "gflow.matmul"(%[[X]], %[[T]])
// CHECK: "gflow.maximum"(%[[P]]
// CHECK: "gflow.reduce"{{.*}}kind = "sum"
// PLAN: @main
module @jit_f {
  func.func public @main(%x: tensor<4x8xf32> loc("x"), %w: tensor<3x8xf32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<3x8xf32>) -> tensor<4x3xf32>
    %1 = call @relu(%0) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @relu(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %1 = stablehlo.maximum %x, %0 : tensor<4x3xf32>
    return %1 : tensor<4x3xf32>
  }
}
