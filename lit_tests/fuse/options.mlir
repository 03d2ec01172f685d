// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{max-ops=2 epilogues=false}))' | FileCheck %s --check-prefix=TWO
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{recompute-cost=0 epilogues=false}))' | FileCheck %s --check-prefix=ONCE
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false}))' | FileCheck %s

// Three ops in kernels of at most two.
// TWO-LABEL:   func.func @chain(
// TWO:           gflow.fused
// TWO:           gflow.fused
// TWO-NOT:       gflow.fused
// TWO-LABEL:   func.func @mask(
func.func @chain(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "gflow.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "gflow.neg"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "gflow.tanh"(%1) : (tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// The mask is computed again where it is needed again, unless recomputation is not allowed.
// CHECK-LABEL: func.func @mask(
// CHECK:         %[[Y:.+]] = "gflow.fused"(%arg0)
// CHECK:           "gflow.compare"
// CHECK:         "gflow.matmul"
// CHECK:           "gflow.compare"
// ONCE-LABEL:  func.func @mask(
// ONCE:          %[[Y:.+]]:2 = "gflow.fused"(%arg0)
// ONCE:            "gflow.compare"
// ONCE:          "gflow.matmul"
// ONCE-NOT:        "gflow.compare"
func.func @mask(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<64x64xf32>} : () -> tensor<64x64xf32>
  %m = "gflow.compare"(%x, %zero) {predicate = "gt"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xi1>
  %y = "gflow.select"(%m, %x, %zero) : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %p = "gflow.matmul"(%y, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "gflow.select"(%m, %p, %x) : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %d : tensor<64x64xf32>
}
