// RUN: not %gflow-opt %s --split-input-file 2>&1 | FileCheck %s

// Choices of kernels that nobody made.

// CHECK: kernels.mlir:[[#@LINE+2]]:{{[0-9]+}}: error: {{.*}}'gflow.kernel' tile must be powers of two, found array<i64: 100, 64, 64>
func.func @odd_tile(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "product", stages = 2 : i64, tile = array<i64: 100, 64, 64>, warps = 4 : i64}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// CHECK: 'gflow.kernel' tile must have columns that are the sum of at most two powers of two, found array<i64: 64, 224, 64>
func.func @three_widths(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "product", loads = "descriptors", persistent = 132 : i64, stages = 2 : i64, tile = array<i64: 64, 224, 64>, warps = 4 : i64}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}

// -----

// CHECK: 'gflow.kernel' parts must divide a tile of 192 columns into pieces whose columns divide 64, found 2
func.func @uneven_parts(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "product", loads = "descriptors", parts = 2 : i64, persistent = 132 : i64, stages = 2 : i64, tile = array<i64: 64, 192, 64>, warps = 4 : i64}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}

// -----

// CHECK: 'gflow.kernel' needs stages
func.func @no_stages(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "product", tile = array<i64: 16, 16, 16>, warps = 4 : i64}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// CHECK: 'gflow.kernel' has no field 'speed'; there are kind, scratch, tile
func.func @unknown(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "blas", speed = 7 : i64}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// CHECK: 'gflow.kernel' kind must be one of none, region, merged, product
func.func @unknown_kind(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "magic"}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// CHECK: 'gflow.kernel' scratch must not be negative, found -64 : i64
func.func @negative(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) {gflow.kernel = {kind = "blas", scratch = -64 : i64}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// CHECK: 'gflow.kernel' tile must be M, N and K, found array<i64: 12, 32>
func.func @attention_tile(%q: tensor<1x1x8x64xf32>, %k: tensor<1x300x2x64xf32>) -> tensor<1x1x8x64xf32> {
  %0:2 = "gflow.attention"(%q, %k, %k) {causal = false, gflow.kernel = {block = array<i64: 12>, kind = "attention", tile = array<i64: 12, 32>}, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x1x8x64xf32>, tensor<1x300x2x64xf32>, tensor<1x300x2x64xf32>) -> (tensor<1x1x8x64xf32>, tensor<1x8x1xf32>)
  return %0#0 : tensor<1x1x8x64xf32>
}
