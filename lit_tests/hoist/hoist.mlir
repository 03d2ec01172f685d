// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false},gflow-materialize,gflow-hoist{small=64}))' | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=cuda | %gflow-opt - --gflow-verify-memory | FileCheck %s --check-prefix=CUDA

// %1 is read again when most memory is, %3 is small: both come first. %6 would live long for one product.
// CHECK-LABEL: func.func @weights(
// CHECK-NEXT:    %[[A:.+]] = "gflow.transpose"(%arg1)
// CHECK-NEXT:    %[[B:.+]] = "gflow.fused"(%[[A]])
// CHECK:         %[[C:.+]] = "gflow.fused"(%arg3)
// CHECK:         %[[D:.+]] = "gflow.matmul"(%arg0, %[[B]])
// CHECK:         %[[E:.+]] = "gflow.matmul"(%[[D]], %[[B]])
// CHECK:         %[[F:.+]] = "gflow.matmul"(%[[E]], %[[C]])
// CHECK:         "gflow.fused"(%arg2)
// CUDA-LABEL:  func.func @weights(
func.func @weights(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %v: tensor<1x16xf32>, %b: tensor<16x1xf32>) -> tensor<16x16xf32> {
  %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %1 = "gflow.exp"(%0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %2 = "gflow.matmul"(%x, %1) : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %3 = "gflow.rsqrt"(%b) : (tensor<16x1xf32>) -> tensor<16x1xf32>
  %4 = "gflow.matmul"(%2, %1) : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %5 = "gflow.matmul"(%4, %3) : (tensor<16x16xf32>, tensor<16x1xf32>) -> tensor<16x1xf32>
  %c = "gflow.broadcast"(%v) {dims = array<i64: 0, 1>, shape = array<i64: 16, 16>} : (tensor<1x16xf32>) -> tensor<16x16xf32>
  %6 = "gflow.exp"(%c) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %7 = "gflow.slice"(%6) {starts = array<i64: 0, 0>, limits = array<i64: 1, 16>, strides = array<i64: 1, 1>} : (tensor<16x16xf32>) -> tensor<1x16xf32>
  %8 = "gflow.matmul"(%5, %7) : (tensor<16x1xf32>, tensor<1x16xf32>) -> tensor<16x16xf32>
  return %8 : tensor<16x16xf32>
}
