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
// LAUNCHES:      # @halves for cuda:90: 3 steps
// LAUNCHES:      pointwise_sub_add_{{.*}}
// LAUNCHES:      matmul_partial_{{.*}}a=arena,
// LAUNCHES:      total_
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

// Products and sums of columns fill a bucket of gradients, where each begins as a buffer may.
// CHECK-LABEL: func.func @bucket(
// CHECK:         "gflow.concatenate"{{.*}}gflow.in_place
// LAUNCHES:      # @bucket for cuda:90: 3 steps
func.func @bucket(%x: tensor<32x16xf32>, %g: tensor<32x24xf32>, %v: tensor<408x8xf32>) -> tensor<1x8xf32> {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<32x16xf32>) -> tensor<16x32xf32>
  %1 = "gflow.matmul"(%0, %g) : (tensor<16x32xf32>, tensor<32x24xf32>) -> tensor<16x24xf32>
  %2 = "gflow.reduce"(%g) {kind = "sum", dims = array<i64: 0>} : (tensor<32x24xf32>) -> tensor<24xf32>
  %3 = "gflow.reshape"(%1) {shape = array<i64: 384>} : (tensor<16x24xf32>) -> tensor<384xf32>
  %4 = "gflow.concatenate"(%3, %2) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<384xf32>, tensor<24xf32>) -> tensor<408xf32>
  %5 = "gflow.reshape"(%4) {shape = array<i64: 1, 408>} : (tensor<408xf32>) -> tensor<1x408xf32>
  %6 = "gflow.matmul"(%5, %v) : (tensor<1x408xf32>, tensor<408x8xf32>) -> tensor<1x8xf32>
  return %6 : tensor<1x8xf32>
}

// The product would begin between two buffers.
// CHECK-LABEL: func.func @shifted(
// CHECK-NOT:     gflow.in_place
// LAUNCHES:      # @shifted for cuda:90: 5 steps
func.func @shifted(%x: tensor<32x16xf32>, %g: tensor<32x24xf32>, %v: tensor<408x8xf32>) -> tensor<1x8xf32> {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<32x16xf32>) -> tensor<16x32xf32>
  %1 = "gflow.matmul"(%0, %g) : (tensor<16x32xf32>, tensor<32x24xf32>) -> tensor<16x24xf32>
  %2 = "gflow.reduce"(%g) {kind = "sum", dims = array<i64: 0>} : (tensor<32x24xf32>) -> tensor<24xf32>
  %3 = "gflow.reshape"(%1) {shape = array<i64: 384>} : (tensor<16x24xf32>) -> tensor<384xf32>
  %4 = "gflow.concatenate"(%2, %3) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<24xf32>, tensor<384xf32>) -> tensor<408xf32>
  %5 = "gflow.reshape"(%4) {shape = array<i64: 1, 408>} : (tensor<408xf32>) -> tensor<1x408xf32>
  %6 = "gflow.matmul"(%5, %v) : (tensor<1x408xf32>, tensor<408x8xf32>) -> tensor<1x8xf32>
  return %6 : tensor<1x8xf32>
}
