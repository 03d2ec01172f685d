// RUN: %gflow-opt %s --pipeline-for=cpu --emit=plan | FileCheck %s

// Code for tensors that fit no machine is made in no time: the steps of an op are few.
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=kernels --gflow-timing 2>&1 | FileCheck %s --check-prefix=KERNELS
// KERNELS: Total Execution Time: {{[0-9]\.}}
// CHECK: @epilogue: {{[0-9]}} steps
func.func @epilogue(%w: tensor<1048577x1048577xf32> {gflow.name = "w", gflow.role = "parameter"}, %g: tensor<1048577x64xf32>, %x: tensor<64x1048577xf32>)
    -> (tensor<1048577x1048577xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.matmul"(%g, %x) : (tensor<1048577x64xf32>, tensor<64x1048577xf32>) -> tensor<1048577x1048577xf32>
  %1 = "gflow.sub"(%w, %0) : (tensor<1048577x1048577xf32>, tensor<1048577x1048577xf32>) -> tensor<1048577x1048577xf32>
  return %1 : tensor<1048577x1048577xf32>
}
