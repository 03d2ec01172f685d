// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3 winograd=false}))' | FileCheck %s

// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4 direct=false}))' | FileCheck %s --check-prefix=PATCHES
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4}))' | FileCheck %s --check-prefix=DIRECT

// How a convolution on a processor reads the patches of its input (im2col): `patches` of gflow.kernel.

// Of 32 channels, each block of K belongs to one tap, and gflow's own product gathers patches as it packs.
// CHECK-LABEL: func.func @gathered(
// CHECK:       kind = "patches", patches = "gathered", scratch = {{[0-9]+}} : i64, threads = "all", tile = array<i64: 6, 16, 288>}
func.func @gathered(%x: tensor<8x34x34x32xf32>, %w: tensor<64x3x3x32xf32>) -> tensor<8x32x32x64xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<8x34x34x32xf32>, tensor<64x3x3x32xf32>) -> tensor<8x32x32x64xf32>
  return %0 : tensor<8x32x32x64xf32>
}

// Of three channels they are stored, by all threads.
// CHECK-LABEL: func.func @stored(
// CHECK:       kind = "patches", patches = "stored", scratch = {{[0-9]+}} : i64, then = [{threads = "all"}], threads = "all", tile = array<i64: 6, 16, 32>}
func.func @stored(%x: tensor<8x34x34x3xf32>, %w: tensor<64x3x3x3xf32>) -> tensor<8x32x32x64xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<8x34x34x3xf32>, tensor<64x3x3x3xf32>) -> tensor<8x32x32x64xf32>
  return %0 : tensor<8x32x32x64xf32>
}

// Of a convolution in three dimensions, patches are stored, and windows are read in place.
// PATCHES-LABEL: func.func @volume(
// PATCHES:       kind = "patches", patches = "stored"
// DIRECT-LABEL: func.func @volume(
// DIRECT:       kind = "direct"
func.func @volume(%x: tensor<2x10x18x18x32xf32>, %v: tensor<64x32x3x3x3xf32>) -> tensor<2x8x16x16x64xf32> {
  %w = "gflow.transpose"(%v) {permutation = array<i64: 0, 2, 3, 4, 1>} : (tensor<64x32x3x3x3xf32>) -> tensor<64x3x3x3x32xf32>
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1, 1>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<2x10x18x18x32xf32>, tensor<64x3x3x3x32xf32>) -> tensor<2x8x16x16x64xf32>
  return %0 : tensor<2x8x16x16x64xf32>
}

// Few patches are stored by one thread.
// CHECK-LABEL: func.func @few(
// CHECK:       gflow.kernel = {kind = "patches", patches = "stored", scratch = 1728 : i64, then = [{}]}
func.func @few(%x: tensor<1x6x6x3xf32>, %w: tensor<8x3x3x3xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<1x6x6x3xf32>, tensor<8x3x3x3xf32>) -> tensor<1x4x4x8xf32>
  return %0 : tensor<1x4x4x8xf32>
}

// A 1x1 convolution has no patches.
// CHECK-LABEL: func.func @none(
// CHECK:       kind = "patches", scratch = {{[0-9]+}} : i64, threads = "all", tile = array<i64: 6, 16, 32>}
func.func @none(%x: tensor<8x16x16x32xf32>, %w: tensor<64x1x1x32xf32>) -> tensor<8x16x16x64xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<8x16x16x32xf32>, tensor<64x1x1x32xf32>) -> tensor<8x16x16x64xf32>
  return %0 : tensor<8x16x16x64xf32>
}

// A weight in PyTorch's order is packed as it is read, and windows are read in place. On a 2x2 map, the order by position
// leaves out 20 of 36 elements of the kernels.
// DIRECT-LABEL: func.func @direct(
// DIRECT:       "gflow.convolution"{{.*}}block = array<i64: {{[0-9]+, [0-9]+, [0-9]+}}>, kind = "direct", scratch = {{[0-9]+}} : i64, threads = "all", tile = array<i64: 8, 32, 576>, walk = "positions"}
// DIRECT:       "gflow.convolution_input_grad"{{.*}}kind = "direct"
// PATCHES-LABEL: func.func @direct(
// PATCHES-NOT:  kind = "direct"
func.func @direct(%x: tensor<16x2x2x64xf32>, %v: tensor<64x64x3x3xf32>) -> (tensor<16x2x2x64xf32>, tensor<16x2x2x64xf32>) {
  %w = "gflow.transpose"(%v) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<64x64x3x3xf32>) -> tensor<64x3x3x64xf32>
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<16x2x2x64xf32>, tensor<64x3x3x64xf32>) -> tensor<16x2x2x64xf32>
  %1 = "gflow.convolution_input_grad"(%x, %w) {shape = array<i64: 16, 2, 2, 64>, stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<16x2x2x64xf32>, tensor<64x3x3x64xf32>) -> tensor<16x2x2x64xf32>
  return %0, %1 : tensor<16x2x2x64xf32>, tensor<16x2x2x64xf32>
}
