// RUN: %gflow-opt %s --pipeline-for=cpu --emit=plan | FileCheck %s

// There is code for tensors that fit no machine: the steps of an op are few.
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=kernels | FileCheck %s --check-prefix=KERNELS
// KERNELS: llvm.func @{{gemm_f32|product}}
// CHECK: @epilogue: {{[0-9]}} steps
func.func @epilogue(%w: tensor<1048577x1048577xf32> {gflow.name = "w", gflow.role = "parameter"}, %g: tensor<1048577x64xf32>, %x: tensor<64x1048577xf32>)
    -> (tensor<1048577x1048577xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.matmul"(%g, %x) : (tensor<1048577x64xf32>, tensor<64x1048577xf32>) -> tensor<1048577x1048577xf32>
  %1 = "gflow.sub"(%w, %0) : (tensor<1048577x1048577xf32>, tensor<1048577x1048577xf32>) -> tensor<1048577x1048577xf32>
  return %1 : tensor<1048577x1048577xf32>
}
