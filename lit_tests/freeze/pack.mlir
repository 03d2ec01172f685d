// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-pack-weights{isa=x86-64-v4},gflow-freeze))' | FileCheck %s
// RUN: not %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-pack-weights{isa=z80}))' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-pack-weights{isa=x86-64-v4},gflow-freeze,gflow-fuse,gflow-schedule,gflow-materialize,gflow-select-kernels{isa=x86-64-v4 threads=2}))' | FileCheck %s --check-prefix=CHOSEN

// NONE: isa must be one of x86-64-v4+amx, x86-64-v4+bf16, x86-64-v4, x86-64-v3, found 'z80'

// CHECK-LABEL: func.func @linear(%arg0: tensor<40x64xf32>, %arg1: tensor<2x3072xf32>
// CHECK:         "gflow.packed_product"(%arg0, %arg1) {columns = 96 : i64, dilation = array<i64>, kernel = array<i64>, padding = array<i64>, stride = array<i64>}
func.func @linear(%x: tensor<40x64xf32>, %w: tensor<96x64xf32> {gflow.frozen = true}) -> tensor<40x96xf32> {
  %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<96x64xf32>) -> tensor<64x96xf32>
  %1 = "gflow.matmul"(%x, %0) : (tensor<40x64xf32>, tensor<64x96xf32>) -> tensor<40x96xf32>
  return %1 : tensor<40x96xf32>
}

// The last strip is filled up.
// CHECK-LABEL: func.func @convolution(%arg0: tensor<2x8x8x3xf32>, %arg1: tensor<1x864xf32>
// CHECK:         "gflow.packed_product"(%arg0, %arg1) {columns = 20 : i64, dilation = array<i64: 1, 1>, kernel = array<i64: 3, 3>, padding = array<i64: 1, 1>, stride = array<i64: 2, 1>}
// CHOSEN-LABEL: func.func @convolution(
// CHOSEN:       block = array<i64: {{.+}}, kind = "packed"
func.func @convolution(%x: tensor<2x8x8x3xf32>, %w: tensor<20x3x3x3xf32> {gflow.frozen = true}) -> tensor<2x4x8x20xf32> {
  %0 = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 1, 1>, stride = array<i64: 2, 1>} : (tensor<2x8x8x3xf32>, tensor<20x3x3x3xf32>) -> tensor<2x4x8x20xf32>
  return %0 : tensor<2x4x8x20xf32>
}

// Few rows, groups, and one output are left as they are.
// CHECK-LABEL: func.func @others(
// CHECK-NOT:     packed
func.func @others(%x: tensor<2x33xf32>, %y: tensor<33x33xf32>, %z: tensor<2x8x8x4xf32>, %w: tensor<33x200xf32> {gflow.frozen = true}, %v: tensor<33x2xf32> {gflow.frozen = true}, %k: tensor<20x3x3x2xf32> {gflow.frozen = true}) -> (tensor<2x200xf32>, tensor<33x2xf32>, tensor<2x6x6x20xf32>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x33xf32>, tensor<33x200xf32>) -> tensor<2x200xf32>
  %1 = "gflow.matmul"(%y, %v) : (tensor<33x33xf32>, tensor<33x2xf32>) -> tensor<33x2xf32>
  %2 = "gflow.convolution"(%z, %k) {dilation = array<i64: 1, 1>, groups = 2 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x8x8x4xf32>, tensor<20x3x3x2xf32>) -> tensor<2x6x6x20xf32>
  return %0, %1, %2 : tensor<2x200xf32>, tensor<33x2xf32>, tensor<2x6x6x20xf32>
}
