// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3}))' | FileCheck %s

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
