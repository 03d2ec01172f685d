// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-write-in-place,gflow-plan-memory,gflow-verify-memory))' | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s --check-prefix=LAUNCHES

// Two halves of one value, then its transpose as a matrix: one kernel writes both, where the product reads them.
// CHECK-LABEL: func.func @halves(
// CHECK:         %[[PARTS:.+]]:2 = "gflow.fused"(
// CHECK:         }) {gflow.buffers = ["arena:0", "arena:0"]
// CHECK:         "gflow.concatenate"(%[[PARTS]]#{{.}}, %[[PARTS]]#{{.}}) {dim = 3 : i64, gflow.buffers = ["arena:0"], gflow.in_place,
// CHECK:         "gflow.fused"
// CHECK:         }) {gflow.buffers = ["arena:0"], gflow.in_place, kind = "pointwise"
// CHECK:         "gflow.matmul"
// LAUNCHES:      # @halves for cuda:90: 2 steps
func.func @halves(%x: tensor<2x4x8x64xf32>, %w: tensor<512x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.slice"(%x) {starts = array<i64: 0, 0, 0, 0>, limits = array<i64: 2, 4, 8, 32>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x8x64xf32>) -> tensor<2x4x8x32xf32>
  %1 = "gflow.slice"(%x) {starts = array<i64: 0, 0, 0, 32>, limits = array<i64: 2, 4, 8, 64>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x8x64xf32>) -> tensor<2x4x8x32xf32>
  %2 = "gflow.sub"(%0, %1) : (tensor<2x4x8x32xf32>, tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  %3 = "gflow.add"(%0, %1) : (tensor<2x4x8x32xf32>, tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  %4 = "gflow.concatenate"(%2, %3) {dim = 3 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x4x8x32xf32>, tensor<2x4x8x32xf32>) -> tensor<2x4x8x64xf32>
  %5 = "gflow.transpose"(%4) {permutation = array<i64: 1, 0, 2, 3>} : (tensor<2x4x8x64xf32>) -> tensor<4x2x8x64xf32>
  %6 = "gflow.reshape"(%5) {shape = array<i64: 8, 512>} : (tensor<4x2x8x64xf32>) -> tensor<8x512xf32>
  %7 = "gflow.matmul"(%6, %w) : (tensor<8x512xf32>, tensor<512x8xf32>) -> tensor<8x8xf32>
  return %7 : tensor<8x8xf32>
}

// A part that something else reads, one that nobody computes, and a result of the function: all is copied.
// CHECK-LABEL: func.func @copied(
// CHECK-NOT:     gflow.in_place
// LAUNCHES:      # @copied for cuda:90: 6 steps
func.func @copied(%x: tensor<4x8xf32>, %w: tensor<16x4xf32>) -> (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x16xf32>) {
  %0 = "gflow.exp"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.concatenate"(%0, %x) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x16xf32>
  %2 = "gflow.matmul"(%1, %w) : (tensor<4x16xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
  %3 = "gflow.concatenate"(%0, %0) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x16xf32>
  return %2, %0, %3 : tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x16xf32>
}
