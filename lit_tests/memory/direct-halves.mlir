// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=1 isa=x86-64-v4+bf16}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=1 isa=x86-64-v4+bf16},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=CODE

// Convolutions of bfloat16 values read windows in place on processors with AVX-512's dot products: K is 9 taps of 32 pairs of channels.
// CHECK-LABEL: func.func @forward(
// CHECK:       kind = "direct", precision = "bf16"{{.*}}tile = array<i64: {{[0-9]+}}, {{[0-9]+}}, 288>
// CHECK-NOT:   widened
// CODE:        llvm.x86.avx512bf16.dpbf16ps.512
func.func @forward(%x: tensor<4x16x16x64xbf16>, %w: tensor<64x64x3x3xbf16>) -> tensor<4x16x16x64xbf16> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<64x64x3x3xbf16>) -> tensor<64x3x3x64xbf16>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x16x16x64xbf16>, tensor<64x3x3x64xbf16>) -> tensor<4x16x16x64xbf16>
  return %0 : tensor<4x16x16x64xbf16>
}

// The gradient of a weight adds the sums of blocks of positions in float32.
// CHECK-LABEL: func.func @gradient(
// CHECK:       kind = "direct", precision = "bf16"{{.*}}widened = array<i64: 2>
func.func @gradient(%x: tensor<4x16x16x64xbf16>, %dy: tensor<4x16x16x64xbf16>) -> tensor<64x3x3x64xbf16> {
  %0 = "gflow.convolution_weight_grad"(%x, %dy) {shape = array<i64: 64, 3, 3, 64>, stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x16x16x64xbf16>, tensor<4x16x16x64xbf16>) -> tensor<64x3x3x64xbf16>
  return %0 : tensor<64x3x3x64xbf16>
}

// Three channels are no pairs: operands are widened to float32. The weight's copy keeps its order.
// CHECK-LABEL: func.func @odd(
// CHECK:       kind = "direct"{{.*}}widened = array<i64: 0, 1, 2>
func.func @odd(%x: tensor<4x16x16x3xbf16>, %w: tensor<64x3x3x3xbf16>) -> tensor<4x16x16x64xbf16> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<64x3x3x3xbf16>) -> tensor<64x3x3x3xbf16>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<4x16x16x3xbf16>, tensor<64x3x3x3xbf16>) -> tensor<4x16x16x64xbf16>
  return %0 : tensor<4x16x16x64xbf16>
}
