// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=1 isa=x86-64-v4}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=1 isa=x86-64-v4 winograd=false}))' | FileCheck %s --check-prefix=WITHOUT
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=1 isa=x86-64-v4},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=CODE

// 3×3 convolutions with stride 1 run by Winograd's algorithm where it is faster: register tiles, and tiles of 2×2 results of a block.
// CHECK-LABEL:   func.func @forward(
// CHECK:         "gflow.convolution"{{.*}}block = array<i64: {{[0-9]+}}>, kind = "winograd"{{.*}}tile = array<i64: 12, 32>}
// WITHOUT-LABEL: func.func @forward(
// WITHOUT:       kind = "direct"
// CODE:          llvm.func @winograd_32(
func.func @forward(%x: tensor<4x28x28x64xf32>, %w: tensor<64x64x3x3xf32>) -> tensor<4x28x28x64xf32> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<64x64x3x3xf32>) -> tensor<64x3x3x64xf32>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x28x28x64xf32>, tensor<64x3x3x64xf32>) -> tensor<4x28x28x64xf32>
  return %0 : tensor<4x28x28x64xf32>
}

// The gradient of a weight: tiles of a block, rows of the 4×4 and output channels of a share.
// CHECK-LABEL: func.func @gradient(
// CHECK:       "gflow.convolution_weight_grad"{{.*}}block = array<i64: 96, 4, 96>, kind = "winograd"
func.func @gradient(%x: tensor<4x28x28x64xf32>, %dy: tensor<4x28x28x64xf32>) -> tensor<64x3x3x64xf32> {
  %0 = "gflow.convolution_weight_grad"(%x, %dy) {shape = array<i64: 64, 3, 3, 64>, stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x28x28x64xf32>, tensor<4x28x28x64xf32>) -> tensor<64x3x3x64xf32>
  return %0 : tensor<64x3x3x64xf32>
}

// A stride, few tiles or weights that take much memory are for windows in place.
// CHECK-LABEL: func.func @strided(
// CHECK:       kind = "direct"
func.func @strided(%x: tensor<4x28x28x64xf32>, %w: tensor<64x64x3x3xf32>) -> tensor<4x14x14x64xf32> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<64x64x3x3xf32>) -> tensor<64x3x3x64xf32>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x28x28x64xf32>, tensor<64x3x3x64xf32>) -> tensor<4x14x14x64xf32>
  return %0 : tensor<4x14x14x64xf32>
}
// CHECK-LABEL: func.func @large(
// CHECK:       kind = "direct"
func.func @large(%x: tensor<4x7x7x512xf32>, %w: tensor<512x512x3x3xf32>) -> tensor<4x7x7x512xf32> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<512x512x3x3xf32>) -> tensor<512x3x3x512xf32>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x7x7x512xf32>, tensor<512x3x3x512xf32>) -> tensor<4x7x7x512xf32>
  return %0 : tensor<4x7x7x512xf32>
}
