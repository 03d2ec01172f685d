// RUN: %gflow-opt %s --pipeline-for=cpu | FileCheck %s

// Constants of complex numbers cannot be read through the bindings: rules make none.
// CHECK-LABEL: func.func @product_over_nothing(
// CHECK: "gflow.matmul"
func.func @product_over_nothing(%a: tensor<2x0xcomplex<f32>>, %b: tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>> {
  %0 = "gflow.matmul"(%a, %b) : (tensor<2x0xcomplex<f32>>, tensor<0x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>>
  return %0 : tensor<2x3xcomplex<f32>>
}

// There are no kernels on complex numbers: PyTorch copies them.
// CHECK-LABEL: func.func @copied(
// CHECK: "gflow.aten"({{.*}}overload = "aten.clone.default"
func.func @copied(%arg0: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  return %arg0 : tensor<4xcomplex<f32>>
}
