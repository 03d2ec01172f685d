// RUN: %gflow-opt %s --pipeline-for=cpu | FileCheck %s

// Constants of complex numbers cannot be read through the bindings: rules make none.
// CHECK-LABEL: func.func @product_over_nothing(
// CHECK: "gflow.matmul"
func.func @product_over_nothing(%a: tensor<2x0xcomplex<f32>>, %b: tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>> {
  %0 = "gflow.matmul"(%a, %b) : (tensor<2x0xcomplex<f32>>, tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>>
  return %0 : tensor<2x3xcomplex<f32>>
}

// RUN: not %gflow-opt %s --pipeline-for=cpu --emit=kernels 2>&1 | FileCheck %s --check-prefix=KERNELS
// KERNELS: gflow-opt: error: there are no kernels on complex numbers
func.func @copied(%arg0: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  return %arg0 : tensor<4xcomplex<f32>>
}
