// RUN: %gflow-opt %s --pipeline-for=cpu --emit=plan | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline="builtin.module(func.func(gflow-simplify,gflow-assign-layout,gflow-simplify,gflow-fuse,gflow-schedule,gflow-materialize,gflow-select-kernels{direct=false},gflow-plan-memory))" --emit=kernels | FileCheck %s --check-prefix=KERNELS
// KERNELS: pack_patches

// The steps of an op are few, whatever its size: pieces of patches, groups, batches.
// CHECK: @patches: {{[0-9]+}} steps
func.func @patches(%x: tensor<2x3x1048577x1048577xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<2x4x1048577x1048577xf32> {
  %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x3x1048577x1048577xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x1048577x1048577xf32>
  return %0 : tensor<2x4x1048577x1048577xf32>
}

// CHECK: @groups: {{[0-9]+}} steps
func.func @groups(%x: tensor<2x2097152x5x5xf32>, %w: tensor<2097152x2x3x3xf32>) -> tensor<2x2097152x5x5xf32> {
  %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1048576 : i64, layout = "NC*", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x2097152x5x5xf32>, tensor<2097152x2x3x3xf32>) -> tensor<2x2097152x5x5xf32>
  return %0 : tensor<2x2097152x5x5xf32>
}

// CHECK: @batches: {{[0-9]+}} steps
func.func @batches(%x: tensor<3x1048576x4x5xf32>, %y: tensor<1048576x3x5x4xf32>) -> tensor<3x1048576x4x4xf32> {
  %0 = "gflow.transpose"(%y) {permutation = array<i64: 1, 0, 2, 3>} : (tensor<1048576x3x5x4xf32>) -> tensor<3x1048576x5x4xf32>
  %1 = "gflow.matmul"(%x, %0) : (tensor<3x1048576x4x5xf32>, tensor<3x1048576x5x4xf32>) -> tensor<3x1048576x4x4xf32>
  return %1 : tensor<3x1048576x4x4xf32>
}

// CHECK: @halves: {{[0-9]+}} steps
func.func @halves(%x: tensor<2147483648x64xbf16>, %y: tensor<64x64xbf16>) -> tensor<2147483648x64xbf16> {
  %0 = "gflow.matmul"(%x, %y) : (tensor<2147483648x64xbf16>, tensor<64x64xbf16>) -> tensor<2147483648x64xbf16>
  return %0 : tensor<2147483648x64xbf16>
}
