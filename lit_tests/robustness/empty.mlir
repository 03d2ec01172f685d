// RUN: %gflow-opt %s --pipeline-for=cpu | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=plan | FileCheck %s --check-prefix=PLAN
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=kernels
// RUN: %gflow-opt %s --pipeline-for=cpu --gflow-report --view-memory=%t.html --view-graph=%t.svg

// Functions without ops, and without live bytes.
// CHECK-LABEL: func.func @nothing(
// PLAN: @nothing: 0 steps, arena 0 bytes
func.func @nothing(%a0: tensor<4xf32>) {
  return
}
// CHECK-LABEL: func.func @dead(
func.func @dead(%a0: tensor<4xf32>) {
  %0 = "gflow.exp"(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  return
}
// CHECK-LABEL: func.func @no_elements(
func.func @no_elements(%a0: tensor<4x0xf32>) -> tensor<4x0xf32> {
  %0 = "gflow.exp"(%a0) : (tensor<4x0xf32>) -> tensor<4x0xf32>
  return %0 : tensor<4x0xf32>
}
